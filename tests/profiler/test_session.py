"""Sessions on a real model: what is profiled, when, what is left, and who may profile at a time."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dielet
from dielet import profiling
from dielet.errors import CapacityError, UsageError
from dielet.generate.session import Model
from dielet.profiler import session as sessions
from dielet.profiler.names import parse
from dielet.profiler.plan import Facts
from dielet.profiler.session import Session
from dielet.program import Program
from tests.profiler.oracle import Trace, read
from tests.profiler.talking import talking


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("model") / "m", chiplets=2, weights="int8",
                   batch_sizes=(1, 3))  # fmt: skip


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with dielet.load(folder, threads=2) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    yield
    assert sessions._running is None
    assert profiling.listener is None and profiling.on_load is None
    assert all(runtime.observer is None for runtime in profiling.runtimes)


def work(trace: Trace) -> list[str]:
    """What the host did, in order."""
    names = [parse(s.name) for s in trace.slices if s.category == "Host"]
    return [f"{n.instance}.{n.sequence} {n.layer}" for n in names if n]


def programs_of(model: Model, trace: Trace) -> Counter[str]:
    return Counter(s.args["program"] for s in trace.slices if s.category == "Device Workload")


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


def test_counts_names_arrows_and_attributes(model: Model, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        model.generate("a b c", max_new_tokens=5, temperature=0)
    trace = read(session.files[0])
    found = session.summary()
    programs = {name: model.runtime.files.program(name) for name in programs_of(model, trace)}
    pieces = {name: sum(map(len, model.runtime._tables(name).pieces)) for name in programs}
    runs = programs_of(model, trace)
    assert sum(runs[name] * pieces[name] for name in runs) == len(trace.commands())
    assert len(trace.commands()) == found.commands == trace.attributes["command_count"]
    assert sum(runs[name] * arrows(program) for name, program in programs.items()) == found.flows
    assert len(trace.edges()) == found.flows
    decoders = [s for s in trace.slices if s.name.endswith("Device Workload_0")]
    assert found.executions == trace.attributes["execution_count"] == len(decoders)
    assert found.dropped == trace.attributes["dropped_command_count"] == 0
    assert found.host_slices == len(work(trace))
    assert trace.attributes["device"] == "host"
    assert trace.attributes["device_clock"] == "measured"
    assert trace.attributes["dielet_version"] == dielet.__version__
    assert len(trace.attributes["device_sha256"]) == 64
    wall = trace.attributes["run_ns"]
    assert 0 < wall <= trace.attributes["run_and_write_ns"]
    layers = {(parse(s.name) or pytest.fail()).layer for s in trace.commands()}
    assert layers == {c.layer for program in programs.values() for c in program.commands}
    for a, b in trace.edges():
        assert a.end <= b.start, "nothing starts before what it depends on has ended"
    first, last = trace.commands()[0].start, max(s.end for s in trace.commands())
    assert first > 0 and last <= wall


def arrows(program: Program) -> int:
    from dielet.profiler.describe import direct_dependencies

    return sum(map(len, direct_dependencies(program, frozenset())))


def test_times_are_those_of_the_stamps(model: Model, tmp_path: Path) -> None:
    """The last execution's stamps are still in the runtime's tables."""
    with Session(tmp_path) as session:
        model.generate("hi", max_new_tokens=3, temperature=0)
        name = model.runtime._programs["decode_1_kv64"].program.name
        stamps = [part.copy() for part in model.runtime._tables(name).stamps]
    trace = read(session.files[-1])
    slices = sorted((s.start, s.duration) for s in trace.commands() if "_W0_" in s.name)
    ticks = np.concatenate(stamps)
    order = np.argsort(ticks[:, 0], kind="stable")
    durations = (ticks[:, 1] - ticks[:, 0])[order]
    measured = np.array([duration for _, duration in slices])
    rate = measured.sum() / durations.sum()
    assert 0.05 < rate < 20  # ns per tick
    np.testing.assert_allclose(np.sort(measured), np.sort(durations) * rate, atol=2)


@pytest.mark.parametrize(("chiplets", "threads"), [(1, 1), (1, 2), (3, 2), (4, 2), (2, 3)])
def test_any_number_of_chiplets_on_any_number_of_workers(
    tmp_path: Path, chiplets: int, threads: int
) -> None:
    """Slices never overlap on a track, and the parts of a command add up to it."""
    folder = talking(tmp_path / "m", chiplets=chiplets, weights="int8")
    with dielet.load(folder, threads=threads) as loaded, Session(tmp_path / "out") as session:
        loaded.generate("hi", max_new_tokens=3, temperature=0)
    trace = read(session.files[-1])
    groups = {line.strip() for line in trace.tree() if "Chiplet" in line}
    assert groups == ({f"Chiplet {n}" for n in range(chiplets)} if chiplets > 1 else set())
    program = loaded.runtime.files.program("decode_1_kv64")
    names = Counter(s.name for s in trace.commands() if "_W0_" in s.name)
    layers = Counter(c.layer for c in program.commands)
    for name, count in names.items():
        layer = (parse(name) or pytest.fail()).layer
        assert layers[layer] <= count <= layers[layer] * max(threads, 1)
    assert len(trace.edges()) == sum(arrows(loaded.runtime.files.program(n))
                                     for n in programs_of(loaded, trace))  # fmt: skip


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
    for bad in ({"prefix": "a/b"}, {"prefix": ""}, {"memory": 10}, {"disk": -1}):
        with pytest.raises(UsageError):
            Session(tmp_path, **bad)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        Session(tmp_path / "file" / "out").start()


def test_prefix_single_files_and_compression(model: Model, tmp_path: Path) -> None:
    with Session(tmp_path, prefix="rbln", executions=False, compress=True) as session:
        model.generate("hi", max_new_tokens=2)
    (path,) = session.files
    assert path.name.startswith("rbln_")
    assert read(path).attributes["execution_count"] == 2


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


def test_the_buffer_keeps_the_newest_and_says_so(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(tmp_path, memory=1 << 16, disk=0) as session:
        model.generate("hi", max_new_tokens=60, temperature=0)
    found = session.summary()
    assert found.dropped > 0 and found.dropped_executions > 0
    trace = read(session.files[0])
    assert trace.attributes["dropped_command_count"] == found.dropped
    sequences = [(parse(s.name) or pytest.fail()).sequence for s in trace.commands()]
    assert max(sequences) == 58 and min(sequences) > 0
    assert f"{found.dropped:,} commands" in capsys.readouterr().err
    assert "dropped" in str(found)
    with Session(tmp_path / "all", memory=1 << 16) as other:  # the rest goes to disk
        model.generate("hi", max_new_tokens=60, temperature=0)
    whole = other.summary()
    assert whole.dropped == 0 and whole.commands == found.commands + found.dropped
    assert sorted(p.suffix for p in (tmp_path / "all").iterdir()) == [".pb"] * 61


def test_a_full_disk_while_recording_is_an_overflow(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dielet.profiler import ring

    def full(folder: Path | None) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ring, "_nameless", full)
    with Session(tmp_path, memory=1 << 16) as session:
        model.generate("hi", max_new_tokens=60, temperature=0)
    assert session.summary().dropped > 0


def test_a_full_disk_while_writing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dielet.profiler.file import _Sink

    room = [60_000]
    write = _Sink.write

    def limited(self: _Sink, data: bytes) -> None:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(_Sink, "write", limited)
    session = Session(tmp_path).start()
    model.generate("hi", max_new_tokens=6)
    with pytest.raises(CapacityError, match="disk is full"):
        session.stop()
    left = list(tmp_path.iterdir())
    assert not [path for path in left if path.suffix != ".pb"]
    for path in left:  # those of executions that were complete
        assert "_W0_" in read(path).commands()[0].name
        assert path.name.count("_") == 3


def test_an_exception_leaves_what_there_is(model: Model, tmp_path: Path) -> None:
    def stop(piece: str) -> None:
        raise KeyboardInterrupt

    session = Session(tmp_path)
    with pytest.raises(KeyboardInterrupt), session:
        model.generate("hi", max_new_tokens=50, callback=stop)
    assert 1 <= session.summary().executions < 50
    read(session.files[0])


def test_a_forgotten_model_is_freed_after_the_session(folder: Path, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        model = dielet.load(folder, threads=1)
        model.generate("hi", max_new_tokens=1)
        gone = weakref.ref(model.runtime)
        del model
    gc.collect()
    assert gone() is None
    assert session.files


SCRIPT = """
import sys, os, signal, time
import dielet
folder, how = sys.argv[1:]
model = dielet.load(folder, threads=1, profiler=True if how == "argument" else None)
model.generate("hi", max_new_tokens=3, temperature=0)
if how == "window":
    with dielet.profile("win") as session:
        model.generate("hi", max_new_tokens=2, temperature=0)
    model.generate("hi", max_new_tokens=2, temperature=0)
