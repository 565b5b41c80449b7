"""Bad luck with the file of --prompt-cache: it is whole or absent, and the answer is the same."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.conftest import Dielet
from tests.faults.disk import chosen, full_from, killed_at
from tests.faults.test_disk import moments

pytestmark = pytest.mark.slow


def test_at_any_operation_of_keeping_a_prompt(dielet: Dielet, model: Path, tmp_path: Path) -> None:
    place = tmp_path / "kept"
    argv = ("run", model, "-p", "hello hello", "--max-new-tokens", 2, "--temperature", 0,
            "--prompt-cache", place)  # fmt: skip
    dielet(*argv)
    place.unlink()
    whole = dielet(*argv)
    assert whole.code == 0
    content = place.read_bytes()
    for k in chosen(whole.operations, 8):
        place.unlink(missing_ok=True)
        assert dielet(*argv, act=killed_at(k)).code == -signal.SIGKILL
        assert not place.exists() or len(place.read_bytes()) == len(content)
        again = dielet(*argv)
        assert again.code == 0 and "prompt cache" not in again.err and again.out == whole.out


def test_while_a_prompt_is_kept(dielet: Dielet, model: Path, tmp_path: Path) -> None:
    argv = ("run", model, "-p", "hello hello", "--max-new-tokens", 2, "--temperature", 0,
            "--prompt-cache")  # fmt: skip
    whole = tmp_path / "whole"
    dielet(*argv, tmp_path / "first")  # from here on all kernels are there
    (tmp_path / "first").unlink()
    for k in moments(dielet, *argv, whole):
        place = tmp_path / "kept"
        ended = dielet(*argv, place, act=full_from(k))
        assert "Traceback" not in ended.err and ended.code in (0, 1)
        if place.exists():
            assert place.read_bytes() == whole.read_bytes()
            place.unlink()
        else:
            assert "No space left" in ended.err  # a warning beside the answer, or why there is none
        assert [path.name for path in tmp_path.iterdir()] == ["whole"]
