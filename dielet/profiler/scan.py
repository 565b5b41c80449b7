"""Reads protobuf messages by the thousand: those of one shape at once, whole columns at a time.

Two messages have the same shape when their bytes agree wherever tags, lengths and the ends of
varints are.  One of them is walked field by field; its shape is then a mask over the others.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.errors import DamagedFile

Buffer = NDArray[np.uint8]
I64 = NDArray[np.int64]
Path = tuple[int, ...]
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_VARINT = 10
ROWS, BLOCK = 1024, 1 << 19  # messages, and bytes, that are looked at together


def _likely(data: Buffer, begin: int, tag: int, first: int) -> tuple[I64, I64, I64]:
    """(places, starts and ends of bodies) of what looks like a record and begins in one block."""
    at = np.flatnonzero(data[begin : min(begin + BLOCK, max(len(data) - 3, 0))] == tag) + begin
    low, high = data[at + 1], data[at + 2]
    long = (low >= 128) & (high < 128) & (data[at + 3] == first)
    likely = ((low < 128) & (high == first)) | long
    at, low, high, long = at[likely], low[likely], high[likely], long[likely]
    starts = at + np.where(long, 3, 2)
    return at, starts, starts + np.where(long, (low & 127) | high.astype(np.int64) << 7, low)


def read_varint(data: Buffer | memoryview | bytes, at: int, end: int) -> tuple[int, int]:
    """(value, place after it).  DamagedFile when it does not end before `end`."""
    value = shift = 0
    while at < end and shift < 7 * MAX_VARINT:
        byte = int(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise DamagedFile(f"the trace is damaged: a number at byte {at} has no end")


def split(data: Buffer) -> tuple[I64, I64, bool]:
    """(starts, lengths) of the packets of a file, and whether the last one is cut off."""
    starts, lengths, end = records(data, 0x0A, 0x40)
    if end < len(data) and data[end] != 0x0A:
        raise DamagedFile(
            f"not a Perfetto trace, or a damaged one: byte {end} is {int(data[end]):#04x} where a "
            "packet (0x0a) should begin"
        )
    return starts, lengths, end < len(data)


def records(data: Buffer, tag: int, first: int) -> tuple[I64, I64, int]:
    """(starts, lengths) of records {tag, length, body} in a row, and where the row ends.

    first: what most bodies begin with.  Places that look like such a record are found all at
    once; that they follow one another is then checked, and walked where it is not so.
    """
    found = [_likely(data, begin, tag, first) for begin in range(0, max(len(data) - 3, 1), BLOCK)]
    at, starts, ends = (np.concatenate(part) for part in zip(*found, strict=True))
    lengths = ends - starts
    breaks = [*np.flatnonzero(ends[:-1] != at[1:]).tolist(), len(at) - 1]
    parts: list[tuple[I64, I64]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    raw, walked = data.data, array("q")  # starts and lengths in turns
    place = known = 0  # the next byte; the first of the likely places that is not before it
    while place < len(data) and raw[place] == tag:
        if known < len(at) and at[known] == place:
            parts.append(_pairs(walked))
            walked = array("q")
            last = breaks[bisect_left(breaks, known)]
            last -= int(ends[last] > len(data))
            if last < known:
                break
            parts.append((starts[known : last + 1], lengths[known : last + 1]))
            place, known = int(ends[last]), last + 1
            known += int(np.searchsorted(at[known:], place))
            continue
        try:
            length, begin = read_varint(raw, place + 1, len(data))
        except DamagedFile:
            break
        if begin + length > len(data):
            break
        walked.append(begin)
        walked.append(length)
        place = begin + length
        if known < len(at) and at[known] < place:
            known += int(np.searchsorted(at[known:], place))
    parts.append(_pairs(walked))
    return (
        np.concatenate([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        place,
    )


def _pairs(walked: array[int]) -> tuple[I64, I64]:
    both = np.array(walked, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@dataclass(frozen=True)
class Hole:
    """One field of a shape: its path of field numbers, its place, and its wire type.

    key: of fields in a repeated message, what that message calls itself: a number or a text.
    """

    path: Path
    offset: int
    width: int
    wire: int
    key: int | bytes = 0


@dataclass(frozen=True)
class Group:
    """Messages of one shape.  places: their numbers; rows: uint8 [messages, bytes]."""

    places: I64
    rows: Buffer
    holes: tuple[Hole, ...]

    def has(self, *path: int) -> bool:
        return any(hole.path[: len(path)] == path for hole in self.holes)

    def find(self, *path: int) -> Hole | None:
        """The last field with this path, which is the one that counts."""
        return next((hole for hole in reversed(self.holes) if hole.path == path), None)

    def numbers(self, hole: Hole) -> NDArray[np.uint64]:
        """The values of a field that is a number."""
        if hole.wire == LENGTH:
            raise DamagedFile("the trace is damaged: a text stands where a number is expected")
        part = self.rows[:, hole.offset : hole.offset + hole.width]
        if hole.wire == VARINT:
            kind = np.dtype(np.uint32 if hole.width <= 4 else np.uint64)
            out: NDArray[Any] = (part[:, 0] & 127).astype(kind)
            for k in range(1, hole.width):
                out |= np.left_shift(part[:, k] & 127, 7 * k, dtype=kind)
            return out.astype(np.uint64)
        return (
            np.ascontiguousarray(part)
            .view("<u8" if hole.wire == FIXED64 else "<u4")[:, 0]
            .astype(np.uint64)
        )

    def texts(self, hole: Hole) -> list[bytes]:
        """The values of a field with a length."""
        if hole.width == 0:
            return [b""] * len(self.rows)
        part = np.ascontiguousarray(self.rows[:, hole.offset : hole.offset + hole.width])
        return part.view(f"V{hole.width}")[:, 0].tolist()


class Shapes:
    """How to walk a message: which fields are messages themselves, and which decide its shape.

    nested: paths of fields to walk into.  fixed: paths of varints that are part of the shape.
    keyed: paths of repeated messages -> the fields, a number or a text, that tell them apart.
    """

    def __init__(
        self, nested: set[Path], fixed: set[Path], keyed: dict[Path, tuple[int, int]]
    ) -> None:
        self.nested, self.fixed, self.keyed = nested, fixed, keyed

    def groups(self, data: Buffer, starts: I64, lengths: I64) -> Iterator[Group]:
        """All messages, in groups of one shape."""
        order = np.argsort(lengths, kind="stable")
        edges = np.flatnonzero(np.diff(lengths[order])) + 1
        for places in np.split(order, edges):
            if not len(places):
                continue
            length = int(lengths[places[0]])
            if length == 0:
                continue
            rows = gather(data, starts[places], length)
            while len(places):
                holes, mask, pattern = self._walk(rows[0, :length])
                same = _alike(rows, mask, pattern)
                if same.all():
                    yield Group(places, rows[:, :length], holes)
                    break
                yield Group(places[same], rows[same, :length], holes)
                places, rows = places[~same], rows[~same]

    def _walk(self, row: Buffer) -> tuple[tuple[Hole, ...], Buffer, Buffer]:
        """Fields of one message; the mask under which messages of its shape equal it."""
        mask = np.zeros(len(row), np.uint8)
        holes: list[Hole] = []
        self._fields(row.tobytes(), 0, len(row), (), 0, mask, holes)
        return tuple(holes), mask, row & mask

    def _fields(
        self,
        row: bytes,
        at: int,
        end: int,
        above: Path,
        key: int | bytes,
        mask: Buffer,
        holes: list[Hole],
    ) -> None:
        while at < end:
            tag, value_at = read_varint(row, at, end)
            mask[at:value_at] = 255
            path, wire = (*above, tag >> 3), tag & 7
            if wire == VARINT:
                _, at = read_varint(row, value_at, end)
                mask[value_at:at] = 255 if path in self.fixed else 128
                holes.append(Hole(path, value_at, at - value_at, wire, key))
            elif wire == LENGTH:
                length, begin = read_varint(row, value_at, end)
                mask[value_at:begin] = 255
                at = begin + length
                if at > end:
                    raise DamagedFile("the trace is damaged: a message ends after its packet")
                if path in self.nested:
                    inner = self._key(row, begin, at, path)
                    self._fields(row, begin, at, path, inner, mask, holes)
                else:
                    if path in self.fixed:
                        mask[begin:at] = 255
                    holes.append(Hole(path, begin, length, wire, key))
            elif wire in (FIXED64, FIXED32):
                at = value_at + (8 if wire == FIXED64 else 4)
                if at > end:
                    raise DamagedFile("the trace is damaged: a number ends after its packet")
                holes.append(Hole(path, value_at, at - value_at, wire, key))
            else:
                raise DamagedFile(f"the trace is damaged: wire type {wire} does not exist")

    def _key(self, row: bytes, begin: int, end: int, path: Path) -> int | bytes:
        """What a repeated message calls itself."""
        number, text = self.keyed.get(path, (0, 0))
        for field, value in fields(row[begin:end]) if number else ():
            if field in (number, text):
                return value
        return 0


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of one message: integers, or bytes of what has a length."""
    at, end = 0, len(data)
    while at < end:
        tag, at = read_varint(data, at, end)
        wire = tag & 7
        if wire == VARINT:
            value, at = read_varint(data, at, end)
            yield tag >> 3, value
            continue
        if wire == LENGTH:
            length, at = read_varint(data, at, end)
        elif wire in (FIXED64, FIXED32):
            length = 8 if wire == FIXED64 else 4
        else:
            raise DamagedFile(f"the trace is damaged: wire type {wire} does not exist")
        if at + length > end:
            raise DamagedFile("the trace is damaged: a field ends after its message")
        part = bytes(data[at : at + length])
        yield tag >> 3, part if wire == LENGTH else int.from_bytes(part, "little")
        at += length


