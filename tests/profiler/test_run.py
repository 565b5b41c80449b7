"""`dielet run --profile` on a real model, as people type it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.profiler.talking import talking
from tests.profiler.test_session import env, merged


def test_run_with_profile(tmp_path: Path) -> None:
    folder = talking(tmp_path / "model")
    ended = subprocess.run(
        [sys.executable, "-m", "dielet.cli.main", "run", str(folder), "-p", "hi", "--json",
         "--max-new-tokens", "3", "--profile", "out"],
        cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    files = json.loads(ended.stdout)["profile"]
    assert [Path(f).parent.name for f in files] == ["out"] * 4
    assert merged(tmp_path / "out").attributes["execution_count"] == 3
    assert "ui.perfetto.dev" in ended.stderr
