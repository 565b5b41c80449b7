"""Runs the generated reader over a file, plain or compressed, block by block."""

from __future__ import annotations

import mmap
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.analysis import scanner as s
from dielet.analysis.heap import give_back
from dielet.analysis.table import F64, I32, I64, Facts
from dielet.errors import DamagedFile
from dielet.profiler import perfetto as p
from dielet.profiler.reader import Trace, read_packets
from dielet.profiler.scan import fields, read_varint
from dielet.profiler.tracks import WORKLOAD
from dielet.program.records import BOUNDS

try:
    from isal import isal_zlib as inflate  # the same format, several times as fast
except ImportError:
    import zlib as inflate  # type: ignore[no-redef]

_ERRORS: tuple[Any, ...] = (zlib.error, inflate.error)
_USUAL = 1 << 12  # bytes that most packets fit in
BLOCK = 8 << 20  # bytes of a file that are looked at together
_MOST_UNPACKED = 64 << 20
_LEAST_PLAIN, _LEAST_PACKED = 40, 6  # bytes of a file that a slice takes at the very least
_MOST_RESTS, _MOST_STEPS, _MOST_FACTS = s.REST_SLOTS // 2, s.STEP_SLOTS // 2, s.FACT_SLOTS // 2
_MOST_LONGS = 1 << 20
_FORGOTTEN = 1 << 20  # bytes of the file that are given back together
_COLUMNS = {b"bytes": s.NBYTES, b"operations": s.OPS, b"% of peak": s.PERCENT,
            b"bound by": s.BOUND}  # fmt: skip