def _alike(rows: Buffer, mask: Buffer, pattern: Buffer) -> NDArray[np.bool_]:
    """Which rows are `pattern` under `mask`; by words, in blocks that stay in the cache."""
    wide = [np.zeros(rows.shape[1], np.uint8) for _ in range(2)]
    for target, source in zip(wide, (mask, pattern), strict=True):
        target[: len(source)] = source
    mask8, pattern8 = (row.view(np.uint64) for row in wide)
    words = rows.view(np.uint64)
    same = np.empty(len(rows), bool)
    for at in range(0, len(rows), ROWS):
        block = slice(at, at + ROWS)
        same[block] = ((words[block] & mask8) == pattern8).all(axis=1)
    return same


def gather(data: Buffer, starts: I64, length: int) -> Buffer:
    """uint8 [messages, length and what makes it whole words]: messages of one length, copied."""
    whole = -(-length // 8) * 8
    if int(starts.max()) + whole > data.size:
        out = np.zeros((len(starts), whole), np.uint8)
        windows = np.ndarray((data.size - length + 1,), f"V{length}", data, 0, (1,))
        out[:, :length] = windows[starts].view(np.uint8).reshape(len(starts), length)
        return out
    windows = np.ndarray((data.size - whole + 1,), f"V{whole}", data, 0, (1,))
    return windows[starts].view(np.uint8).reshape(len(starts), whole)
