"""What a script asks for and cannot have here is accepted and said, once per process."""

from __future__ import annotations

import sys

_said: set[str] = set()


def say_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        print(f"dielet: {line}", file=sys.stderr, flush=True)
