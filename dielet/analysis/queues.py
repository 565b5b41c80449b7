"""Commands in the order of their executors, and the time before each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dielet.analysis.table import I32, I64, Bool, Kind, Runs


@dataclass(frozen=True)
class Part:
    """Some runs, commands executor after executor: int64 [runs, places].

    before: when the executor was free, the latest end so far or the start of the run.
    """

    start: I64
    end: I64
    before: I64

    @property
    def gap(self) -> I64:
        """Time in which the executor did nothing before each command."""
        return np.maximum(self.start - self.before, 0)

    @property
    def own(self) -> I64:
        """What each command adds to its executor's busy time."""
        return np.maximum(self.end - np.maximum(self.start, self.before), 0)


@dataclass(frozen=True)
class Queues:
    """The order of a kind's commands.

    order: the piece at each place, [runs or 1, pieces].  executor: of each place; first: places
    where an executor begins; is_first: which those are.  last_end: int64 [runs, executors], when
    each was done.
    """

    kind: Kind
    order: I32
    executor: I32
    first: I64
    is_first: Bool
    run_start: I64
    run_end: I64
    last_end: I64

    def part(self, rows: slice) -> Part:
        start, end = _ordered(self.kind, self.order, rows)
        before = np.empty_like(end)
        bounds = [*self.first[1:].tolist(), len(self.executor)]
        for low, high in zip(self.first.tolist(), bounds, strict=True):
            before[:, low] = self.run_start[rows]
            before[:, low + 1 : high] = np.maximum.accumulate(end[:, low : high - 1], axis=1)
        return Part(start, end, before)

    def by_piece(self, rows: slice, column: I64) -> I64:
        """A column of places of some runs as one of pieces."""
        out = np.empty_like(column)
        order = self.order if len(self.order) == 1 else self.order[rows]
        np.put_along_axis(out, np.broadcast_to(order, column.shape), column, axis=1)
        return out


def queues_of(kind: Kind, runs: Runs) -> Queues:
    executor = kind.pieces.executor
    order = np.lexsort((kind.end[0], kind.start[0], executor))[None, :].astype(np.int32)
    placed = executor[order[0]]
    is_first = np.diff(placed, prepend=-1) != 0
    if any(_late(kind, order, is_first, rows) for rows in kind.blocks()):
        order = np.empty(kind.start.shape, np.int32)
        for rows in kind.blocks():
            start = kind.start[rows]
            order[rows] = np.lexsort((start, np.broadcast_to(executor, start.shape)), axis=1)
    first = np.flatnonzero(is_first)
    last = np.empty((len(kind.runs), len(first)), np.int64)
    for rows in kind.blocks():
        last[rows] = np.maximum.reduceat(_ordered(kind, order, rows)[1], first, axis=1)
    return Queues(
        kind=kind,
        order=order,
        executor=placed,
        first=first,
        is_first=is_first,
        run_start=runs.start[kind.runs],
        run_end=runs.end[kind.runs],
        last_end=last,
    )


def _ordered(kind: Kind, order: I32, rows: slice) -> tuple[I64, I64]:
    """Starts and ends of some runs, executor after executor."""
    if len(order) == 1:
        return kind.start[rows][:, order[0]], kind.end[rows][:, order[0]]
    mine = order[rows]
    start = np.take_along_axis(kind.start[rows], mine, axis=1)
    return start, np.take_along_axis(kind.end[rows], mine, axis=1)


def _late(kind: Kind, order: I32, is_first: Bool, rows: slice) -> bool:
    """Whether in some run an executor took its commands in another order."""
    late = np.diff(_ordered(kind, order, rows)[0], axis=1) < 0
    return bool(late[:, ~is_first[1:]].any())
