"""Packets of which everything is known but times and a few numbers: laid out once, filled in bulk.

A template holds the bytes of one execution's packets.  Rendering copies them and writes the fields
that differ, whole columns at a time; every such field has a fixed width, which padded varints
permit.  So all executions of a kind have the same layout: packets are in order of time on each
track, but not across tracks, which readers of traces do not expect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dielet.profiler import perfetto as p
from dielet.profiler.wire import Bytes, number, text, varint, varints, words

I64 = NDArray[np.int64]
LARGEST_TABLE = 64 << 10  # bytes of names in one packet


class Field(NamedTuple):
    """A hole in a packet: `kind` names the column that fills it, `row` the value's place in it."""

    kind: str
    row: int
    width: int  # bytes of the varint, or 0 for a fixed64

    def blank(self) -> bytes:
        return bytes(self.width or 8)


class Body:
    """The bytes of a message under construction, and its holes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.holes: list[tuple[int, Field]] = []

    def add(self, data: bytes) -> Body:
        self.data += data
        return self

    def hole(self, field_number: int, field: Field) -> Body:
        self.data += varint(field_number << 3 | (0 if field.width else 1))
        self.holes.append((len(self.data), field))
        self.data += field.blank()
        return self

    def append(self, other: Body) -> Body:
        self.holes += [(len(self.data) + at, field) for at, field in other.holes]
        self.data += other.data
        return self

    def message(self, field_number: int, inner: Body) -> Body:
        self.data += varint(field_number << 3 | 2) + varint(len(inner.data))
        return self.append(inner)

    def argument(self, key: int, field: Field, field_number: int = p.UINT) -> Body:
        """A debug annotation with a value to be filled in."""
        data = _argument(key, field_number, field.width)
        self.data += data
        self.holes.append((len(self.data) - field.width, field))
        return self


@lru_cache(1 << 10)
def _argument(key: int, field_number: int, width: int) -> bytes:
    """The bytes of a debug annotation that ends in a hole of `width` bytes."""
    body = number(p.KEY, key) + varint(field_number << 3) + bytes(width)
    return text(p.ANNOTATION, body)


class Column(NamedTuple):
    """All holes of one kind: how wide they are, where, and which value goes into each."""

    width: int
    offsets: I64
    rows: I64


class Template:
    """Packets in a row, laid out once; see `Layout` for how they are added.

    ends: where each packet ends, so that a long run can be cut.
    """

    def __init__(self, packets: list[Body]) -> None:
        self.count = len(packets)
        whole = Body()
        ends = []
        for packet in packets:
            whole.append(packet)
            ends.append(len(whole.data))
        self.ends = np.array(ends, np.int64)
        self._data = np.frombuffer(bytes(whole.data), np.uint8)
        self._columns = columns_of(whole.holes)

    def render(self, runs: int, columns: Mapping[str, NDArray[Any]]) -> Bytes:
        """uint8 [runs, bytes]: the packets of several runs.

        columns: by kind of hole, [runs, values], integers for varints, 64-bit numbers for fixed64.
        """
        out = np.empty((runs, len(self._data)), np.uint8)
        out[:] = self._data
        for kind, column in self._columns.items():
            chosen = columns[kind][:, column.rows]
            fill(out, column, varints(chosen, column.width) if column.width else words(chosen))
        return out


def columns_of(holes: Iterable[tuple[int, Field]]) -> dict[str, Column]:
    """The holes of a message, by kind."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    widths: dict[str, int] = {}
    for offset, field in holes:
        found[field.kind].append((offset, field.row))
        assert widths.setdefault(field.kind, field.width) == field.width, field
    return {
        kind: Column(widths[kind], *np.array(places, np.int64).T) for kind, places in found.items()
    }


def fill(out: Bytes, column: Column, data: NDArray[np.void]) -> None:
    """Put `data`, [runs, holes], into the holes of every row of `out`."""
    size = data.itemsize
    # Every run of `size` bytes of a row, overlapping: so that a hole is one item to assign.
    shape = len(out), out.shape[1] - size + 1
    windows = np.ndarray(shape, f"V{size}", out, 0, (out.shape[1], 1))
    windows[:, column.offsets] = data


