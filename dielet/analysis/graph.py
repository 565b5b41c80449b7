"""The dependencies of a kind of runs as a graph: the critical path, and what if.

A command depends on what its arrows and waits say, and on the one before it on its executor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.queues import Queues
from dielet.analysis.table import F64, I64, Bool, Kind

MOST_RUNS = 32
_ROWS = 4  # runs that are walked together


@dataclass(frozen=True)
class Joins:
    """Edges in order of their targets.

    source, target: int64 [edges]; first: where each target's edges begin; targets: those.
    """

    source: I64
    target: I64
    first: I64
    targets: I64

    @staticmethod
    def of(pairs: I64) -> Joins:
        """Of int64 [edges, 2], which keep their order where they have the same target."""
        pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
        first = np.flatnonzero(np.diff(pairs[:, 1], prepend=-1))
        return Joins(pairs[:, 0], pairs[:, 1], first, pairs[first, 1])

    @property
    def counts(self) -> I64:
        return np.diff(np.append(self.first, len(self.source)))

    def bindings(self, start: I64, end: I64, none: I64) -> tuple[I64, I64]:
        """int64 [rows, pieces]: by whom each command was bound (-1: nobody), and when that ended.

        That is the source that ended last of those that had ended when the command began, if
        that was not before `none`, int64 [rows, pieces or 1].
        """
        by = np.full(start.shape, -1, np.int64)
        when = np.broadcast_to(none, by.shape).copy()
        if not len(self.first):
            return by, when
        ended = end[:, self.source]
        ended = np.where(ended <= start[:, self.target], ended, np.iinfo(np.int64).min)
        latest = np.maximum.reduceat(ended, self.first, axis=1)
        is_latest = ended == np.repeat(latest, self.counts, axis=1)
        places = np.where(is_latest, np.arange(len(self.source)), len(self.source))
        chosen = np.minimum.reduceat(places, self.first, axis=1)
        known = latest >= when[:, self.targets]
        by[:, self.targets] = np.where(known, self.source[chosen], -1)
        when[:, self.targets] = np.where(known, latest, when[:, self.targets])
        return by, when


@dataclass(frozen=True)
class Graph:
    """Some runs of a kind.

    rows: which of the kind's runs.  topological: pieces, none before what it depends on.  start,
    end: [rows, pieces]; run_start, run_end: [rows].
    """

    kind: Kind
    rows: I64
    joins: Joins
    topological: I64
    start: I64
    end: I64
    run_start: I64
    run_end: I64

    @property
    def duration(self) -> I64:
        return self.end - self.start


def graph_of(kind: Kind, queues: Queues, rows: I64 | None = None) -> Graph:
    """The graph over some of the runs: at most MOST_RUNS, evenly spaced, if none are given."""
    if rows is None:
        count = len(kind.runs)
        rows = np.unique(np.linspace(0, count - 1, min(count, MOST_RUNS)).round().astype(np.int64))
    order = queues.order[0]
    same = ~queues.is_first[1:]
    follows = np.stack([order[:-1][same], order[1:][same]], axis=1)
    # Of what ended at the same moment a dependency is named before the executor's own order.
    pairs = np.concatenate([kind.edges.astype(np.int64), follows])
    return Graph(
        kind=kind,
        rows=rows,
        joins=Joins.of(pairs),
        topological=np.lexsort((kind.end[0], kind.start[0])),
        start=kind.start[rows],
        end=kind.end[rows],
        run_start=queues.run_start[rows],
        run_end=queues.run_end[rows],
    )


@dataclass(frozen=True)
class Critical:
    """on_path: bool [rows, pieces]; waiting: int64 [rows, pieces], before each command on the path;
    tail: int64 [rows], from the last command's end to the run's."""

    on_path: Bool
    waiting: I64
    tail: I64


def critical_path(graph: Graph) -> Critical:
    rows = len(graph.rows)
    parts = [_path(graph, slice(low, low + _ROWS)) for low in range(0, rows, _ROWS)]
    on_path, waiting, tail = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Critical(on_path, waiting, tail)


def _path(graph: Graph, rows: slice) -> tuple[Bool, I64, I64]:
    """The columns of `Critical` of some runs: of each edge a cell per run is needed on the way."""
    start, end = graph.start[rows], graph.end[rows]
    by, when = graph.joins.bindings(start, end, graph.run_start[rows, None])
    lines = np.arange(len(start))
    on_path = np.zeros(by.shape, bool)
    at = np.argmax(end, axis=1)
    tail = graph.run_end[rows] - end[lines, at]
    while len(lines):
        on_path[lines, at] = True
        at = by[lines, at]
        lines, at = lines[at >= 0], at[at >= 0]
    return on_path, np.where(on_path, start - when, 0), tail


def makespans(graph: Graph, factors: NDArray[np.float64]) -> F64:
    """f64 [cases, rows]: from the run's start to its last command's end, with durations changed.

    factors: f64 [cases, pieces], what each command's duration is multiplied by.
    """
    if not len(graph.topological):
        return np.zeros((len(factors), len(graph.rows)))
    joins, pieces = graph.joins, len(graph.topological)
    lag = graph.start - graph.run_start[:, None]
    if len(joins.first):
        latest = np.maximum.reduceat(graph.end[:, joins.source], joins.first, axis=1)
        lag[:, joins.targets] = graph.start[:, joins.targets] - latest
    sources: list[I64] = [np.zeros(0, np.int64)] * pieces
    for target, mine in zip(
        joins.targets.tolist(), np.split(joins.source, joins.first[1:]), strict=False
    ):
        sources[target] = mine
    shape = len(factors), len(graph.rows)
    end = np.empty((pieces, *shape))
    lags = lag.T.astype(np.float64)
    durations = graph.duration.T[:, None, :] * factors.T[:, :, None]
    for piece in graph.topological.tolist():
        mine = sources[piece]
        if len(mine) == 1:
            end[piece] = end[mine[0]] + lags[piece] + durations[piece]
        elif len(mine):
            end[piece] = end[mine].max(axis=0) + lags[piece] + durations[piece]
        else:
            end[piece] = lags[piece] + durations[piece]
    found: F64 = end.max(axis=0)
    return found
