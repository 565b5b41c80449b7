"""A disk that is full at any moment: one line, exit code 1, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.image import open_directory
from dielet.profiler.reader import read_trace
from tests.faults.conftest import SMALL, Dielet, assert_one_line
from tests.faults.disk import chosen, full_from

pytestmark = pytest.mark.slow


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def moments(dielet: Dielet, *argv: object, most: int = 12) -> list[int]:
    """When something is done with files, of a run that succeeds; `most` of them, first and last."""
    ended = dielet(*argv)
    assert ended.code == 0 and ended.operations > 2, ended.err
    return chosen(ended.operations, most)


def test_while_compiling(dielet: Dielet, checkpoint: Path, tmp_path: Path) -> None:
    whole = moments(dielet, "compile", checkpoint, "-o", tmp_path / "whole" / "m", *SMALL, most=100)
    failed = 0
    for k in whole:
        folder = tmp_path / str(k)
        ended = dielet("compile", checkpoint, "-o", folder / "m", *SMALL, act=full_from(k))
        if ended.code:
            failed += 1
            assert_one_line(ended)
            assert "No space left" in ended.err and str(folder) in ended.err
            assert not folder.exists() or names(folder) == []
        else:  # only what is remembered of it could not be written
            open_directory(folder / "m")
    assert failed > len(whole) // 2


def test_while_compiling_what_replaces_another(
    dielet: Dielet, checkpoint: Path, tmp_path: Path
) -> None:
    target = tmp_path / "m"
    whole = moments(dielet, "compile", checkpoint, "-o", target, *SMALL)
    before = (target / "manifest.json").stat().st_ino
    for k in whole:
        ended = dielet("compile", checkpoint, "-o", target, *SMALL, act=full_from(k))
        open_directory(target)
        if ended.code:
            assert_one_line(ended)
            assert (target / "manifest.json").stat().st_ino == before
            assert [path.name for path in tmp_path.iterdir()] == ["m"]
        before = (target / "manifest.json").stat().st_ino


def test_while_profiling(dielet: Dielet, model: Path, tmp_path: Path) -> None:
    argv = ("run", model, "-p", "hi", "--max-new-tokens", 3, "--temperature", 0, "--profile")
    for k in moments(dielet, *argv, tmp_path / "whole", most=6):
        folder = tmp_path / str(k)
        ended = dielet(*argv, folder, act=full_from(k))
        if ended.code:
            assert_one_line(ended)
        for path in folder.iterdir() if folder.exists() else ():
            assert path.suffix == ".pb" and not read_trace(path).truncated


@pytest.mark.parametrize("option", ["--html", "--csv", "--parquet"])
def test_while_writing_an_analysis(
    dielet: Dielet, trace: Path, tmp_path: Path, option: str
) -> None:
    whole = tmp_path / "whole"
    for k in moments(dielet, "analyze", trace, option, whole, most=8):
        place = tmp_path / str(k)
        ended = dielet("analyze", trace, option, place, act=full_from(k))
        assert "toy on toy" in ended.out  # told all the same
        if ended.code:
            assert_one_line(ended)
        if option == "--html":
            assert place.exists() == (ended.code == 0)
            continue
        for path in place.rglob("*") if place.exists() else ():
            assert path.stat().st_size == (whole / path.name).stat().st_size, path


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_while_writing_a_sweep(
    dielet: Dielet, checkpoint: Path, tmp_path: Path, option: str
) -> None:
    argv = ("simulate", checkpoint, "--prompt-tokens", 4, "--new-tokens", 2, "--set",
            "chiplets=1,2", option)  # fmt: skip
    for k in moments(dielet, *argv, tmp_path / "whole.svg"):
        place = tmp_path / f"{k}.svg"
        ended = dielet(*argv, place, act=full_from(k))
        if ended.code:
            assert_one_line(ended)
        assert place.exists() == (ended.code == 0)


def test_while_drawing_a_prediction(dielet: Dielet, checkpoint: Path, tmp_path: Path) -> None:
    argv = ("simulate", checkpoint, "--prompt-tokens", 4, "--new-tokens", 2, "--profile")
    for k in moments(dielet, *argv, tmp_path / "whole"):
        folder = tmp_path / str(k)
        ended = dielet(*argv, folder, act=full_from(k))
        if ended.code:
            assert_one_line(ended)
        for path in folder.iterdir() if folder.exists() else ():
            assert path.suffix == ".pb" and not read_trace(path).truncated
