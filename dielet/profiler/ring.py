"""Where records wait for a session's end: a bounded ring of blocks, in memory and then on disk.

Appending copies a few kilobytes.  When the blocks in memory are used up the oldest goes to a file
without a name, which disappears with the process; when that is full too, or cannot be written, the
oldest records are dropped and counted.  So they are when the disk would not have the room any more
that the traces of the records need.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
BLOCK = 1 << 20  # bytes
BLOCKS_AT_ONCE = 8  # large pieces of memory cost a third of the page faults
ROOM, LEAST_ROOM = 4, 6 << 20
"""Bytes of disk left free for traces: so many times the records', and besides as much as a trace
takes that is too small to be compressed."""


class Kind:
    """Records that are copied from the same arrays, after `head` numbers of their own.

    weight: how much is lost when one is dropped.
    """

    def __init__(self, weight: int, head: int, parts: Sequence[I64]) -> None:
        self.weight = weight
        self.head = struct.Struct(f"={2 + head}q")
        self.parts = [(part.nbytes, part.reshape(-1).data.cast("B")) for part in parts]
        self.nbytes = self.head.size + sum(nbytes for nbytes, _ in self.parts)


class _Block:
    """Records one after the other: [length in words, weight, ...]; the first `used` bytes."""

    def __init__(self, words: I64) -> None:
        self.words, self.size = words, words.nbytes
        self.view = words.data.cast("B")
        self.used = self.records = self.weight = 0


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
    _full: deque[_Block] = field(default_factory=deque)
    _stored: deque[_Stored] = field(default_factory=deque)
    _free: list[I64] = field(default_factory=list)
    _file: io.FileIO | None = None
    _next_slot: int = 0

    def __post_init__(self) -> None:
        self._block = min(BLOCK, max(self.memory // 2, 1 << 12)) // 8
        self._most = max(self.memory // (8 * self._block), 2)
        self._slots = self.disk // (8 * self._block)
        self._current = _Block(self._fresh())

    def append(self, kind: Kind, *head: int) -> None:
        """Add a record: some numbers, then what is in the arrays of its kind now."""
        # A step leaves the caches full of weights: every line here is read from memory again.
        nbytes, weight = kind.nbytes, kind.weight
        block = self._current
        if block.used + nbytes > block.size:
            block = self._next(nbytes // 8)
        view, at = block.view, block.used
        kind.head.pack_into(view, at, nbytes >> 3, weight, *head)
        end = at + kind.head.size
        for size, part in kind.parts:
            begin, end = end, end + size
            view[begin:end] = part
        block.used = at + nbytes
        block.records += 1
        block.weight += weight

    def __iter__(self) -> Iterator[I64]:
        """The records, oldest first, as views that the next one may overwrite."""
        for stored in self._stored:
            yield from _records(self._load(stored), stored.used // 8)
        for block in (*self._full, self._current):
            yield from _records(block.words, block.used // 8)

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
        large = length > self._block
        self._current = _Block(np.empty(length, np.int64) if large else self._fresh())
        return self._current

    def _fresh(self) -> I64:
        """Memory of a block, some of which are made at once."""
        if not self._free:
            count = min(self._most, BLOCKS_AT_ONCE)
            self._free += [*np.empty((count, self._block), np.int64)]
        return self._free.pop()

    def _store(self, block: _Block) -> bool:
        """Write a block to disk, over the oldest there when its place is needed."""
        if len(block.words) != self._block:
            return False
        if self._next_slot < self._slots and not self._leaves_room():
            self._slots = self._next_slot  # once full, always full: do not ask again during a run
        if not self._slots:
            return False
        if len(self._stored) >= self._slots:
            self._drop(self._stored.popleft())
        slot = self._next_slot % self._slots
        try:
            if self._file is None:
                self._file = _nameless(self.folder)
            self._file.seek(slot * block.words.nbytes)
            if self._file.write(block.view) != block.words.nbytes:
                raise OSError("a short write")
        except OSError:
            self._slots = min(self._next_slot, self._slots)
            return self._next_slot == slot > 0 and self._store(block)  # the next one over another
        self._next_slot += 1
        self._stored.append(_Stored(slot, block.used, block.records, block.weight))
        return True

    def _leaves_room(self) -> bool:
        """Whether another block may go to disk, so that traces find room there in the end."""
        if self.folder is None:
            return True
        records = len(self._stored) + 1 + len(self._full) + 1
        needed = LEAST_ROOM + 8 * self._block * (ROOM * records + 1)
        return shutil.disk_usage(self.folder).free >= needed

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