class Layout:
    """Collects packets for a template.  `time_width`: bytes of a time stamp."""

    def __init__(self, time_width: int) -> None:
        self.time_width = time_width
        self.packets: list[Body] = []

    def event(self, time: int, event: Body, stateful: bool) -> None:
        """A track event at the `time`-th of the run's times."""
        body = Body().hole(p.TIMESTAMP, Field("time", time, self.time_width))
        body.add(number(p.SEQUENCE_ID, p.SEQUENCE))
        if stateful:
            body.add(number(p.FLAGS, p.NEEDS_STATE))
        body.message(p.TRACK_EVENT, event)
        self.packets.append(packet(body))

    def end(self, time: int, track: int) -> None:
        """The end of a track's innermost slice."""
        self.event(time, Body().add(number(p.TYPE, p.END) + number(p.TRACK, track)), False)

    def counter(self, time: int, track: int, value: Field) -> None:
        event = Body().add(number(p.TYPE, p.COUNTER) + number(p.TRACK, track))
        self.event(time, event.hole(p.COUNTER_DOUBLE, value), False)

    def template(self) -> Template:
        return Template(self.packets)


def packet(body: Body) -> Body:
    """One packet of a file."""
    return Body().add(bytes((p.PACKET_TAG,)) + varint(len(body.data))).append(body)


class NameTable:
    """Defines the names of `steps` executions, which differ in one number: the sequence.

    Names are pairs of what stands before the sequence and after it; it has `digits` digits.  Those
    that differ in nothing else stand side by side, where they compress best: name n of execution s
    is number `first + n * steps + s`.
    """

    def __init__(
        self, names: Sequence[tuple[str, str]], steps: int, digits: int, iid_width: int
    ) -> None:
        entries, holes = [], []
        for before, after in names:
            name = text(2, before.encode() + bytes(digits) + after.encode())
            entry = text(p.NAMES, number(1, 0, iid_width) + name)
            end = len(entry)
            holes.append((end - len(name) - iid_width, end - len(after.encode()) - digits))
            entries.append(entry)
        data = bytearray()
        starts, ends = [], []  # of each name's entries; of packets
        for some in _blocks(entries, LARGEST_TABLE // steps):
            block = b"".join(entry * steps for entry in some)
            head = _table_head(len(block))
            lengths = [len(entry) * steps for entry in some]
            starts += [len(data) + len(head) + at for at in accumulate(lengths[:-1], initial=0)]
            data += head + block
            ends.append(len(data))
        self.ends = np.array(ends, np.int64)
        self._data = np.frombuffer(bytes(data), np.uint8)
        sizes = np.array([len(entry) for entry in entries])[:, None]
        at = np.array(starts)[:, None] + sizes * np.arange(steps)
        iid, sequence = np.array(holes).T
        rows = np.arange(at.size)
        self._iids = Column(iid_width, (at + iid[:, None]).ravel(), rows)
        self._digits = Column(digits, (at + sequence[:, None]).ravel(), rows % steps)

    def render(self, sequences: Sequence[int], first: int) -> Bytes:
        """uint8 [bytes]: the packets, which end at `ends`; sequences: of the executions."""
        out = self._data.copy()[None]
        digits = np.array(list(map(str, sequences)), f"S{self._digits.width}")
        fill(out, self._digits, digits.view(f"V{self._digits.width}")[self._digits.rows][None])
        fill(out, self._iids, varints(first + self._iids.rows, self._iids.width)[None])
        return out[0]


def _blocks(entries: Sequence[bytes], most: int) -> Iterator[list[bytes]]:
    """The entries in groups of about `most` bytes."""
    block: list[bytes] = []
    size = 0
    for entry in entries:
        block.append(entry)
        size += len(entry)
        if size > most:
            yield block
            block, size = [], 0
    if block:
        yield block


def _table_head(size: int) -> bytes:
    """What stands before `size` bytes of interned texts in the packet that defines them."""
    head = number(p.SEQUENCE_ID, p.SEQUENCE) + number(p.FLAGS, p.NEEDS_STATE)
    head += varint(p.INTERNED << 3 | 2) + varint(size)
    return bytes((p.PACKET_TAG,)) + varint(len(head) + size) + head
