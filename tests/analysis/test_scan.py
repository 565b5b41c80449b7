"""The generated reader finds what the general one finds, in every form that we write."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dielet.analysis import analyze
from dielet.analysis import scan as scanning
from dielet.analysis.api import analysis_of
from dielet.analysis.events import read, read_events
from dielet.analysis.open import table_of
from dielet.analysis.scan import Scan, Unfit, scan
from dielet.devices import load_device
from dielet.errors import DamagedFile, DieletError
from dielet.profiler import read_trace
from dielet.profiler.modelled import write_modelled
from dielet.profiler.writer import TraceWriter
from dielet.program.records import Execution, Lane
from dielet.simulator import simulate
from tests.analysis.make import toy
from tests.analysis.test_large import OF
from tests.models import SPECS
from tests.profiler.make import REBEL, serial, sources


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "compressed"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A modelled answer of three chunks and nine steps, over two rungs of the ladder."""
    folder = tmp_path_factory.mktemp("scan")
    found = simulate(
        next(iter(SPECS.values())), "rebel100", 40, 10,
        prefill_chunk=16, kv_ladder=(32, 64), max_seq_len=64,
    )  # fmt: skip
    written = write_modelled(
        [*found.executions()], load_device("rebel100"), folder, single=False,
        compress=request.param,
    )  # fmt: skip
    return written.files[0]


def test_both_readers_agree(trace: Path) -> None:
    events = read_events(trace)
    assert isinstance(events.source, Scan)
    fast = analysis_of(table_of(events), trace).found
    slow = analysis_of(table_of(read(read_trace(trace))), trace).found
    for name in fast.__struct_fields__:
        assert getattr(fast, name) == getattr(slow, name), name
    assert fast.coverage.complete and fast.coverage.resolved_waits == 1
    assert len(fast.steps) == 12 and len({s.program for s in fast.steps}) == 3


def test_blocks_may_be_small(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scan(trace)
    monkeypatch.setattr(scanning, "BLOCK", 1 << 16)
    parts = scan(trace)
    assert all(
        (parts.columns[n] == whole.columns[n]).all() for n in ("start", "step", "rest", "fact")
    )
    assert len(parts.blocks) > len(whole.blocks) or whole.blocks[-1].packed


def test_cut_off_files_are_read_as_far_as_they_go(trace: Path, tmp_path: Path) -> None:
    data = trace.read_bytes()
    cut = tmp_path / "cut.pb"
    for share in (0.5, 0.8, 0.97):
        cut.write_bytes(data[: int(len(data) * share)])
        found, other = scan(cut), read_trace(cut)
        assert found.truncated == other.truncated
        assert (found.columns["start"] == other.start).all()
        assert (found.columns["duration"] == other.duration).all()


def test_what_is_not_for_the_fast_reader(tmp_path: Path) -> None:
    path = toy().write(tmp_path / "a.pb")  # names within the events
    with pytest.raises(Unfit):
        scan(path)
    assert not isinstance(read_events(path).source, Scan)
    path.write_bytes(b"\x0a\x02\xff")
    assert scan(path).truncated
    path.write_bytes(b"[1, 2]")
    with pytest.raises(DamagedFile):
        scan(path)


def test_damage_inside_is_left_to_the_general_reader(trace: Path, tmp_path: Path) -> None:
    data = bytearray(trace.read_bytes())
    broken = tmp_path / "broken.pb"
    for place in range(len(data) // 3, len(data) // 3 + 60, 7):
        copy = bytearray(data)
        copy[place] ^= 0xFF
        broken.write_bytes(copy)
        try:
            expected = read_trace(broken)
        except DamagedFile:
            with pytest.raises(DamagedFile):
                read_events(broken)
            continue
        events = read_events(broken)
        assert len(events) <= len(expected) + 1 or not isinstance(events.source, Scan)


@pytest.mark.parametrize("seed", range(30))
def test_any_damage_is_an_error_or_an_analysis(trace: Path, tmp_path: Path, seed: int) -> None:
    rnd = random.Random(seed)
    data = bytearray(trace.read_bytes())
    for _ in range(rnd.choice([1, 2, 8])):
        at = rnd.randrange(len(data))
        if rnd.random() < 0.5:
            data[at] = rnd.randrange(256)
        elif rnd.random() < 0.5:
            data[at : at + 8] = b"\xff" * 8
        else:
            del data[at : at + rnd.randrange(1, 20)]
    path = tmp_path / "damaged.pb"
    path.write_bytes(data)
    try:
        assert analyze(path).coverage.slices > 0
    except DieletError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_commands_of_many_seconds(tmp_path: Path, compress: bool) -> None:
    """Their times have more bits than the columns of the others."""
    first, scale = serial(OF), 10**6
    lanes = tuple(
        Lane(lane.name, lane.commands, lane.start * scale, lane.end * scale) for lane in first.lanes
    )
    last = max(int(lane.end.max()) for lane in lanes)
    writer = TraceWriter(
        tmp_path, "long", sources(REBEL, 4), last, {}, commands=280, single=False, compress=compress
    )
    path = writer.write([Execution(OF, "modelled", 0, 0, 0, 0, 1, lanes)]).files[0]
    events, slow = read_events(path), read(read_trace(path))
    assert isinstance(events.source, Scan) and len(events.longs) >= 280
    every = np.arange(len(events))
    assert events.durations(every).max() > 1 << 31
    assert (events.durations(every) == slow.durations(every)).all()
    assert slow.durations(every).max() == events.durations(np.array([events.longest()]))
    assert analysis_of(table_of(events), path).found == analysis_of(table_of(slow), path).found


def test_an_analysis_survives_json(trace: Path) -> None:
    found = analysis_of(table_of(read_events(trace)), trace).found
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
