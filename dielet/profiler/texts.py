"""Texts that a trace names by number: categories, argument keys and argument values."""

from __future__ import annotations

from dielet.profiler import perfetto
from dielet.program.records import BOUNDS

Entry = tuple[int, int, str]


class Texts:
    """Numbers for texts; the same ones in all files of a session."""

    def __init__(self) -> None:
        self._iids: dict[int, dict[str, int]] = {}
        for bound in BOUNDS:  # iid 1 + index: written from records without a look-up
            self.iid(perfetto.STRINGS, bound)

    def iid(self, kind: int, value: str) -> int:
        """The number of a text; kinds count separately, from 1."""
        known = self._iids.setdefault(kind, {})
        return known.setdefault(value, len(known) + 1)


class Used:
    """The texts that something uses, to be defined once in each file that it goes into."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self.entries: dict[Entry, None] = {}

    def category(self, value: str) -> int:
        return self._note(perfetto.CATEGORIES, value)

    def key(self, value: str) -> int:
        return self._note(perfetto.KEYS, value)

    def string(self, value: str) -> int:
        return self._note(perfetto.STRINGS, value)

    def _note(self, kind: int, value: str) -> int:
        iid = self._texts.iid(kind, value)
        self.entries[kind, iid, value] = None
        return iid

    def bounds(self) -> None:
        """Everything that can bound a command: which it was is written from the records."""
        for bound in BOUNDS:
            self.string(bound)
