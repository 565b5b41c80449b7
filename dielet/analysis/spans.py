"""Intervals of time, and when engines were busy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dielet.analysis.table import HOST, I64, Table


@dataclass(frozen=True)
class Spans:
    """Intervals that do not touch, in order."""

    start: I64
    end: I64

    @staticmethod
    def union(start: I64, end: I64) -> Spans:
        """What any of some intervals covers."""
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if not len(start):
            return Spans(start, end)
        latest = np.maximum.accumulate(end)
        first = np.flatnonzero(np.append(True, start[1:] > latest[:-1]))
        return Spans(start[first], latest[np.append(first[1:], len(start)) - 1])

    @staticmethod
    def joined(parts: Sequence[Spans]) -> Spans:
        """What any of some sets of intervals covers."""
        return Spans.union(
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.end for part in parts]),
        )

    @property
    def length(self) -> int:
        return int((self.end - self.start).sum())

    def before(self, times: I64) -> I64:
        """How much of the intervals lies before each of some times."""
        if not len(self.start):
            return np.zeros(len(times), np.int64)
        total = np.append(0, np.cumsum(self.end - self.start))
        place = np.searchsorted(self.start, times, side="right")
        last = np.maximum(place - 1, 0)
        over = np.maximum(self.end[last] - times, 0)
        return total[place] - np.where(place > 0, over, 0)

    def shared(self, other: Spans) -> int:
        """The time that both cover."""
        return int((other.before(self.end) - other.before(self.start)).sum())


def engine_spans(
    table: Table, phase: str | None = None
) -> dict[tuple[str, int | None, str, str], Spans]:
    """When each engine of each chiplet was busy, in all runs or those of a phase.

    By device, chiplet, engine and class.
    """
    lanes: dict[tuple[str, int | None, str, str], list[int]] = defaultdict(list)
    for number, lane in enumerate(table.lanes):
        if lane.kind != HOST:
            lanes[lane.device, lane.chiplet, lane.engine, lane.kind].append(number)
    parts: dict[tuple[str, int | None, str, str], list[Spans]] = {key: [] for key in lanes}
    for kind in table.kinds:
        if phase not in (None, kind.phase):
            continue
        places = {
            key: np.flatnonzero(np.isin(kind.pieces.lane, numbers))
            for key, numbers in lanes.items()
        }
        for rows in kind.blocks():
            start, end = kind.start[rows], kind.end[rows]
            for key, mine in places.items():
                if len(mine):
                    parts[key].append(Spans.union(start[:, mine].ravel(), end[:, mine].ravel()))
    # One after the other, so that what was joined does not stay beside it.
    found = ((key, parts.pop(key)) for key in list(parts))
    return {key: Spans.joined(mine) for key, mine in found if mine}


def class_spans(table: Table, phase: str | None) -> Iterator[dict[str, Spans]]:
    """Per chiplet: when any engine of each class was busy."""
    by_chiplet: dict[tuple[str, int], dict[str, list[Spans]]] = {}
    for (device, chiplet, _, name), spans in engine_spans(table, phase).items():
        mine = by_chiplet.setdefault((device, chiplet or 0), defaultdict(list))
        mine[name].append(spans)
    host = Spans.union(table.host.start, table.host.end)
    for classes in by_chiplet.values():
        united = {name: Spans.joined(parts) for name, parts in classes.items()}
        if phase is None and len(host.start):
            united[HOST] = host
        yield united
