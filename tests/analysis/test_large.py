"""Large traces: memory stays below three times the file, compressed or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dielet.profiler.writer import TraceWriter
from dielet.program.records import Execution, Lane
from tests.profiler.make import REBEL, linear, program, serial, sources
from tests.profiler.test_writer import FOUR

OF = program(FOUR, [linear(n % 28, f"op.{n}", [n - 28] if n > 27 else []) for n in range(280)])
STEP = 10**10
PEAK = """
import resource, sys
from dielet.analysis import analyze

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

analyze(sys.argv[1])
before = peak()
found = analyze(sys.argv[2])
print(found.coverage.commands, peak() - before)
"""


def steps(count: int) -> Iterator[Execution]:
    first = serial(OF)
    for n in range(count):
        lanes = tuple(
            Lane(lane.name, lane.commands, lane.start + n * STEP, lane.end + n * STEP)
            for lane in first.lanes
        )
        yield Execution(OF, "modelled", 0, n, 0, 0, 1, lanes)


def written(folder: Path, count: int, compress: bool) -> Path:
    writer = TraceWriter(
        folder, str(count), sources(REBEL, 4), count * STEP, {}, commands=count * 280,
        single=False, compress=compress,
    )  # fmt: skip
    return writer.write(steps(count)).files[0]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_memory(tmp_path: Path, compress: bool) -> None:
    count = 4000
    small, large = (written(tmp_path, n, compress) for n in (2, count))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(small), str(large)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    commands, peak = map(int, done.stdout.split())
    assert commands == count * 280
    assert peak < 3 * large.stat().st_size
