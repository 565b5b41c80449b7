"""docs/coming-from.md, row by row: what is written there runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.hub import QWEN3, ROLES, SCRIPTS, put_in_cache, unknown_family
from tests.data import smollm2_gguf

pytestmark = [pytest.mark.network, pytest.mark.slow]
PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
QWEN2 = "Qwen/Qwen2.5-0.5B-Instruct"
PROGRAMS = {
    "dielet": [sys.executable, "-m", "dielet.cli.main"],
    "prog_llm_qwen3": [
        sys.executable, "-c", "from dielet.cli.board import main; raise SystemExit(main())"
    ],
}  # fmt: skip


def tables() -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Heading and rows of every table; cells as they are written."""
    heading, rows = "", []
    for line in [*PAGE.splitlines(), ""]:
        if line.startswith("## "):
            heading = line[3:]
        if line.startswith("|"):
            rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
        elif rows:
            yield heading, rows
            rows = []


def code(cell: str) -> str:
    found = re.fullmatch(r"`(.*)`", cell)
    assert found, f"not code: {cell}"
    return found[1]


CONVERSIONS = [(heading, rows[2:]) for heading, rows in tables() if rows[0][1] == "what you write"]
COMMANDS = {
    heading: [code(right) for _, right in rows]
    for heading, rows in CONVERSIONS
    if code(rows[0][1]).split()[0] in PROGRAMS
}
SCRIPT_ROWS = {
    heading: [(code(left), code(right)) for left, right in rows]
    for heading, rows in CONVERSIONS
    if code(rows[0][1]).split()[0] not in PROGRAMS
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home")
    put_in_cache(path, QWEN3, "qwen3")
    put_in_cache(path, QWEN2, "qwen2")
    return path


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    """What the page's rows find: the vendor's script, a .gguf file, directories, a role map."""
    shutil.copyfile(SCRIPTS / "profile_qwen3.py", tmp_path / "profile_qwen3.py")
    (tmp_path / "model.gguf").symlink_to(smollm2_gguf())
    snapshot = next((home / "hub" / f"models--{QWEN3.replace('/', '--')}").glob("snapshots/*"))
    (tmp_path / "hf-directory").symlink_to(snapshot)
    unknown_family(tmp_path)
    shutil.copyfile(ROLES, tmp_path / "roles.toml")
    return tmp_path


def call(words: list[str], home: Path, folder: Path, **more: str) -> str:
    env = {n: v for n, v in os.environ.items() if not n.endswith("_PROFILER")}
    ended = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=900,
        env={**env, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", **more},
    )  # fmt: skip
    assert ended.returncode == 0, f"{words}\n{ended.stdout[-2000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout


def test_every_table_is_run() -> None:
    assert set(COMMANDS) == {"optimum-rbln and rebel.profiler", "The board program", "llama.cpp"}
    assert set(SCRIPT_ROWS) == {"optimum-rbln and rebel.profiler", "transformers", "llama.cpp"}
    assert len(CONVERSIONS) == 6
    assert sum(len(rows) for _, rows in CONVERSIONS) > 35


@pytest.mark.parametrize("heading", COMMANDS)
def test_commands(heading: str, home: Path, folder: Path) -> None:
    for line in COMMANDS[heading]:
        words, env = shlex.split(line), {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        out = call([*PROGRAMS[words[0]], *words[1:]], home, folder, **env)
        assert out.strip(), f"{line} said nothing"
    if heading == "The board program":
        board_files(folder)


def board_files(folder: Path) -> None:
    rows = next(rows for _, rows in tables() if rows[0][0] == "the board's file")[2:]
    for name in ("qwen3_model_path", "qwen2_model_path", "unknown_model_path"):
        assert all((folder / name / code(row[1])).is_file() for row in rows)


@pytest.mark.parametrize("heading", SCRIPT_ROWS)
def test_scripts(heading: str, home: Path, folder: Path) -> None:
    """All rows of a table are one script; the vendor's column too, under `dielet exec`."""
    ids = "import torch; ids = torch.tensor([[5, 6, 7]])"
    theirs, ours = zip(*SCRIPT_ROWS[heading], strict=True)
    if heading.startswith("optimum"):
        (folder / "theirs.py").write_text("\n".join([ids, *theirs]))
        call([*PROGRAMS["dielet"], "exec", "theirs.py"], home, folder)
        assert (folder / "profile_out").is_dir(), "the window left its traces"
        shutil.rmtree(folder / "profile_out")
        ours = ("ids = (5, 6, 7)", *ours)
    if heading == "transformers":
        call([sys.executable, "-c", "\n".join(theirs)], home, folder)
    call([sys.executable, "-c", "\n".join(ours)], home, folder)
    if heading.startswith("optimum"):
        assert any((folder / "profile_out").iterdir())
