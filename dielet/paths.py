"""Where dielet keeps what it can make again: one folder in the user's cache directory."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """`$XDG_CACHE_HOME/dielet` or `~/.cache/dielet`, and a folder in it; made if it can be."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "dielet", *parts)
