"""The host's own work between executions: templates, tokens, look-ups, the choice of a token."""

from __future__ import annotations

from collections import Counter
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


def packets(
    piece: HostSlice, index: int, merged: bool, name: int, track: Track, used: Used, width: int
) -> bytes:
    """The two packets of one slice, its name (number `name`) defined in the first."""
    instance = piece.instance if merged else None
    called = str(Name(piece.sequence, instance, None, piece.work, index))
    on_track = number(p.TRACK, track.uuid)
    event = number(p.TYPE, p.BEGIN) + on_track
    event += number(p.CATEGORY, used.category(HOST)) + number(p.NAME, name)
    begin = p.stateful(
        number(p.TIMESTAMP, piece.start // 1000, width)
        + text(p.INTERNED, text(p.NAMES, number(1, name) + text(2, called)))
        + text(p.TRACK_EVENT, event)
    )
    end = p.packet(
        number(p.TIMESTAMP, piece.end // 1000, width)
        + number(p.SEQUENCE_ID, p.SEQUENCE)
        + text(p.TRACK_EVENT, number(p.TYPE, p.END) + on_track)
    )
    return begin + end
