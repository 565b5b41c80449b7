"""A process that opens and closes models for a long time does not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiler.talking import talking

ROOT = Path(__file__).parents[2]
WARM, CYCLES = 20, 200
MOST_BYTES = 4_000_000  # 20 kB a cycle; the smallest thing that a runtime maps is larger


@pytest.mark.slow
def test_200_cycles_without_growth(tmp_path: Path) -> None:
    talking(tmp_path / "m", chiplets=2, weights="int8")
    command = [sys.executable, "-m", "tests.generate.cycles", tmp_path / "m", tmp_path / "cache"]
    ended = subprocess.run(
        [*map(str, command), str(WARM), str(CYCLES)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    before, after = map(json.loads, ended.stdout.splitlines())
    assert after["resident"] - before["resident"] < MOST_BYTES, (before, after)
    for name in ("threads", "tasks", "files"):
        assert after[name] == before[name], (name, before, after)
    assert after["mappings"] < before["mappings"] + 10, (before, after)  # Python's own come and go
