"""Commands in the order of their executors, and the time before each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dielet.analysis.table import I32, I64, Bool, Kind, Runs


@dataclass(frozen=True)
class Queues:
    """The commands of all runs of a kind, executor after executor, in columns of [runs, pieces].

    order: the piece at each place, [runs or 1, pieces].  executor: of each place; first: places
    where an executor begins; is_first: which those are.  before: when the executor was
    free: the latest end so far, or the start of the run.
    """

    order: I64
    executor: I32
    first: I64
    is_first: Bool
    start: I64
    end: I64
    before: I64
    run_start: I64
    run_end: I64

    @property
    def gap(self) -> I64:
        """Time in which the executor did nothing before each command."""
        return np.maximum(self.start - self.before, 0)

    @property
    def own(self) -> I64:
        """What each command adds to its executor's busy time."""
        return np.maximum(self.end - np.maximum(self.start, self.before), 0)

    @property
    def last_end(self) -> I64:
        """int64 [runs, executors]: when each was done."""
        return np.maximum.reduceat(self.end, self.first, axis=1)

    def by_piece(self, column: I64) -> I64:
        """A column of places as one of pieces."""
        out = np.empty_like(column)
        np.put_along_axis(out, np.broadcast_to(self.order, column.shape), column, axis=1)
        return out


def queues_of(kind: Kind, runs: Runs) -> Queues:
    executor = kind.pieces.executor
    order = np.lexsort((kind.end[0], kind.start[0], executor))[None, :]
    placed = executor[order[0]]
    is_first = np.diff(placed, prepend=-1) != 0
    start = kind.start[:, order[0]]
    late = np.diff(start, axis=1) < 0
    late[:, is_first[1:]] = False
    if late.any():
        order = np.lexsort((kind.start, np.broadcast_to(executor, kind.start.shape)), axis=1)
        start = np.take_along_axis(kind.start, order, axis=1)
        end = np.take_along_axis(kind.end, order, axis=1)
    else:
        end = kind.end[:, order[0]]
    first = np.flatnonzero(is_first)
    run_start, run_end = runs.start[kind.runs], runs.end[kind.runs]
    before = np.empty_like(end)
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(placed)], strict=True):
        before[:, low] = run_start
        before[:, low + 1 : high] = np.maximum.accumulate(end[:, low : high - 1], axis=1)
    return Queues(order, placed, first, is_first, start, end, before, run_start, run_end)
