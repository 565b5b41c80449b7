"""Intervals of time, and when engines were busy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
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
    found = {}
    for key, numbers in lanes.items():
        starts, ends = [], []
        for kind in table.kinds:
            mine = np.isin(kind.pieces.lane, numbers)
            if mine.any() and phase in (None, kind.phase):
                starts.append(kind.start[:, mine].ravel())
                ends.append(kind.end[:, mine].ravel())
        if starts:
            found[key] = Spans.union(np.concatenate(starts), np.concatenate(ends))
    return found


def class_spans(table: Table, phase: str | None) -> Iterator[dict[str, Spans]]:
    """Per chiplet: when any engine of each class was busy."""
    by_chiplet: dict[tuple[str, int], dict[str, list[Spans]]] = {}
    for (device, chiplet, _, name), spans in engine_spans(table, phase).items():
        mine = by_chiplet.setdefault((device, chiplet or 0), defaultdict(list))
        mine[name].append(spans)
    host = Spans.union(table.host.start, table.host.end)
    for classes in by_chiplet.values():
        united = {
            name: Spans.union(
                np.concatenate([s.start for s in parts]), np.concatenate([s.end for s in parts])
            )
            for name, parts in classes.items()
        }
        if phase is None and len(host.start):
            united[HOST] = host
        yield united
