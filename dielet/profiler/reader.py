"""Reads traces into columns: those that we write, and those of others with the same layout."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.errors import DamagedFile
from dielet.files import require_file
from dielet.profiler import perfetto as p
from dielet.profiler.columns import Events, Texts
from dielet.profiler.scan import Buffer, Group, Shapes, fields, records, split

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]

EVENT = (p.TRACK_EVENT,)
_SHAPES = Shapes(
    nested={EVENT, (*EVENT, p.ANNOTATION)},
    fixed={(*EVENT, p.TYPE), (p.FLAGS,), (*EVENT, p.ANNOTATION, p.KEY),
           (*EVENT, p.ANNOTATION, p.KEY_TEXT)},
    keyed={(*EVENT, p.ANNOTATION): (p.KEY, p.KEY_TEXT)},
)  # fmt: skip
_COMPRESSED = bytes((p.COMPRESSED << 3 & 127 | 2 | 128, p.COMPRESSED >> 4))
_OTHERS = (p.INTERNED, p.TRACK_DESCRIPTOR, p.ATTRIBUTES, p.DEFAULTS)
# Bytes that all compressed packets may become: a free amount, and so many for each of the file.
_FREE, _MOST_TIMES = 1 << 20, 100
_UNPACKED_RUN = 32 << 20  # bytes of unpacked packets that are read together
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
WANTED = "a trace, such as `dielet run --profile` writes"
_LARGE_TABLE = 2000  # bytes of texts from which it pays to read them in columns


@dataclass(frozen=True)
class TrackInfo:
    """parent: uuid, or 0; unit: of a counter, or empty."""

    uuid: int
    name: str
    parent: int = 0
    rank: int = 0
    unit: str = ""
    description: str = ""


@dataclass(frozen=True)
class Argument:
    """Values of one key for some of the slices; texts are numbers of `Trace.texts`."""

    slices: I64
    values: NDArray[np.generic]
    is_text: bool


@dataclass(frozen=True)
class Trace:
    """A trace in columns.

    Slices, in order of start: track (uuid), start and duration (ns; -1: it has no end), name and
    category (numbers of `texts`, -1: none).  arguments: by key.  flows: int64 [n, 2], from slice
    to slice.  counters: by track, (times, values).  truncated: the file ends inside a packet.
    stray: ends of slices that never began.
    """

    attributes: dict[str, int | str]
    tracks: dict[int, TrackInfo]
    texts: list[str]
    track: NDArray[np.uint64]
    start: I64
    duration: I64
    name: I32
    category: I32
    arguments: dict[str, Argument]
    flows: I64
    counters: dict[int, tuple[I64, F64]]
    truncated: bool
    stray: int

    def __len__(self) -> int:
        return len(self.start)

    def path(self, uuid: int) -> tuple[str, ...]:
        """A track's name, after those of the tracks above it."""
        names: list[str] = []
        while (track := self.tracks.get(uuid)) is not None and len(names) < len(self.tracks):
            names.append(track.name)
            uuid = track.parent
        return tuple(reversed(names))


def read_trace(path: str | Path) -> Trace:
    """Read the trace at `path`.

    Raises MissingFile, or DamagedFile for what is no trace.  A file that is only cut off is read
    as far as it goes, and says so.
    """
    path = Path(path)
    require_file(path, WANTED)
    if path.stat().st_size == 0:
        raise DamagedFile(f"{path} is empty; give {WANTED}")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hint := _hint(data[:64]):
        raise DamagedFile(f"{path} is {hint}")
    try:
        return _Reader().read(np.frombuffer(data, np.uint8))
    except DamagedFile as error:
        raise DamagedFile(
            f"{path}: {error}; copy it again, profile again, or give {WANTED}"
        ) from None


def _hint(head: bytes) -> str:
    """What a file is that is often taken for a trace of ours, and what to do with it."""
    if head[:2] == _GZIP:
        return "compressed with gzip; unpack it with `gunzip`, and give what is inside"
    if head[:4] == _ZSTANDARD:
        return "compressed with zstd; unpack it with `unzstd`, and give what is inside"
    if head[:1] != b"\n" and head.lstrip()[:1] in (b"{", b"["):
        return f"JSON, perhaps a Chrome trace, and not a Perfetto trace (.pb); give {WANTED}"
    return ""


