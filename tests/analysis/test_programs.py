"""Two compiled models beside each other, without running either."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.analysis.programs import compare_programs
from dielet.cli import main as cli
from dielet.errors import MissingFile
from tests.models import compiled


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("programs")
    for name, chiplets in (("two", 2), ("four", 4)):
        compiled(folder / name, chiplets=chiplets)
    return folder / "two", folder / "four"


def test_programs_by_name(models: tuple[Path, Path]) -> None:
    two, four = models
    diff = compare_programs(two, four)
    assert "another number of chiplets: 2 before, 4 now" in diff.notes
    totals = {total.phase: total for total in diff.totals}
    decode = next(total for name, total in totals.items() if name.startswith("decode"))
    assert decode.before_ns is None and decode.before_bytes and decode.after_bytes
    # The same operations, each cut into more commands; what is read twice is activations.
    assert decode.after_commands > decode.before_commands
    up = next(c for c in diff.changes if c.operation.endswith("layers.0.mlp.up_proj")
                and c.phase == "decode")  # fmt: skip
    assert (up.before_commands, up.after_commands) == (2, 4)
    assert not {"added", "removed", "slower", "faster"} & set(diff.counts)
    same = compare_programs(two, two)
    assert set(same.counts) == {"same"} and all(t.change == 0 for t in same.totals)


def test_on_the_command_line(models: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    two, four = models
    assert cli.main(["analyze", str(four), "--diff", str(two)]) == 0
    out = capsys.readouterr().out
    assert f"Since {two}, per program" in out and "another number of chiplets" in out
    assert cli.main(["analyze", str(four), "--diff", str(two), "--sql", "select 1"]) != 0
    assert "--sql needs a trace" in capsys.readouterr().err


def test_only_models_are_compared(models: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no compiled model"):
        compare_programs(tmp_path, models[0])
