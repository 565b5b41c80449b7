"""Sessions that last as long as a process, and what ends processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dielet
from tests.profiler.oracle import Trace, read

pytestmark = pytest.mark.usefixtures("usual_signals")

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
