"""The host's own work between executions: templates, tokens, look-ups, the choice of a token."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dielet.profiler import perfetto as p
from dielet.profiler.names import Name
from dielet.profiler.texts import Used
from dielet.profiler.tracks import HOST, Track
from dielet.profiler.wire import number, text


@dataclass(frozen=True)
class HostSlice:
    """Something that the host did for an execution; times in picoseconds of the session's clock.

    work: what, or the module path of the parameter that it used.  thread: 0 for the thread that
    did the first work of the session, others by order of appearance.
    """

    work: str
    start: int
    end: int
    instance: int
    sequence: int
    thread: int = 0

    @property
    def step(self) -> tuple[int, int]:
        return self.instance, self.sequence


def numbered(slices: Iterable[HostSlice]) -> Iterator[tuple[HostSlice, int]]:
    """Each slice with how many of the same work came before it in its step."""
    seen: Counter[tuple[int, int, str]] = Counter()
    for piece in slices:
        key = *piece.step, piece.work
        yield piece, seen[key]
        seen[key] += 1


@dataclass(frozen=True)
class HostEvent:
    """The beginning or the end of a slice, in ps.  index: among the same work of its step."""

    time: int
    piece: HostSlice
    index: int
    is_end: bool


def events(slices: Iterable[tuple[HostSlice, int]]) -> deque[HostEvent]:
    """Beginnings and ends in order of time; of equal times the earlier slice's come first."""
    found = []
    for piece, index in slices:
        found += [HostEvent(piece.start, piece, index, False)]
        found += [HostEvent(piece.end, piece, index, True)]
    return deque(sorted(found, key=lambda event: event.time))


def begin_packet(
    event: HostEvent, merged: bool, name: int, track: Track, used: Used, width: int
) -> bytes:
    """The packet that begins a slice and defines its name, number `name`."""
    piece = event.piece
    instance = piece.instance if merged else None
    called = str(Name(piece.sequence, instance, None, piece.work, event.index))
    body = number(p.TYPE, p.BEGIN) + number(p.TRACK, track.uuid)
    body += number(p.CATEGORY, used.category(HOST)) + number(p.NAME, name)
    return p.stateful(
        number(p.TIMESTAMP, event.time // 1000, width)
        + text(p.INTERNED, text(p.NAMES, number(1, name) + text(2, called)))
        + text(p.TRACK_EVENT, body)
    )


def end_packet(event: HostEvent, track: Track, width: int) -> bytes:
    return p.packet(
        number(p.TIMESTAMP, event.time // 1000, width)
        + number(p.SEQUENCE_ID, p.SEQUENCE)
        + text(p.TRACK_EVENT, number(p.TYPE, p.END) + number(p.TRACK, track.uuid))
    )
