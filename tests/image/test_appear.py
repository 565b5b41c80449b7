"""Directories appear whole or not at all, also beside other processes and after a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from dielet.checkpoint.random import RandomCheckpoint
from dielet.errors import DieletError
from dielet.image import appear, compile_checkpoint, open_directory
from dielet.image.appear import appearing
from tests.models import QWEN, options


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_it_appears_at_the_end_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "m"
    for content in ("one", "two"):
        with appearing(target) as directory:
            (directory / "file").write_text(content)
            assert not target.exists() or (target / "file").read_text() == "one"
        assert names(tmp_path) == ["m"] and (target / "file").read_text() == content
        assert names(target) == ["file"]


def test_without_the_exchange_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appear, "_exchange", appear._exchange_in_steps)
    test_it_appears_at_the_end_and_replaces(tmp_path)


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), appearing(tmp_path / "m") as directory:
        (directory / "file").write_text("half")
        raise KeyError
    assert names(tmp_path) == []


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DieletError, match=r"cannot write .*file/m: .*; nothing was left"),
        appearing(tmp_path / "file" / "m"),
    ):
        pass


def _work_for_ever(target: Path) -> None:
    with appearing(target) as directory:
        (directory / "file").write_text("half")
        time.sleep(60)


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_makes_is_not(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work_for_ever, args=(tmp_path / "m",)) for _ in range(2)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob(".m.*/file"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(workers[0].pid or 0, signal.SIGKILL)
    workers[0].join()
    assert len(names(tmp_path)) == 2
    with appearing(tmp_path / "m"):
        assert len(names(tmp_path)) == 2  # the living one's, and ours
    assert len(names(tmp_path)) == 2
    workers[1].kill()
    workers[1].join()
    with appearing(tmp_path / "m"):
        pass
    assert names(tmp_path) == ["m"]


def _compile(target: Path) -> None:
    compile_checkpoint(RandomCheckpoint(QWEN, 7), target, options())
    sys.exit(0)


def test_many_processes_may_compile_one_target(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_compile, args=(tmp_path / "m",)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert names(tmp_path) == ["m"]
    open_directory(tmp_path / "m")
