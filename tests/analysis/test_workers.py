"""Which worker did a command: as the trace says, as the host deals them, or a guess."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dielet
from dielet.analysis import analyze
from dielet.analysis.open import open_table
from dielet.analysis.table import Table
from dielet.profiler.session import Session
from tests.analysis.make import DEVICE, Maker
from tests.profiler.oracle import read
from tests.profiler.talking import programs_of, talking

GUESS = "which worker did what is a guess"


def cores(chiplet: int, *below: str) -> tuple[str, ...]:
    return DEVICE, f"Chiplet {chiplet}", "Cores", *below


def two_chiplets(said: dict[int, int], **attributes: int | str) -> Maker:
    """Chiplets on a worker each, whose commands never overlap, since the machine was busy."""
    t = Maker(device_clock="measured", dielet_version="0", **attributes)
    for chiplet, start in ((0, 0), (1, 50)):
        args = {"worker": said[chiplet]} if chiplet in said else {}
        t.slice(cores(chiplet), "i0_0_W0_a_0", start, start + 10 + chiplet, **args)
    return t


def busy(path: Path) -> dict[str, int]:
    return {e.engine: e.busy_ns for e in analyze(path).engines if e.scope == "run"}


def is_guess(path: Path) -> bool:
    return any(GUESS in note.text for note in analyze(path).coverage.notes)


def test_what_the_trace_says_comes_first(tmp_path: Path) -> None:
    t = two_chiplets({0: 1, 1: 0}, peaks_of_each="worker", peaks_count=2)
    path = t.write(tmp_path / "a.pb")
    assert busy(path) == {"worker 0": 11, "worker 1": 10}
    assert not is_guess(path)


def test_older_traces_are_dealt_as_the_host_does(tmp_path: Path) -> None:
    path = two_chiplets({}, peaks_of_each="worker", peaks_count=2).write(tmp_path / "a.pb")
    assert busy(path) == {"worker 0": 10, "worker 1": 11}
    assert not is_guess(path)


def test_a_guess_is_called_one(tmp_path: Path) -> None:
    """Nothing says how many workers there were, or the tracks hold what none would be dealt."""
    path = two_chiplets({}).write(tmp_path / "a.pb")
    assert busy(path) == {"worker 0": 21}
    assert is_guess(path)
    more = two_chiplets({}, peaks_of_each="worker", peaks_count=2)
    more.slice(cores(0), "i0_0_W0_alone_0", 100, 110)  # both would have a part of it
    assert is_guess(more.write(tmp_path / "b.pb"))


def without_arguments(path: Path, to: Path) -> Path:
    """The same trace as versions wrote it that did not name the worker."""
    data = path.read_bytes()
    assert b"\x12\x06worker" in data
    to.write_bytes(data.replace(b"\x12\x06worker", b"\x12\x06lacked"))
    return to


def by_slice(table: Table) -> list[tuple[object, ...]]:
    """Of every command when it was, on which track, and whose it is said to be."""
    found: list[tuple[object, ...]] = []
    for kind in table.kinds:
        for n, (lane, who) in enumerate(
            zip(kind.pieces.lane.tolist(), kind.pieces.executor.tolist(), strict=True)
        ):
            worker = int(table.executors[who].engine.removeprefix("worker "))
            place = table.lanes[lane].chiplet, table.lanes[lane].name
            times = zip(kind.start[:, n].tolist(), kind.end[:, n].tolist(), strict=True)
            found += [(*time, *place, worker) for time in times]
    return sorted(found, key=str)


@pytest.mark.parametrize(
    ("device", "chiplets", "threads"),
    [("host", 1, 2), ("host", 2, 2), ("host", 4, 2), ("host", 2, 3), ("host", 3, 2),
     ("rebel100", 4, 2)],
)  # fmt: skip
def test_traces_of_this_machine(tmp_path: Path, device: str, chiplets: int, threads: int) -> None:
    """The argument is the worker whose table has the command; of older traces this machine's
    programs give the same, and those for a device, with more engines, are called a guess."""
    folder = talking(tmp_path / "m", device=device, chiplets=chiplets, weights="bf16")
    with dielet.load(folder, threads=threads) as model:
        with Session(tmp_path / "out", compress=False) as session:
            model.generate("hi", max_new_tokens=3, temperature=0)
        tables = {
            name: model.runtime._tables(name) for name in programs_of(read(session.files[-1]))
        }
    counts = np.zeros(threads, np.int64)
    for table in tables.values():
        counts += [len(pieces) for pieces in table.pieces]
    last = read(session.files[-1])
    workers = np.array([int(str(s.args["worker"])) for s in last.commands()])
    assert np.bincount(workers, minlength=threads).tolist() == counts.tolist()
    for piece in last.commands():
        name = last.tracks[piece.track].name
        assert not name.startswith("worker ") or name == f"worker {piece.args['worker']}"
    path = session.files[0]
    told, older = open_table(path), open_table(without_arguments(path, tmp_path / "old.pb"))
    assert not told.guessed
    assert older.guessed == (device != "host")
    assert older.guessed or by_slice(told) == by_slice(older)
    in_all = np.bincount([int(str(s.args["worker"])) for s in read(path).commands()])
    found = np.bincount([int(str(row[-1])) for row in by_slice(told)])
    assert found.tolist() == in_all.tolist()
