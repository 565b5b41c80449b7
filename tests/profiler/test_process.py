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
    return run_code(SCRIPT, folder, how, cwd, **environment)


def run_code(
    code: str, folder: Path, how: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), how],
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


LEFT_OPEN = """
import sys, os, signal, time
import dielet
folder, how = sys.argv[1:]
model = dielet.load(folder, threads=1)
if how == "vendor":
    from dielet.compat import rbln_tracing
    rbln_tracing.start("out")
    print(rbln_tracing._window.output_dir, file=sys.stderr)
else:
    dielet.profile("out").start()
model.generate("hi", max_new_tokens=3, temperature=0)
if how == "error": raise ValueError("on purpose")
if hasattr(signal, how):
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "codes"),
    [("plain", (0,)), ("error", (1,)), ("vendor", (0,)), ("SIGINT", (-2, 130)),
     ("SIGTERM", (143,)), ("SIGHUP", (129,))],
)  # fmt: skip
def test_a_session_that_nobody_stopped(
    folder: Path, tmp_path: Path, how: str, codes: tuple[int, ...]
) -> None:
    ended = run_code(LEFT_OPEN, folder, how, tmp_path)
    assert ended.returncode in codes, ended.stderr
    assert merged(tmp_path / "out").attributes["execution_count"] == 3
    assert len(list((tmp_path / "out").iterdir())) == 4
    assert "profile written" in ended.stderr


WRITING = """
import sys, os, signal
import dielet
from dielet.profiler.writer import TraceWriter
folder, how = sys.argv[1:]
draw = TraceWriter._draw
def interrupted(*args):
    for _ in range(int(how[-1])): os.kill(os.getpid(), getattr(signal, how[:-1]))
    draw(*args)
TraceWriter._draw = interrupted
model = dielet.load(folder, threads=1)
with dielet.profile("out"):
    model.generate("hi", max_new_tokens=1, temperature=0)
"""


@pytest.mark.parametrize(("how", "codes"), [("SIGINT", (-2, 130)), ("SIGTERM", (143,))])
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_while_writing_waits_and_a_second_one_does_not(
    folder: Path, tmp_path: Path, how: str, codes: tuple[int, ...], times: int
) -> None:
    ended = run_code(WRITING, folder, f"{how}{times}", tmp_path)
    assert ended.returncode in codes, ended.stderr
    assert "once more gives it up" in ended.stderr
    assert len(list((tmp_path / "out").iterdir())) == (2 if times == 1 else 0)


IN_A_THREAD = """
import sys, os, signal, threading, time
import dielet
folder, how = sys.argv[1:]
number = getattr(signal, how.split()[0])
def work():
    with dielet.profile("out") as session:
        model.generate("hi", max_new_tokens=3, temperature=0)
        if how.endswith("a child's"):
            child = os.fork()
            if not child:
                time.sleep(9)
                os._exit(9)
            os.kill(child, number)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        elif "writing" in how:
            draw = session._write
            session._write = lambda *args: (os.kill(os.getpid(), number), draw(*args))[1]
        else:
            os.kill(os.getpid(), number)
            time.sleep(60)
    time.sleep(5 if "writing" in how else 0)
model = dielet.load(folder, threads=1)
if how.endswith("handled"): signal.signal(number, lambda *_: os._exit(7))
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [("SIGTERM", -15), ("SIGHUP", -1), ("SIGTERM while writing", -15),
     ("SIGTERM to a child's", 0), ("SIGTERM handled", 7)],
)  # fmt: skip
def test_signals_reach_sessions_of_other_threads(
    folder: Path, tmp_path: Path, how: str, code: int
) -> None:
    ended = run_code(IN_A_THREAD, folder, how, tmp_path)
    assert ended.returncode == code, ended.stderr
    if how.endswith("handled"):
        assert not list((tmp_path / "out").iterdir())
        return
    assert merged(tmp_path / "out").attributes["execution_count"] == 3
    assert len(list((tmp_path / "out").iterdir())) == 4
    assert ended.stdout == ("-15\n" if "child" in how else "")


FULL = """
import sys
import dielet
from dielet.errors import CapacityError
from dielet.profiler.file import _Sink
def full(self, data): raise OSError(28, "No space left on device")
_Sink.write = full
model = dielet.load(sys.argv[1], threads=1)
model.generate("hi", max_new_tokens=1, temperature=0)
"""


def test_a_full_disk_at_the_end_of_the_process_is_said_in_a_line(
    folder: Path, tmp_path: Path
) -> None:
    ended = run_code(FULL, folder, "", tmp_path, DIELET_PROFILER="1")
    assert ended.returncode == 0  # the program did what it was for
    (line,) = ended.stderr.splitlines()
    assert line.startswith("dielet: no profile was written: the disk is full")
    assert not list(tmp_path.glob("*.pb*"))