if how == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
if how == "terminate":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
if how == "error":
    raise ValueError("on purpose")
if how == "slow":
    print("ready", flush=True)
    for piece in model.stream("hi", max_new_tokens=100): time.sleep(0.05)
"""


def script(
    folder: Path, how: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), how],
        cwd=cwd, env=env(**environment), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def env(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DIELET_PROFILER")}
    return clean | {"PYTHONPATH": os.pathsep.join([str(Path(dielet.__file__).parents[1])])} | more


def merged(folder: Path) -> Trace:
    (path,) = [p for p in folder.glob("*.pb") if p.name.count("_") == 2]
    return read(path)


@pytest.mark.parametrize(
    ("how", "code"),
    [("plain", 0), ("interrupt", -2), ("terminate", 143), ("error", 1)],
)
def test_the_environment_profiles_the_process(
    folder: Path, tmp_path: Path, how: str, code: int
) -> None:
    ended = script(folder, how, tmp_path, DIELET_PROFILER="1", DIELET_PROFILER_DIR="out")
    assert ended.returncode in (code, 130 if code == -2 else code), ended.stderr
    trace = merged(tmp_path / "out")
    assert trace.attributes["execution_count"] == 3
    assert len(list((tmp_path / "out").iterdir())) == 4
    assert "profile written" in ended.stderr


def test_the_argument_of_load_profiles_from_then_on(folder: Path, tmp_path: Path) -> None:
    ended = script(folder, "argument", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert merged(tmp_path).attributes["execution_count"] == 3


def test_a_window_makes_the_session_of_the_process_give_way(folder: Path, tmp_path: Path) -> None:
    ended = script(folder, "window", tmp_path, DIELET_PROFILER="1")
    assert ended.returncode == 0, ended.stderr
    assert not list(tmp_path.glob("*.pb"))
    assert merged(tmp_path / "win").attributes["execution_count"] == 2


def test_a_switch_that_is_neither_on_nor_off(folder: Path, tmp_path: Path) -> None:
    ended = script(folder, "plain", tmp_path, DIELET_PROFILER="maybe")
    assert ended.returncode == 1 and "DIELET_PROFILER is 'maybe'" in ended.stderr
    assert script(folder, "plain", tmp_path, DIELET_PROFILER="0").returncode == 0
    assert not list(tmp_path.glob("*.pb"))


def test_terminated_in_the_middle_of_an_answer(folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), "slow"],
        cwd=tmp_path, env=env(DIELET_PROFILER="1"), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    process.stdout.close()
    assert merged(tmp_path).attributes["execution_count"] > 3


def test_facts_are_those_of_the_program(model: Model) -> None:
    """What commands move and compute, for the 64-wide tiny model, by hand."""
    from dielet.devices import load_device
    from dielet.profiler.tracks import Place

    program = model.runtime.files.program("decode_1_kv64")
    place = Place(load_device("host"), "measured", 2)
    facts = Facts.of(program, place, None)
    terms = facts.work.terms(np.array([1.0]), np.array([9.0]))
    dram = facts.work.memories.index("dram")
    moved = terms @ facts.work.moved[:, :, dram]
    ops = terms @ facts.work.ops
    kinds = [c.kind for c in program.commands]
    attention = kinds.index("attention")
    heads, D = 1, 32  # of this chiplet: one of two KV heads, with two query heads
    assert moved[0, attention] == 2 * 10 * heads * D * 2  # K and V, 10 positions, bf16
    assert ops[0, attention] == 4 * 10 * 2 * D
    linear = kinds.index("linear")
    assert ops[0, linear] == 2 * 64 * 64  # q_proj: half of 128 outputs


def test_programs_for_an_npu_run_here_are_drawn_as_what_they_are(tmp_path: Path) -> None:
    """Functional runs: the engines of the device, the clock of this machine."""
    folder = talking(tmp_path / "m", device="rebel100", weights="bf16")
    with dielet.load(folder, threads=2) as npu, Session(tmp_path / "out") as session:
        npu.generate("hi", max_new_tokens=3, temperature=0)
    trace = read(session.files[0])
    assert trace.tree()[0] == "Device 0 (rebel100, run on the host, measured)"
    assert trace.attributes["device"] == "rebel100"
    assert trace.attributes["device_clock"] == "measured"
    assert {"Neural DMA", "Task DMA", "External HDMA"} <= {s.category for s in trace.commands()}
    assert not any(s.flows for s in trace.commands() if s.category == "Neural DMA")
    assert session.summary().commands == len(trace.commands())


@pytest.mark.parametrize(("device", "chiplets"), [("host", 3), ("rebel100", 4)])
def test_bytes_and_operations_are_those_of_the_entries(
    tmp_path: Path, device: str, chiplets: int
) -> None:
    """The columns against each command's own cost, at several bindings."""
    from dataclasses import replace

    from dielet.image import open_directory
    from dielet.profiler.work import Work
    from dielet.program.commands import ENTRIES, Run
    from tests.models import QWEN, compiled

    compiled(tmp_path / "m", QWEN, device=device, chiplets=chiplets, weights="bf16",
             batch_sizes=(1, 3))  # fmt: skip
    files = open_directory(tmp_path / "m")
    for name in ("prefill_16_kv64", "decode_1_kv64", "decode_3_kv64", "head_1"):
        program = files.program(name)
        for past, valid in ((0, 1), (31, 3), (40, 16), (63, 1)):
            rows = min(valid, program.tokens)
            batch = program.phase == "decode" and program.tokens > 1
            run = Run(past, rows, (past,) * rows if batch else ())
            for skips in (True, False):
                described = replace(files.device(), padding="skipped" if skips else "computed")
                work = Work(program, described, None)
                terms = work.terms(np.array([float(rows)]), np.array([float(past)]))
                moved = terms @ work.moved.sum(axis=2)
                ops = terms @ work.ops
                for number, command in enumerate(program.commands):
                    cost = ENTRIES[command.kind].cost(command, run if skips else None)
                    exact = sum(cost.reads.values()) + sum(cost.writes.values())
                    slack = 0.0
                    if command.attrs.get("extent") == "positions":  # copied in whole panels
                        slack = sum(32 * o.region.nbytes / program.capacity
                                    for o in command.operands)  # fmt: skip
                    assert abs(moved[0, number] - exact) <= slack + 1e-6 * exact, command.kind
                    expected = sum(cost.ops.values())
                    assert ops[0, number] == pytest.approx(expected, rel=1e-9), command.kind
