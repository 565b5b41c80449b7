"""Killed at any moment: nothing half-written has its final name, and the next run works."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dielet.image import open_directory
from dielet.profiler.reader import read_trace
from tests.faults.conftest import SMALL, Dielet
from tests.faults.disk import chosen, killed_at

pytestmark = pytest.mark.slow


def test_at_any_operation_of_a_compilation(
    dielet: Dielet, checkpoint: Path, tmp_path: Path
) -> None:
    target = tmp_path / "m"
    argv = ("compile", checkpoint, "-o", target, *SMALL)
    whole = dielet(*argv)
    assert whole.code == 0
    for n, k in enumerate(chosen(whole.operations, 20)):
        there = bool(n % 2)  # every other time there is something to replace
        if not there and target.exists():
            for path in target.iterdir():
                path.unlink()
            target.rmdir()
        assert dielet(*argv, act=killed_at(k)).code == -signal.SIGKILL
        if there or target.exists():
            open_directory(target)
        assert dielet(*argv).code == 0
        open_directory(target)
        assert [path.name for path in tmp_path.iterdir()] == ["m"]  # what was left is gone


def test_at_any_operation_of_a_profiled_run(dielet: Dielet, model: Path, tmp_path: Path) -> None:
    argv = ("run", model, "-p", "hi", "--max-new-tokens", 3, "--temperature", 0, "--profile")
    dielet(*argv, tmp_path / "first")  # from here on all kernels are there
    whole = dielet(*argv, tmp_path / "whole")
    assert whole.code == 0
    for k in chosen(whole.operations, 6):
        folder = tmp_path / str(k)
        assert dielet(*argv, folder, act=killed_at(k)).code == -signal.SIGKILL
        for path in folder.glob("*.pb") if folder.exists() else ():
            if not path.name.startswith("."):
                assert not read_trace(path).truncated
    assert dielet(*argv, folder).code == 0


def test_at_any_time(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "m"
    argv = [sys.executable, "-m", "dielet", "compile", str(checkpoint), "-o", str(target), *SMALL]
    begin = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True)
    seconds = time.monotonic() - begin
    rng = random.Random(8)
    for _ in range(3):
        child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds * rng.uniform(0.3, 1.0))
        child.kill()
        child.wait()
        open_directory(target)
    subprocess.run(argv, check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
