"""`dielet run --profile` on a real model, as people type it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.profiler.oracle import COMPRESSED
from tests.profiler.talking import talking
from tests.profiler.test_process import env, merged


def test_run_with_profile(tmp_path: Path) -> None:
    folder = talking(tmp_path / "model")
    ended = subprocess.run(
        [sys.executable, "-m", "dielet.cli.main", "run", str(folder), "-p", "hi", "--json",
         "--max-new-tokens", "3", "--profile", "out", "--compress"],
        cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    files = json.loads(ended.stdout)["profile"]
    assert [Path(f).parent.name for f in files] == ["out"] * 4
    assert merged(tmp_path / "out").attributes["execution_count"] == 3
    assert all(Path(tmp_path / f).read_bytes()[2:6].count(COMPRESSED) for f in files)
    assert "ui.perfetto.dev" in ended.stderr


def test_simulate_with_profile(tmp_path: Path) -> None:
    config = Path(__file__).parents[1] / "simulator/configs/qwen3-1.7b.json"
    ended = subprocess.run(
        [sys.executable, "-m", "dielet.cli.main", "simulate", str(config), "--device", "rebel100",
         "--prompt-tokens", "5", "--new-tokens", "2", "--json", "--profile", "out"],
        cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["device"] == "rebel100"
    trace = merged(tmp_path / "out")
    assert trace.attributes["device_clock"] == "modelled"
    assert trace.attributes["execution_count"] == 2


def test_terminated_while_answering(tmp_path: Path) -> None:
    """SIGTERM ends the command line as Ctrl-C does: the trace is written all the same."""
    folder = talking(tmp_path / "model", layers=2)
    process = subprocess.Popen(
        [sys.executable, "-m", "dielet.cli.main", "run", str(folder), "--profile", "out"],
        cwd=tmp_path, env=env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.read(1)  # it is answering, or waits for the next message
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "profile: " in err, err
    assert merged(tmp_path / "out").attributes["execution_count"] >= 1