_PER_SLICE = ("start", "duration", "track", "step", "rest", "place", "fact", "percent")
_TYPES = {"i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "double": np.float64}


class Unfit(Exception):
    """The trace needs a general reader."""


@dataclass
class Block:
    """Where packets stand: a stretch of the file, packed or not, and its first slice's number."""

    first: int
    begin: int
    length: int
    packed: bool


@dataclass
class Scan:
    """What was read.

    columns: per slice; step and rest are -1 where the name is none, a duration below -1 is a place
    in `longs`, counted from -2 down.  rests: texts by number.

    row: where each slice stood in the file, None if they were in order of start.  others: packets
    that are no events, with the number of the slice that came next in the file.  marks: packets of
    slices that stand for runs, by where they stood: there are few, but in every block.
    """

    path: Path
    columns: dict[str, NDArray[Any]]
    place: I32
    longs: I64
    facts: Facts
    steps: I64
    rests: list[str]
    counters: dict[int, tuple[I64, F64]]
    stray: int
    truncated: bool
    blocks: list[Block]
    row: I32 | None = None
    others: list[tuple[int, bytes]] = field(default_factory=list)
    marks: dict[int, bytes] = field(default_factory=dict)

    def packets(self, slices: I64) -> Trace:
        """Some slices with everything that is said of them, and all that is no event.

        slices: in order; the trace's slices are in the same.
        """
        found: list[tuple[int, int, bytes]] = [(row, 0, body) for row, body in self.others]
        rows = slices if self.row is None else self.row[slices].astype(np.int64)
        is_mark = np.array([row in self.marks for row in rows.tolist()], bool)
        found += [(row, 1, self.marks[row]) for row in rows[is_mark].tolist()]
        rows, places = rows[~is_mark], self.place[slices[~is_mark]]
        block = np.searchsorted([b.first for b in self.blocks], rows, side="right") - 1
        with self.path.open("rb", buffering=0) as file:
            for number in np.unique(block).tolist():
                where = self.blocks[number]
                packed = b""
                if where.packed:
                    packed = _unpacked(os.pread(file.fileno(), where.length, where.begin))
                mine = block == number
                for row, at in zip(rows[mine].tolist(), places[mine].tolist(), strict=True):
                    # Read and not mapped: every look into a mapped file brings many pages with it.
                    if where.packed:
                        found.append((row, 1, _packet_at(memoryview(packed)[at:])))
                    else:
                        found.append((row, 1, _read(file.fileno(), where.begin + at)))
        found.sort(key=lambda item: item[:2])
        whole = b"".join(p.packet(body) for _, _, body in found)
        return read_packets(np.frombuffer(whole, np.uint8))


def _read(file: int, place: int) -> bytes:
    """The packet that begins at `place` of a file, without its tag and length."""
    return _packet_at(os.pread(file, _USUAL, place)) or _packet_at(os.pread(file, BLOCK, place))


def _packet_at(data: bytes | memoryview) -> bytes:
    """The packet that `data` begins with, without its tag and length; empty if it is not whole."""
    length, at = read_varint(data, 1, len(data))
    return bytes(data[at : at + length]) if at + length <= len(data) else b""


def _unpacked(data: bytes | memoryview) -> bytes:
    try:
        tool = inflate.decompressobj(31 if bytes(data[:2]) == b"\x1f\x8b" else 15)
        out: bytes = tool.decompress(data, _MOST_UNPACKED)
    except _ERRORS as error:
        raise DamagedFile(f"a compressed packet is damaged ({error})") from None
    if tool.unconsumed_tail:
        raise DamagedFile(f"a compressed packet holds more than {_MOST_UNPACKED} bytes")
    return out


def scan(path: Path) -> Scan:
    """Read the trace at `path`.

    Raises Unfit for what only a general reader can do, and DamagedFile for what is no trace.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    scanning = _Scanning(path, size, data)
    scanning.run()
    return scanning.result()


class _Scanning:
    def __init__(self, path: Path, size: int, data: mmap.mmap) -> None:
        self.path, self.size, self.data = path, size, data
        self.whole = np.frombuffer(data, np.uint8)
        packed = _is_packed(self.whole[:4096].tobytes())
        rows = size // (_LEAST_PACKED if packed else _LEAST_PLAIN) + 1024
        self.arrays = _arrays(rows)
        self.state = np.zeros(len(s.STATE) + len(s.ARRAYS), np.int64)
        self.state[len(s.STATE) :] = [array.ctypes.data for array in self.arrays.values()]
        for name, value in (
            ("most_rows", rows), ("most_samples", rows), ("most_rests", _MOST_RESTS),
            ("most_steps", _MOST_STEPS), ("most_facts", _MOST_FACTS), ("most_longs", _MOST_LONGS),
            ("last_key", -1),
        ):  # fmt: skip
            self._set(name, value)
        self.rests: list[str] = []
        self.others: list[tuple[int, bytes]] = []
        self.marks: dict[int, bytes] = {}
        self.blocks: list[Block] = []
        self.truncated = False
        self.forgotten = 0
        self.call = s.scan_function()

    def _get(self, name: str) -> int:
        return int(self.state[s.STATE.index(name)])

    def _set(self, name: str, value: int) -> None:
        self.state[s.STATE.index(name)] = value

    def run(self) -> None:
        begin = 0
        while begin < self.size:
            length = min(BLOCK, self.size - begin)
            done = self._block(Block(self._get("rows"), begin, length, False), self.whole)
            if done == 0:
                if begin == 0 and self.whole[0] != p.PACKET_TAG:
                    raise DamagedFile("damaged")
                if length < self.size - begin:
                    raise Unfit  # a packet larger than a block
                self.truncated = True
                return
            begin += done
            self._forget(begin)
            if self.truncated:
                return

    def _forget(self, end: int) -> None:
        """What was read of the file need not stay in memory."""
        high = end // mmap.PAGESIZE * mmap.PAGESIZE
        if high - self.forgotten >= _FORGOTTEN:
            self.data.madvise(mmap.MADV_DONTNEED, self.forgotten, high - self.forgotten)
            self.forgotten = high

    def _block(self, block: Block, data: NDArray[np.uint8], offset: int | None = None) -> int:
        """Scan a block; how many of its bytes were whole packets."""
        base = data.ctypes.data + (block.begin if offset is None else offset)
        at = 0
        self.blocks.append(block)
        while True:
            self._set("data", base)
            self._set("at", at)
            self._set("end", block.length if offset is None else len(data))
            code = self.call(self.state.ctypes.data)
            at = self._get("at")
            view = data[block.begin if offset is None else 0 :]
            self._new_rests(view)
            if code == s.DONE:
                return at
            if code == s.CUT:
                if offset is not None or block.begin + block.length >= self.size:
                    self.truncated = True
                return at
            if code in (s.OTHER, s.COMPRESSED, s.RUN):
                place = self._get("packet")
                packet = view[place : place + self._get("length")].tobytes()
                if code == s.RUN:
                    self.marks[self._get("rows") - 1] = packet
                elif code == s.OTHER:
                    self._other(packet)
                else:
                    self._compressed(block, place, packet)
                    rest = Block(self._get("rows"), block.begin, block.length, False)
                    self.blocks.append(rest)
            elif code == s.DAMAGED:
                raise DamagedFile("damaged")
            else:
                raise Unfit

    def _compressed(self, block: Block, place: int, packet: bytes) -> None:
        if block.packed:
            raise Unfit  # packed within packed
        for number, body in fields(packet):
            if number == p.COMPRESSED and isinstance(body, bytes):
                unpacked = np.frombuffer(_unpacked(body), np.uint8)
                where = block.begin + place + len(packet) - len(body)
                inner = Block(self._get("rows"), where, len(body), True)
                if self._block(inner, unpacked, 0) < len(unpacked):
                    self.truncated = True
        self._forget(block.begin + place)

    def _new_rests(self, data: NDArray[np.uint8]) -> None:
        for number in range(len(self.rests), self._get("rests")):
            place = int(self.arrays["rest_place"][number])
            text = data[place : place + int(self.arrays["rest_length"][number])]
            self.rests.append(text.tobytes().decode(errors="replace"))

    def _other(self, packet: bytes) -> None:
        self.others.append((self._get("rows"), packet))
        for number, body in fields(packet):
            if number == p.FLAGS and isinstance(body, int) and body & p.CLEARED:
                self.arrays["column"].fill(0)
                self.arrays["bound_of"].fill(-1)
                self._set("default_track", 0)
        for number, body in fields(packet):
            if isinstance(body, bytes):
                self._part(number, body)

    def _part(self, number: int, body: bytes) -> None:
        if number == p.TRACK_DESCRIPTOR:
            parts = dict(fields(body))
            uuid = parts.get(1, 0)
            if WORKLOAD.encode() in parts.values() and isinstance(uuid, int) and uuid < s.TRACKS:
                self.arrays["is_run"][uuid] = 1
        elif number == p.INTERNED:
            for kind, entry in fields(body):
                if kind in (p.KEYS, p.STRINGS) and isinstance(entry, bytes):
                    self._text(kind, dict(fields(entry)))
        elif number == p.DEFAULTS:
            for kind, defaults in fields(body):
                if kind == p.EVENT_DEFAULTS and isinstance(defaults, bytes):
                    self._set("default_track", int(dict(fields(defaults)).get(p.TRACK, 0)))

    def _text(self, kind: int, parts: dict[int, int | bytes]) -> None:
        iid, text = parts.get(1, 0), parts.get(2, b"")
        if not isinstance(iid, int) or not isinstance(text, bytes):
            return
        if kind == p.KEYS and text in _COLUMNS:
            if iid >= s.KEYS:
                raise Unfit
            self.arrays["column"][iid] = _COLUMNS[text]
        elif kind == p.STRINGS and text.decode(errors="replace") in BOUNDS:
            if iid >= s.KEYS:
                raise Unfit
            self.arrays["bound_of"][iid] = BOUNDS.index(text.decode())

    def result(self) -> Scan:
        rows, samples = self._get("rows"), self._get("samples")
        a = self.arrays
        self._end_open()
        row = None
        start = a["start"][:rows]
        if (start[1:] < start[:-1]).any():
            row = np.argsort(start, kind="stable").astype(np.int32)
        columns = {}
        for name in _PER_SLICE:
            column = a.pop(name)[:rows]
            columns[name] = column if row is None else column[row]
            if row is not None:
                give_back()
        facts = self._get("facts")
        return Scan(
            path=self.path,
            place=columns.pop("place"),
            columns=columns,
            longs=a["long"][: self._get("longs")].copy(),
            facts=Facts(*(a[f"fact_{x}"][:facts].copy() for x in ("nbytes", "ops", "bound"))),
            steps=a["step_key"][: self._get("steps")].copy(),
            rests=self.rests,
            counters=_counters(
                a["sample_track"][:samples], a["sample_time"][:samples], a["sample_value"][:samples]
            ),
            stray=self._get("stray"),
            truncated=self.truncated,
            blocks=self.blocks,
            row=row,
            others=self.others,
            marks=self.marks,
        )

    def _end_open(self) -> None:
        """Slices that are still open have no duration."""
        for row in self.arrays["open"].tolist():
            while row >= 0:
                around = int(self.arrays["duration"][row])
                self.arrays["duration"][row] = -1
                row = around


def _is_packed(head: bytes) -> bool:
    mark = bytes((p.COMPRESSED << 3 & 127 | 2 | 128, p.COMPRESSED >> 4))
    return mark in head


def _arrays(rows: int) -> dict[str, NDArray[Any]]:
    """Memory that is not touched before it is used costs nothing."""
    sizes = {"rest_hash": s.REST_SLOTS, "rest_number": s.REST_SLOTS, "step_hash": s.STEP_SLOTS,
             "step_number": s.STEP_SLOTS, "fact_hash": s.FACT_SLOTS, "fact_number": s.FACT_SLOTS,
             "step_key": _MOST_STEPS, "long": _MOST_LONGS, "column": s.KEYS, "bound_of": s.KEYS,
             "is_run": s.TRACKS, "open": s.TRACKS, "latest": s.TRACKS}  # fmt: skip
    families = {"name": s.NAMES, "rest_": _MOST_RESTS, "fact_": _MOST_FACTS}
    zeroed = ("name", "column", "is_run", "latest")
    found: dict[str, NDArray[Any]] = {}
    for name, kind in s.ARRAYS.items():
        family = next((size for stem, size in families.items() if name.startswith(stem)), rows)
        new = np.zeros if name.endswith("_hash") or name in zeroed else np.empty
        found[name] = new(sizes.get(name, family), _TYPES[str(kind)])
    for name in ("bound_of", "open"):
        found[name].fill(-1)
    return found


def _counters(track: NDArray[np.int16], time: I64, value: F64) -> dict[int, tuple[I64, F64]]:
    order = np.argsort(track, kind="stable")
    edges = np.flatnonzero(np.diff(track[order], prepend=-1))
    return {
        int(track[order[low]]): (time[rows], value[rows])
        for low, rows in zip(edges.tolist(), np.split(order, edges[1:]), strict=True)
    } if len(track) else {}  # fmt: skip