def read_packets(data: Buffer) -> Trace:
    """Read packets that are in memory, as they would stand in a file."""
    return _Reader().read(data)


@dataclass
class _Reader:
    """Goes through the packets in order and collects what they say."""

    attributes: dict[str, int | str] = field(default_factory=dict)
    tracks: dict[int, TrackInfo] = field(default_factory=dict)
    texts: Texts = field(default_factory=Texts)
    events: Events = field(default_factory=Events)
    truncated: bool = False
    _lives: dict[int, int] = field(default_factory=dict)  # by sequence: its state's present life
    _born: int = 0
    _packets: int = 0
    _room: int = 0  # bytes that may still come out of compressed packets

    def read(self, data: Buffer) -> Trace:
        self._room = _FREE + _MOST_TIMES * len(data)
        for buffer, starts, lengths in self._runs(data):
            self._take(buffer, starts, lengths)
        slices = self.events.slices(self.texts, self._packets)
        return Trace(
            attributes=self.attributes,
            tracks=self.tracks,
            texts=self.texts.known,
            track=slices.track,
            start=slices.start,
            duration=slices.duration,
            name=slices.name,
            category=slices.category,
            arguments={
                key: Argument(at, values, is_text)
                for key, (at, values, is_text) in self.events.arguments(self.texts, slices).items()
            },
            flows=self.events.flows(slices),
            counters=self.events.counters(),
            truncated=self.truncated,
            stray=slices.stray,
        )

    def _runs(self, data: Buffer, inside: bool = False) -> Iterator[tuple[Buffer, I64, I64]]:
        """Runs of packets in order, with the insides of compressed ones in their places.

        inside: these were such an inside, and hold no further ones.
        """
        starts, lengths, cut = split(data)
        self.truncated |= cut
        long = np.flatnonzero(lengths > 1)
        is_compressed = np.zeros(len(starts), bool)
        is_compressed[long] = (data[starts[long]] == _COMPRESSED[0]) & (
            data[starts[long] + 1] == _COMPRESSED[1]
        )
        if inside and is_compressed.any():
            raise DamagedFile("a compressed packet lies inside of another")
        begin = 0
        unpacked: list[bytes] = []  # since the last plain packet
        for place in [*np.flatnonzero(is_compressed).tolist(), len(starts)]:
            if place > begin or sum(map(len, unpacked)) > _UNPACKED_RUN:
                yield from self._unpacked_runs(unpacked)
                unpacked = []
                yield data, starts[begin:place], lengths[begin:place]
            begin = place + 1
            if place < len(starts):
                packet = data[starts[place] : starts[place] + lengths[place]].tobytes()
                unpacked += [self._unpacked(body) for number, body in fields(packet)
                             if number == p.COMPRESSED and isinstance(body, bytes)]  # fmt: skip
        yield from self._unpacked_runs(unpacked)

    def _unpacked_runs(self, unpacked: list[bytes]) -> Iterator[tuple[Buffer, I64, I64]]:
        if unpacked:
            yield from self._runs(np.frombuffer(b"".join(unpacked), np.uint8), inside=True)

    def _unpacked(self, body: bytes) -> bytes:
        try:
            tool = zlib.decompressobj(wbits=47)  # zlib or gzip
            out = tool.decompress(body, self._room)
        except zlib.error as error:
            raise DamagedFile(f"a compressed packet is damaged ({error})") from None
        self._room -= len(out)
        if tool.unconsumed_tail or not self._room:
            raise DamagedFile(
                f"its compressed packets become more than {_MOST_TIMES} times as large"
            )
        return out

    def _take(self, data: Buffer, starts: I64, lengths: I64) -> None:
        if not len(starts):
            return
        groups = list(_SHAPES.groups(data, starts, lengths))
        lives = self._lives_of(groups, len(starts))
        tables = self._name_tables(data, starts, groups, lives)
        others = [
            (int(place), group.rows[row])
            for group in groups
            if any(group.has(number) for number in _OTHERS)
            for row, place in enumerate(group.places)
            if int(place) not in tables
        ]
        for place, packet in sorted(others, key=lambda other: other[0]):
            for number, body in fields(packet.tobytes()):
                if isinstance(body, bytes):
                    self._other(number, body, int(lives[place]))
        for group in groups:
            if group.has(*EVENT):
                self.events.add(
                    group, self._packets + group.places, lives[group.places], self.texts
                )
        self._packets += len(starts)

    def _name_tables(self, data: Buffer, starts: I64, groups: list[Group], lives: I64) -> set[int]:
        """Take in the packets that only name events, and many; which they are."""
        taken: set[int] = set()
        entries: list[tuple[I64, I64, int]] = []
        for group in groups:
            hole = group.find(p.INTERNED)
            if hole is None or hole.width < _LARGE_TABLE or group.has(*EVENT):
                continue
            for place in group.places.tolist():
                begin = int(starts[place]) + hole.offset
                at, lengths, end = records(data[begin : begin + hole.width], p.NAMES << 3 | 2, 8)
                if end == hole.width:
                    taken.add(place)
                    entries.append((at + begin, lengths, int(lives[place])))
        if entries:
            self.texts.define_all(
                p.NAMES,
                data,
                np.concatenate([entry[0] for entry in entries]),
                np.concatenate([entry[1] for entry in entries]),
                np.concatenate([np.full(len(entry[0]), entry[2]) for entry in entries]),
            )
        return taken

    def _lives_of(self, groups: list[Group], count: int) -> I64:
        """Per packet: which life of its sequence's state it is in; clearing begins a new one."""
        sequence = np.zeros(count, np.int64)
        cleared = np.zeros(count, bool)
        for group in groups:
            if hole := group.find(p.SEQUENCE_ID):
                sequence[group.places] = group.numbers(hole).astype(np.int64)
            if hole := group.find(p.FLAGS):
                cleared[group.places] = group.numbers(hole).astype(np.int64) & p.CLEARED != 0
        lives = np.zeros(count, np.int64)
        for number in np.unique(sequence).tolist():
            mine = np.flatnonzero(sequence == number)
            marks = np.cumsum(cleared[mine])
            here = [self._lives.get(number, 0)]
            for _ in range(int(marks[-1])):
                self._born += 1
                here.append(self._born)
            lives[mine] = np.array(here)[marks]
            self._lives[number] = here[-1]
        return lives

    def _other(self, number: int, body: bytes, life: int) -> None:
        """A part of a packet that is no event."""
        if number == p.INTERNED:
            for kind, entry in fields(body):
                if kind in p.TEXT_KINDS and isinstance(entry, bytes):
                    self.texts.define(kind, life, entry)
        elif number == p.TRACK_DESCRIPTOR:
            track = _track(body)
            self.tracks.setdefault(track.uuid, track)
        elif number == p.ATTRIBUTES:
            for _, attribute in fields(body):
                parts = dict(fields(attribute)) if isinstance(attribute, bytes) else {}
                self.attributes[_text(parts.get(1))] = _value(parts)
        elif number == p.DEFAULTS:
            for kind, defaults in fields(body):
                if kind == p.EVENT_DEFAULTS and isinstance(defaults, bytes):
                    uuid = dict(fields(defaults)).get(p.TRACK, 0)
                    self.events.default_track(life, uuid if isinstance(uuid, int) else 0)


def _track(body: bytes) -> TrackInfo:
    parts = dict(fields(body))
    names = [parts.get(2), parts.get(10)]
    for holder, name in ((3, 6), (4, 5)):  # a process or a thread has its name inside
        inside = parts.get(holder)
        if isinstance(inside, bytes):
            names.append(dict(fields(inside)).get(name))
    counter = parts.get(8)
    unit = ""
    if isinstance(counter, bytes):
        inner = dict(fields(counter))
        known = {1: "ns", 2: "count", 3: "bytes"}.get(_int(inner.get(3)), "value")
        unit = _text(inner.get(6)) or known
    rank = _int(parts.get(12))
    return TrackInfo(
        _int(parts.get(1)),
        next((_text(name) for name in names if name), ""),
        _int(parts.get(5)),
        rank - (1 << 64) if rank >> 63 else rank,
        unit,
        _text(parts.get(14)),
    )


def _value(parts: dict[int, int | bytes]) -> int | str:
    return _text(parts[3]) if 3 in parts else _int(parts.get(2))


def _text(value: int | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _int(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0
