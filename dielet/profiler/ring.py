"""Where records wait for a session's end: a bounded ring of blocks, in memory and then on disk.

Appending copies a few kilobytes.  When the blocks in memory are used up the oldest goes to a file
without a name, which disappears with the process; when that is full too, or cannot be written, the
oldest records are dropped and counted.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
BLOCK = 1 << 20  # bytes
WEIGHT = 1  # word of a record that says how much is lost when it is dropped


@dataclass
class _Block:
    """Records one after the other: [length in words, weight, ...]; `used` words, of both kinds."""

    words: I64
    used: int = 0
    records: int = 0
    weight: int = 0


@dataclass
class _Stored:
    slot: int
    used: int
    records: int
    weight: int


@dataclass
class Ring:
    """A queue of records that forgets the oldest.  memory, disk: limits in bytes.

    dropped, lost: records that were forgotten, and their weights together.
    """

    memory: int
    disk: int
    folder: Path | None = None
    dropped: int = 0
    lost: int = 0
    disk_error: OSError | None = None
    _full: deque[_Block] = field(default_factory=deque)
    _stored: deque[_Stored] = field(default_factory=deque)
    _free: list[I64] = field(default_factory=list)
    _file: io.FileIO | None = None
    _next_slot: int = 0

    def __post_init__(self) -> None:
        self._block = min(BLOCK, max(self.memory // 2, 1 << 12)) // 8
        self._most = max(self.memory // (8 * self._block), 2)
        self._slots = self.disk // (8 * self._block)
        self._current = _Block(np.empty(self._block, np.int64))

    def append(self, weight: int, head: Sequence[int], parts: Sequence[I64]) -> None:
        """Add a record: some numbers, then flat arrays."""
        length = 2 + len(head) + sum(map(len, parts))
        block = self._current
        if block.used + length > len(block.words):
            block = self._next(length)
        at = block.used
        block.words[at : at + 2 + len(head)] = (length, weight, *head)
        at += 2 + len(head)
        for part in parts:
            block.words[at : at + len(part)] = part
            at += len(part)
        block.used = at
        block.records += 1
        block.weight += weight

    def __iter__(self) -> Iterator[I64]:
        """The records, oldest first, as views that the next one may overwrite."""
        for stored in self._stored:
            yield from _records(self._load(stored), stored.used)
        for block in (*self._full, self._current):
            yield from _records(block.words, block.used)

    def __len__(self) -> int:
        return sum(block.records for block in self._blocks())

    @property
    def weight(self) -> int:
        """The weights of all records that are here."""
        return sum(block.weight for block in self._blocks())

    def close(self) -> None:
        """Forget everything."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._full.clear()
        self._stored.clear()
        self._free.clear()
        self._current = _Block(np.empty(0, np.int64))

    def _blocks(self) -> list[_Block | _Stored]:
        return [*self._stored, *self._full, self._current]

    def _next(self, length: int) -> _Block:
        """A block with room for `length` words; makes the full one wait, or the oldest go."""
        if self._current.used:
            self._full.append(self._current)
        while len(self._full) >= self._most:
            oldest = self._full.popleft()
            if not self._store(oldest):
                self._drop(oldest)
            if len(oldest.words) == self._block:
                self._free.append(oldest.words)
        if length <= self._block and self._free:
            words = self._free.pop()
        else:
            words = np.empty(max(length, self._block), np.int64)
        self._current = _Block(words)
        return self._current

    def _store(self, block: _Block) -> bool:
        """Write a block to disk, over the oldest there when its place is needed."""
        if len(block.words) != self._block or not self._slots or self.disk_error:
            return False
        if len(self._stored) >= self._slots:
            self._drop(self._stored.popleft())
        slot = self._next_slot % self._slots
        try:
            if self._file is None:
                self._file = _nameless(self.folder)
            self._file.seek(slot * block.words.nbytes)
            if self._file.write(block.words.data) != block.words.nbytes:
                raise OSError("a short write")
        except OSError as error:
            self.disk_error = error  # once full, always full: do not try again during a run
            return False
        self._next_slot += 1
        self._stored.append(_Stored(slot, block.used, block.records, block.weight))
        return True

    def _load(self, stored: _Stored) -> I64:
        words = np.empty(self._block, np.int64)
        assert self._file is not None
        self._file.seek(stored.slot * words.nbytes)
        self._file.readinto(words.data)
        return words

    def _drop(self, block: _Block | _Stored) -> None:
        self.dropped += block.records
        self.lost += block.weight


def _nameless(folder: Path | None) -> io.FileIO:
    """A file that is gone when it is closed."""
    handle, name = tempfile.mkstemp(".records", ".dielet-", folder)
    os.unlink(name)
    return io.FileIO(handle, "r+")


def _records(words: I64, used: int) -> Iterator[I64]:
    at = 0
    while at < used:
        length = int(words[at])
        yield words[at : at + length]
        at += length
