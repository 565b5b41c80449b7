"""Long sessions: memory stays bounded, files say when they are too large, packets stay small."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dielet.profiler import session as sessions
from dielet.profiler.ring import Kind, Ring
from dielet.profiler.session import Session
from dielet.profiler.writer import PLAIN_COMMANDS, TraceWriter, Written
from dielet.program.records import Execution, Lane
from tests.profiler.make import REBEL, linear, program, serial, sources
from tests.profiler.test_writer import FOUR

OF = program(FOUR, [linear(n % 28, f"op.{n}", [n - 28] if n > 27 else []) for n in range(280)])
STEP = 10**10


def steps(count: int) -> Iterator[Execution]:
    first = serial(OF)
    for n in range(count):
        lanes = tuple(
            type(lane)(lane.name, lane.commands, lane.start + n * STEP, lane.end + n * STEP)
            for lane in first.lanes
        )
        yield Execution(OF, "modelled", 0, n, 0, 0, 1, lanes)


def peak_of(folder: Path, count: int) -> int:
    writer = TraceWriter(folder, str(count), sources(REBEL, 4), count * STEP, {},
                         commands=0, single=False)  # fmt: skip
    tracemalloc.start()
    writer.write(steps(count))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_writing_more_takes_no_more_memory(tmp_path: Path) -> None:
    few, many = peak_of(tmp_path, 100), peak_of(tmp_path, 500)
    assert many < 1.1 * few
    assert (tmp_path / "500.pb").stat().st_size > 20_000_000 > many / 2


@pytest.mark.parametrize("spread", [0, 300_000])
def test_large_files_are_compressed_by_themselves(tmp_path: Path, spread: int) -> None:
    """At most 50 bytes per slice, also when no two executions take the same time."""
    rng = np.random.default_rng(0)
    runs = []
    for run in steps(PLAIN_COMMANDS // len(OF.commands) + 1):
        late = [np.cumsum(rng.integers(0, spread + 1, len(lane.start))) for lane in run.lanes]
        lanes = tuple(
            Lane(lane.name, lane.commands, lane.start + delay, lane.end + delay)
            for lane, delay in zip(run.lanes, late, strict=True)
        )
        runs.append(replace(run, lanes=lanes))
    sizes = []
    for given in (runs, runs[:-1]):
        folder = tmp_path / str(len(given))
        folder.mkdir()
        commands = len(given) * len(OF.commands)
        writer = TraceWriter(
            folder, "t", sources(REBEL, 4), len(runs) * STEP, {}, commands=commands
        )
        done = writer.write(given)
        sizes.append(done.files[0].stat().st_size / commands)
        assert all(path.stat().st_size > 100 * len(OF.commands) for path in done.files[1:])
    assert sizes[0] < 50 < 150 < sizes[1]


def test_too_large_for_a_browser(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    session = Session(tmp_path)
    session._summary = sessions.Summary(1, 1, 0, 0, 0, 0, 0.0, 0.0, 0, 1)
    session._warn(Written([tmp_path / "x.pb"], nbytes=sessions.BROWSER_BYTES))
    assert capsys.readouterr().err == ""
    session._warn(Written([tmp_path / "x.pb"], nbytes=2 * sessions.BROWSER_BYTES))
    err = capsys.readouterr().err
    assert "x.pb has 1.0 GB" in err and "trace_processor_shell --httpd" in err


@pytest.mark.parametrize("disk", [0, 1 << 15, 1 << 22])
def test_the_ring_forgets_the_oldest(tmp_path: Path, disk: int) -> None:
    ring = Ring(1 << 14, disk, tmp_path)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 300, 400).tolist()
    for n, length in enumerate(lengths):
        ring.append(Kind(length, 1, [np.full(length, n), np.arange(length)]), n)
    kept = [record.copy() for record in ring]
    numbers = [int(record[2]) for record in kept]
    assert numbers == list(range(400 - len(kept), 400))
    assert len(ring) == len(kept) and ring.dropped == 400 - len(kept)
    assert ring.lost == sum(lengths[: ring.dropped]) and ring.weight == sum(lengths[ring.dropped :])
    for record in kept:
        n, length = int(record[2]), int(record[1])
        assert len(record) == 3 + 2 * length
        assert (record[3 : 3 + length] == n).all()
        assert (record[3 + length :] == np.arange(length)).all()
    assert (ring.dropped == 0) == (disk == 1 << 22)
    assert list(tmp_path.iterdir()) == []  # the file on disk has no name
    ring.close()
    assert list(ring) == []


def test_a_record_larger_than_a_block(tmp_path: Path) -> None:
    ring = Ring(1 << 13, 0, tmp_path)
    for n in range(20):
        ring.append(Kind(1, 1, [np.full(2000 if n % 3 == 0 else 10, n)]), n)
    assert [int(r[2]) for r in ring] == list(range(20 - len(ring), 20))
    assert len(ring) >= 2
