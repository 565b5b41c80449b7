"""Packets of which everything is known but times and a few numbers: laid out once, filled in bulk.

A template holds the bytes of one execution's packets.  Rendering copies them into the order of
their times and writes the fields that differ, whole columns at a time; every such field has a
fixed width, which padded varints permit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dielet.profiler import perfetto as p
from dielet.profiler.wire import Bytes, number, text, varint, varints, words

I64 = NDArray[np.int64]


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

    def message(self, field_number: int, inner: Body) -> Body:
        self.data += varint(field_number << 3 | 2) + varint(len(inner.data))
        self.holes += [(len(self.data) + at, field) for at, field in inner.holes]
        self.data += inner.data
        return self

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


@dataclass(frozen=True)
class _Column:
    """All holes of one kind: where they are, and which values go there."""

    width: int
    packets: I64
    offsets: I64
    rows: I64


@dataclass(frozen=True)
class Rendered:
    """Packets of several runs: data uint8 [runs, bytes]; ends and times (ns) [runs, packets]."""

    data: Bytes
    ends: I64
    times: I64


class Template:
    """Packets in an order in which equal times may stand; see `Layout` for how they are added."""

    def __init__(self, packets: list[Body], times: list[int]) -> None:
        self.count = len(packets)
        self.times = np.array(times, np.int64)
        whole = [bytes(body.data) for body in packets]
        self.lengths = np.array([len(data) for data in whole], np.int64)
        self.nbytes = int(self.lengths.sum())
        by_length: dict[int, list[int]] = defaultdict(list)
        for place, data in enumerate(whole):
            by_length[len(data)].append(place)
        self._classes = [
            (np.array(places), np.array([whole[i] for i in places], f"V{length}"))
            for length, places in by_length.items()
        ]
        self._columns = _columns(packets)

    def render(self, times: I64, columns: Mapping[str, NDArray[np.generic]]) -> Rendered:
        """The packets of several runs, each run's in the order of their times.

        times: int64 [runs, n], ns, that packets refer to by place; columns: by kind of hole,
        [runs, values], integers for varints, 64-bit numbers for fixed64.
        """
        runs = len(times)
        out = np.empty((runs, self.nbytes), np.uint8)
        at = times[:, self.times]
        order = np.argsort(at, axis=1, kind="stable")
        ends = np.cumsum(self.lengths[order], axis=1)
        starts = np.empty_like(ends)
        np.put_along_axis(starts, order, ends - self.lengths[order], axis=1)
        starts += np.arange(runs)[:, None] * self.nbytes
        for places, rows in self._classes:
            _windows(out, rows.dtype.itemsize)[starts[:, places]] = rows
        for kind, column in self._columns.items():
            values = at if kind == "time" else columns[kind]
            chosen = values[:, column.rows]
            data = varints(chosen, column.width) if column.width else words(chosen)  # type: ignore[arg-type]
            where = starts[:, column.packets] + column.offsets
            size = data.shape[-1]
            _windows(out, size)[where] = data.view(f"V{size}")[..., 0]
        return Rendered(out, ends, np.take_along_axis(at, order, axis=1))


def _columns(packets: list[Body]) -> dict[str, _Column]:
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    widths: dict[str, int] = {}
    for place, body in enumerate(packets):
        for offset, field in body.holes:
            row = place if field.kind == "time" else field.row
            found[field.kind].append((place, offset, row))
            assert widths.setdefault(field.kind, field.width) == field.width, field
    return {
        kind: _Column(
            widths[kind], *(np.array(part, np.int64) for part in zip(*holes, strict=True))
        )
        for kind, holes in found.items()
    }


def _windows(out: Bytes, width: int) -> NDArray[np.void]:
    """Every run of `width` bytes of `out`, overlapping: so that a field is one item to assign."""
    return np.ndarray((out.size - width + 1,), f"V{width}", out, 0, (1,))


class Layout:
    """Collects packets for a template.  `time_width`: bytes of a time stamp."""

    def __init__(self, time_width: int) -> None:
        self.time_width = time_width
        self.packets: list[Body] = []
        self.times: list[int] = []

    def event(self, time: int, event: Body, stateful: bool) -> None:
        """A track event at the `time`-th of the run's times."""
        body = Body().hole(p.TIMESTAMP, Field("time", 0, self.time_width))
        body.add(number(p.SEQUENCE_ID, p.SEQUENCE))
        if stateful:
            body.add(number(p.FLAGS, p.NEEDS_STATE))
        body.message(p.TRACK_EVENT, event)
        packet = Body().add(bytes((p.PACKET_TAG,)) + varint(len(body.data)))
        packet.holes = [(len(packet.data) + at, field) for at, field in body.holes]
        packet.data += body.data
        self.packets.append(packet)
        self.times.append(time)

    def end(self, time: int, track: int) -> None:
        """The end of a track's innermost slice."""
        self.event(time, Body().add(number(p.TYPE, p.END) + number(p.TRACK, track)), False)

    def counter(self, time: int, track: int, value: Field) -> None:
        event = Body().add(number(p.TYPE, p.COUNTER) + number(p.TRACK, track))
        self.event(time, event.hole(p.COUNTER_DOUBLE, value), False)

    def template(self) -> Template:
        return Template(self.packets, self.times)


class NameTable:
    """The packet that defines an execution's names, which differ in one number: the sequence.

    Names are pairs of what stands before the sequence and after it; it has `width` digits.
    """

    def __init__(self, names: list[tuple[str, str]], width: int, iid_width: int) -> None:
        self.count = len(names)
        body = Body()
        self._digits: list[int] = []
        for row, (before, after) in enumerate(names):
            name = before.encode() + bytes(width) + after.encode()
            entry = Body().hole(1, Field("name", row, iid_width)).add(text(2, name))
            at = len(entry.data) - len(name) + len(before.encode())
            outer = Body().message(p.NAMES, entry)
            self._digits.append(len(body.data) + len(outer.data) - len(entry.data) + at)
            body.holes += [(len(body.data) + place, field) for place, field in outer.holes]
            body.data += outer.data
        head = number(p.SEQUENCE_ID, p.SEQUENCE) + number(p.FLAGS, p.NEEDS_STATE)
        head += varint(p.INTERNED << 3 | 2) + varint(len(body.data))
        head = bytes((p.PACKET_TAG,)) + varint(len(head) + len(body.data)) + head
        self._data = np.frombuffer(head + bytes(body.data), np.uint8)
        self._iids = np.array([len(head) + at for at, _ in body.holes], np.int64)
        self._at = np.array(self._digits, np.int64) + len(head)
        self.width, self.iid_width = width, iid_width

    def render(self, sequence: int, first: int) -> Bytes:
        """uint8 [bytes]: the packet for an execution; `first` is the number of the first name."""
        out = self._data.copy()
        _windows(out, self.width)[self._at] = np.void(str(sequence).encode())
        numbers = varints(np.arange(first, first + self.count), self.iid_width)
        _windows(out, self.iid_width)[self._iids] = numbers.view(f"V{self.iid_width}")[:, 0]
        return out
