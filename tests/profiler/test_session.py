"""Sessions on a real model: what is profiled, when, what is left, and who may profile at a time."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import dielet
from dielet.errors import DieletError, UsageError
from dielet.generate.session import Model
from dielet.profiler.names import parse
from dielet.profiler.session import Session
from tests.profiler.oracle import COMPRESSED, read
from tests.profiler.talking import work


def test_a_short_prompt_and_four_tokens(model: Model, tmp_path: Path) -> None:
    """The example of the contract: one prefill and three decodes, files _0 ... _3."""
    with dielet.profile(output_dir=tmp_path / "out") as session:
        result = model.generate("hi", max_new_tokens=4, temperature=0)
    merged, *singles = session.files
    assert len(result.tokens) == 4
    stem = merged.name.removesuffix(".pb")
    date, clock = stem.removeprefix("dielet_").split("_")
    assert len(date) == 8 and len(clock) == 9 and (date + clock).isdigit()
    assert [path.name for path in singles] == [f"{stem}_{n}.pb" for n in range(4)]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(path.name for path in session.files)
    trace = read(merged)
    runs = [s.name for s in trace.slices if s.category == "Device Workload"]
    assert runs == [
        f"i{instance}_{sequence}_Device Workload_{workload}"
        for instance, sequence in ((0, 0), (1, 0), (1, 1), (1, 2))
        for workload in (0, 1)
    ]
    assert trace.tree()[:2] == ["Device 0 (host, measured)", "  Device Workload"]
    assert "  Host" in trace.tree()
    decode = next(s for s in trace.slices if s.name == "i1_2_Device Workload_0")
    assert decode.args == {
        "phase": "decode", "program": "decode_1_kv64", "tokens": 1, "capacity": 64, "valid": 1,
        "past": len(model.encode("hi", {})) + 2,
    }  # fmt: skip
    once = ["chat_template", "tokenize", "model.model.embed_tokens", "sample", "detokenize"]
    assert work(trace) == [f"0.0 {w}" for w in once] + [
        f"1.{n} {w}" for n in range(3) for w in once[2:]
    ]
    assert work(read(singles[0])) == [f"None.0 {w}" for w in once]


def test_programs_prepared_at_their_first_use_are_shown(folder: Path, tmp_path: Path) -> None:
    with dielet.load(folder, threads=2) as fresh:
        prepared = []
        for _ in range(2):
            with Session(tmp_path) as session:
                fresh.generate("hi", max_new_tokens=2, temperature=0)
            names = [s.name for s in read(session.files[0]).slices if s.category == "Host"]
            prepared.append(sum("prepare_program" in name for name in names))
    assert prepared == [3, 0]  # prefill, head, decode


def test_a_second_session_starts_clean(model: Model, tmp_path: Path) -> None:
    session = Session(tmp_path)
    counts = []
    for _ in range(2):
        with session:
            model.generate("hi", max_new_tokens=2, temperature=0)
        counts.append(session.summary().commands)
        trace = read(session.files[0])
        assert min((parse(s.name) or pytest.fail()).sequence for s in trace.commands()) == 0
    model.generate("hi", max_new_tokens=2)  # in no session: nobody hears of it
    assert counts[0] == counts[1]
    assert len(list(tmp_path.iterdir())) == 2 * 3


def test_sessions_do_not_nest(model: Model, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        with pytest.raises(UsageError, match="running already"):
            Session(tmp_path).start()
        with pytest.raises(UsageError, match="running already"):
            session.start()
        with pytest.raises(UsageError, match="not been stopped"):
            session.summary()
        model.generate("hi", max_new_tokens=1)
    assert session.summary().executions == 1
    with pytest.raises(UsageError, match="not running"):
        session.stop()


def test_nothing_recorded_leaves_no_files(model: Model, tmp_path: Path) -> None:
    with Session(tmp_path / "out") as session:
        pass
    assert session.files == [] and list((tmp_path / "out").iterdir()) == []
    assert session.summary().commands == 0


def test_bad_arguments(tmp_path: Path) -> None:
    for bad in ({"prefix": "a/b"}, {"prefix": ""}, {"memory": 10}, {"memory": "x"}, {"disk": -1}):
        with pytest.raises(UsageError):
            Session(tmp_path, **bad)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(DieletError, match="cannot be made") as caught:
        Session(tmp_path / "file" / "out").start()
    assert not isinstance(caught.value, UsageError)  # the command line was right


def test_prefix_single_files_and_compression(model: Model, tmp_path: Path) -> None:
    with Session(tmp_path, prefix="rbln", executions=False, compress=True) as session:
        model.generate("hi", max_new_tokens=2)
    (path,) = session.files
    assert path.name.startswith("rbln_")
    assert read(path).attributes["execution_count"] == 2


def test_large_files_are_compressed(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dielet.profiler import writer

    monkeypatch.setattr(writer, "PLAIN_COMMANDS", 100)
    for length, large in ((1, False), (6, True)):
        with Session(tmp_path / str(length)) as session:
            model.generate("hi", max_new_tokens=length, temperature=0)
        first, *singles = [COMPRESSED in path.read_bytes()[2:6] for path in session.files]
        assert (session.summary().commands > 100) == large == first
        assert not any(singles)
        read(session.files[0])


def test_models_that_must_not_be_profiled(folder: Path, tmp_path: Path) -> None:
    with (
        dielet.load(folder, threads=1, profiler=False) as private,
        dielet.load(folder, threads=1) as open_one,
        Session(tmp_path) as session,
    ):
        private.generate("hi", max_new_tokens=3)
        open_one.generate("hi", max_new_tokens=1)
    assert session.summary().executions == 1


def test_models_loaded_meanwhile_and_several_at_a_time(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    with Session(tmp_path) as session:
        model.generate("hi", max_new_tokens=2)
        with dielet.load(folder, threads=1) as other:
            other.generate("hi", max_new_tokens=2)
    trace = read(session.files[0])
    assert session.summary().executions == 4
    instances = {(parse(s.name) or pytest.fail()).instance for s in trace.commands()}
    assert instances == {0, 1, 3, 4}  # two decoders' batch sizes and one prefill each
    roots = [line for line in trace.tree() if line.startswith("  Device 0 (host, measured)")]
    assert len(roots) == 2


def test_answers_at_the_same_time(model: Model, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        threads = [
            threading.Thread(target=model.generate, args=("hi",), kwargs={"max_new_tokens": 8})
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert session.summary().executions == 24
    trace = read(session.files[0])
    assert len([s for s in trace.slices if s.name.endswith("_detokenize_0")]) == 24


def test_batches_are_instances_of_their_own(model: Model, tmp_path: Path) -> None:
    runtime = model.runtime
    states = [runtime.new_state() for _ in range(3)]  # type: ignore[attr-defined]
    for length, state in enumerate(states):
        runtime.forward(state, np.arange(2 + length, dtype=np.int32))
    with Session(tmp_path) as session:
        runtime.forward_batch(states, np.array([1, 2, 3], np.int32))  # type: ignore[attr-defined]
    trace = read(session.files[0])
    first = next(s for s in trace.slices if s.category == "Device Workload")
    assert first.name == "i2_0_Device Workload_0"
    assert (first.args["tokens"], first.args["valid"], first.args["past"]) == (3, 3, 4)


def test_a_forgotten_model_is_freed_after_the_session(folder: Path, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        model = dielet.load(folder, threads=1)
        model.generate("hi", max_new_tokens=1)
        gone = weakref.ref(model.runtime)
        del model
    gc.collect()
    assert gone() is None
    assert session.files


def test_a_session_that_begins_in_the_middle_of_an_answer(model: Model, tmp_path: Path) -> None:
    """What began before is left out, and with a decoder its head: times begin with the session."""
    ended = threading.Event()

    def talk() -> None:
        while not ended.is_set():
            model.generate("hi", max_new_tokens=20, temperature=0)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        sessions = [Session(tmp_path, executions=False) for _ in range(40)]
        for session in sessions:
            with session:
                ended.wait(0.01)
    finally:
        ended.set()
        thread.join()
    traces = [read(path) for session in sessions for path in session.files]
    assert len(traces) > 20
    for trace in traces:
        assert all(s.duration is not None and s.duration >= 0 for s in trace.slices)
        assert max(s.start + (s.duration or 0) for s in trace.slices) < 10**10
        runs = {s.name for s in trace.slices if s.category == "Device Workload"}
        heads = {name for name in runs if name.endswith("_1")}
        assert {name.removesuffix("_1") + "_0" for name in heads} <= runs


def test_what_began_before_a_session_is_left_out(model: Model, tmp_path: Path) -> None:
    """The same at a chosen moment: between the start of a decoder and the end of its head."""
    runtime = model.runtime
    run = type(runtime)._run
    session = Session(tmp_path)
    for during in ("decode", "head"):
        state = runtime.new_state()  # type: ignore[attr-defined]
        runtime.forward(state, np.arange(2, dtype=np.int32))

        def begin(self, tables, *args, during=during):  # type: ignore[no-untyped-def]
            observer = self.observer
            if tables.phase == during and session._recorder is None:
                team = self._team.run
                self._team.run = lambda *a: (team(*a), session.start())
                run(self, tables, *args)
                del self._team.run
                assert observer is None
                return
            run(self, tables, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(runtime), "_run", begin)
            runtime.forward(state, np.array([1], np.int32))
            runtime.forward(state, np.array([1], np.int32))
        session.stop()
        trace = read(session.files[0])
        runs = [s.name for s in trace.slices if s.category == "Device Workload"]
        assert runs == ["i1_0_Device Workload_0", "i1_0_Device Workload_1"]
        assert min(s.start for s in trace.slices) >= 0


def test_two_models_at_the_same_time(model: Model, folder: Path, tmp_path: Path) -> None:
    with dielet.load(folder, threads=1) as other, Session(tmp_path) as session:
        threads = [
            threading.Thread(target=each.generate, args=("hi",), kwargs={"max_new_tokens": 30})
            for each in (model, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert session.summary().executions == 60
    assert [path.stem.rsplit("_", 1)[1] for path in session.files[1:]] == [*map(str, range(60))]
    for path in session.files[1:]:
        trace = read(path)
        names = [s.name for s in trace.slices if s.category == "Device Workload"]
        assert [name.rsplit("_", 1)[1] for name in names] == ["0", "1"]
        assert any("detokenize" in s.name for s in trace.slices if s.category == "Host")


def test_a_relative_folder_is_that_of_the_start(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Session("out") as session:
        model.generate("hi", max_new_tokens=2)
        monkeypatch.chdir("elsewhere")
    assert session.files[0].parent == tmp_path / "out" and session.files[0].exists()
    with Session("here") as session:
        model.generate("hi", max_new_tokens=2)
    assert session.files[0].parent == Path("here") and session.files[0].exists()


def test_a_model_loaded_by_a_relative_path_is_known_from_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with dielet.load(folder.name, threads=1) as model, Session(tmp_path) as session:
        model.generate("hi", max_new_tokens=2)
        monkeypatch.chdir(tmp_path)
    assert session.files[0].exists()


def test_host_slices_beyond_the_limit_are_counted(
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dielet.profiler import recorder
    from dielet.profiler import session as sessions

    monkeypatch.setattr(recorder, "HOST_MARKS", 8)
    monkeypatch.setattr(sessions, "HOST_MARKS", 8)
    with Session(tmp_path, executions=False) as session:
        model.generate("hi", max_new_tokens=10, temperature=0)
    found = session.summary()
    assert found.host_slices == 8
    assert found.dropped_host_slices == 2 + 10 * 3 - 8
    trace = read(session.files[0])
    assert trace.attributes["dropped_host_slice_count"] == found.dropped_host_slices
    assert "slices of the host's work were dropped" in capsys.readouterr().err
