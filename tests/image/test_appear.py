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
    while len(list(tmp_path.glob(".m.*/*/file"))) < 2 and time.monotonic() < deadline:
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


def _abandoned(target: Path) -> Path:
    """What a process leaves that is killed while it removes what it had replaced."""
    folder = target.with_name(f".{target.name}.dielet-abcd1234")
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "half a model").touch()
    (folder / appear._MARK).touch()
    return folder


@pytest.mark.parametrize("name", ["vim", "*", "[a-z]*"])
def test_only_what_carries_our_mark_is_swept(tmp_path: Path, name: str) -> None:
    mine = [".vim.backup", ".git.old", ".vim.dielet-mine", ".*.dielet-mine", f".{name}.x"]
    for folder in mine:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "precious").touch()
        os.utime(tmp_path / folder, (0, 0))
    left, empty = _abandoned(tmp_path / name), tmp_path / f".{name}.dielet-empty"
    empty.mkdir()
    appear._sweep(tmp_path / name)
    assert not left.exists() and not empty.exists()
    assert all((tmp_path / folder / "precious").exists() for folder in mine)


def test_a_file_that_somebody_put_into_a_workshop_stays(tmp_path: Path) -> None:
    left = _abandoned(tmp_path / "m")
    (left / "precious").touch()
    appear._sweep(tmp_path / "m")
    assert sorted(names(left)) == [appear._MARK, "precious"]


def test_a_target_that_was_aside_when_its_process_was_killed_comes_back(tmp_path: Path) -> None:
    left = _abandoned(tmp_path / "m")
    (left / "old").mkdir()
    (left / "old" / "weights").touch()
    appear._sweep(tmp_path / "m")
    assert names(tmp_path) == ["m"] and names(tmp_path / "m") == ["weights"]


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
