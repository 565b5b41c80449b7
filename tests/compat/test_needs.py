"""What is said where torch or transformers are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["dielet.compat.transformers", "dielet.compat.rbln"])
@pytest.mark.parametrize(
    ("missing", "who"),
    [(("torch",), "torch is needed"), (("torch", "transformers"), "torch and transformers are")],
)
def test_one_line_says_what_to_install(module: str, missing: tuple[str, ...], who: str) -> None:
    script = f"import sys; sys.modules.update(dict.fromkeys({missing!r})); import {module}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert who in last and "pip install 'dielet[hf]'" in last and "CPU build" in last
