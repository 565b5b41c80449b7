"""Where in a device file each key stands, and what the comment beside it says of its source.

TOML parsers forget lines and comments.  Device files are flat (tables, keys, inline values), so one
pass over the lines finds both; what it cannot place simply has no line in an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TABLE = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"""^\s*("[^"]*"|'[^']*'|[\w.-]+)\s*=""")


@dataclass(frozen=True)
class Place:
    """A key of the file: its line, counted from 1, and the comment that belongs to it."""

    line: int
    comment: str


class Places:
    """Every key of a text by its dotted path; a table's path gives the line of its header."""

    def __init__(self, text: str) -> None:
        self._by_path: dict[str, Place] = {}
        table, last = "", ""
        for number, line in enumerate(text.splitlines(), 1):
            if header := _TABLE.match(line):
                table = _plain(header[1])
                self._by_path.setdefault(table, Place(number, ""))
                last = ""
            elif key := _KEY.match(line):
                last = f"{table}.{_plain(key[1])}" if table else _plain(key[1])
                self._by_path.setdefault(last, Place(number, _comment(line)))
            elif last and line.strip().startswith("#"):
                # A comment that goes on below its key still speaks of it.
                place = self._by_path[last]
                self._by_path[last] = Place(place.line, f"{place.comment} {_comment(line)}".strip())
            elif not line.strip():
                last = ""

    def find(self, path: str) -> Place | None:
        """The place of `path`, or of the nearest key or table around it."""
        while path:
            if path in self._by_path:
                return self._by_path[path]
            path = path.rpartition(".")[0]
        return None


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _comment(line: str) -> str:
    """What follows the first # that is not inside a string."""
    quote = ""
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#":
            return line[at + 1 :].strip()
    return ""
