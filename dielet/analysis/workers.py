"""Who does the commands: an engine each, or, where this machine did them, workers.

A worker does commands of several chiplets, and the trace shows those on the chiplets' tracks.
Tracks below an engine's say which worker they are; of the others it is found out: tracks that
ever overlap are different workers'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from dielet.analysis.table import COMPUTE, I64, WORKER, Executor, Kind, Lane

SAMPLE = 64  # runs of a kind that are looked at
_WORKER = re.compile(r"worker (\d{1,9})")


def with_executors(
    kinds: Sequence[Kind], lanes: Sequence[Lane], attributes: Mapping[str, int | str]
) -> tuple[list[Kind], tuple[Executor, ...]]:
    """The kinds with their pieces' executors, and the executors."""
    by_workers = attributes.get("device_clock") == "measured" and "dielet_version" in attributes
    known: dict[Executor, int] = {}
    out = []
    for kind in kinds:
        of_lane = _workers(kind, lanes) if by_workers else _engines(kind, lanes)
        place = {lane: known.setdefault(e, len(known)) for lane, e in of_lane.items()}
        executor = np.array([place[lane] for lane in kind.pieces.lane.tolist()], np.int32)
        out.append(replace(kind, pieces=replace(kind.pieces, executor=executor)))
    order = sorted(known, key=lambda e: (e.device, e.chiplet or 0, e.engine))
    if [known[e] for e in order] != list(range(len(order))):
        ranks = np.array([order.index(e) for e in known], np.int32)
        out = [
            replace(kind, pieces=replace(kind.pieces, executor=ranks[kind.pieces.executor]))
            for kind in out
        ]
    return out, tuple(order)


def _engines(kind: Kind, lanes: Sequence[Lane]) -> dict[int, Executor]:
    return {
        n: Executor(lanes[n].device, lanes[n].chiplet, lanes[n].engine, lanes[n].kind)
        for n in np.unique(kind.pieces.lane).tolist()
    }


def _workers(kind: Kind, lanes: Sequence[Lane]) -> dict[int, Executor]:
    used = np.unique(kind.pieces.lane).tolist()
    rivals: dict[int, set[int]] = {n: set() for n in used}
    spans = {n: _spans(kind, n) for n in used}
    for a, b in combinations(used, 2):
        if _same_engine(lanes[a], lanes[b]) or _overlap(*spans[a], *spans[b]):
            rivals[a].add(b)
            rivals[b].add(a)
    worker = {n: int(m[1]) for n in used if (m := _WORKER.fullmatch(lanes[n].name))}
    while len(worker) < len(used):
        # Next comes the track that has fewest workers to choose from.
        free = [n for n in used if n not in worker]
        taken = {n: {worker[r] for r in rivals[n] if r in worker} for n in free}
        n = max(free, key=lambda n: (len(taken[n]), len(rivals[n])))
        worker[n] = next(w for w in range(len(used) + 1) if w not in taken[n])
    return {n: Executor(lanes[n].device, None, f"{WORKER} {worker[n]}", COMPUTE) for n in used}


def _same_engine(a: Lane, b: Lane) -> bool:
    """An engine's own track and those below it are different workers'."""
    return (a.device, a.chiplet, a.engine) == (b.device, b.chiplet, b.engine)


def _spans(kind: Kind, lane: int) -> tuple[I64, I64]:
    """Starts and ends of a lane's commands in some runs, in order."""
    mine = kind.pieces.lane == lane
    start, end = (column[:SAMPLE, mine].ravel() for column in (kind.start, kind.end))
    long = end > start
    order = np.argsort(start[long], kind="stable")
    return start[long][order], end[long][order]


def _overlap(start: I64, end: I64, other_start: I64, other_end: I64) -> bool:
    """Whether any of two rows of intervals, each in order, share time."""
    if not len(start) or not len(other_start):
        return False
    latest = np.maximum.accumulate(end)
    first = np.searchsorted(latest, other_start, side="right")
    inside = first < len(start)
    return bool((start[first[inside]] < other_end[inside]).any())
