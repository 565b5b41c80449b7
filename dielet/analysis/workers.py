"""Who does the commands: an engine each, or, where this machine did them, workers.

A worker does commands of several chiplets, and the trace shows those on the chiplets' tracks, where
each says which worker did it.  Older traces say that only of the tracks below an engine's.  There
the others follow from how the host deals commands, if the tracks hold as many as that gives them.
Where they do not it is guessed: tracks that ever overlap are different workers'.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from dielet.analysis.table import COMPUTE, I64, Executor, Kind, Lane
from dielet.host.deal import stretches
from dielet.profiler.names import WORKER, worker_of

SAMPLE = 64  # runs of a kind that are looked at
MOST_WORKERS = 1 << 10  # that are believed to have been dealt to
_EACH, _COUNT = "peaks_of_each", "peaks_count"
Engine = tuple[str, int | None, str]


def with_executors(
    kinds: Sequence[Kind],
    said: Sequence[I64],
    lanes: Sequence[Lane],
    attributes: Mapping[str, int | str],
) -> tuple[list[Kind], tuple[Executor, ...], bool]:
    """The kinds with their pieces' executors, the executors, and whether some are a guess.

    said: of each kind by piece the worker that the trace names, -1 where it names none.
    """
    by_workers = attributes.get("device_clock") == "measured" and "dielet_version" in attributes
    known: dict[Executor, int] = {}
    out = []
    guessed = False
    for kind, told in zip(kinds, said, strict=True):
        of_lane = _engines(kind, lanes)
        if by_workers:
            workers = _told(kind, told) or _dealt(kind, lanes, attributes)
            guessed |= workers is None
            of_lane = {
                n: Executor(lanes[n].device, None, f"{WORKER} {worker}", COMPUTE)
                for n, worker in (workers or _guessed(kind, lanes)).items()
            }
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
    return out, tuple(order), guessed


def _engines(kind: Kind, lanes: Sequence[Lane]) -> dict[int, Executor]:
    return {
        n: Executor(lanes[n].device, lanes[n].chiplet, lanes[n].engine, lanes[n].kind)
        for n in np.unique(kind.pieces.lane).tolist()
    }


def _told(kind: Kind, told: I64) -> dict[int, int] | None:
    """By lane its worker, if all commands say theirs, and those of a lane the same."""
    found = {*zip(kind.pieces.lane.tolist(), told.tolist(), strict=True)}
    worker = dict(found)
    return worker if len(worker) == len(found) and min(worker.values()) >= 0 else None


def _dealt(
    kind: Kind, lanes: Sequence[Lane], attributes: Mapping[str, int | str]
) -> dict[int, int] | None:
    """By lane its worker, if the lanes hold what the host deals to so many workers."""
    count = Counter(kind.pieces.lane.tolist())
    named = {n: w for n in count if (w := worker_of(lanes[n].name)) is not None}
    most = 1 + max(named.values(), default=-1)
    if attributes.get(_EACH) == WORKER:
        most = max(most, int(attributes.get(_COUNT, 0)))
    if not 0 < most <= MOST_WORKERS:
        return None
    shares = _shares(kind, lanes, most)
    worker = dict(named)
    for n in count:
        share = shares[_engine(lanes[n])]
        if n not in named:  # of an engine's workers the one with most is on its own track
            taken = {w for lane, w in named.items() if _same_engine(lanes[lane], lanes[n])}
            free = [w for w in share if w not in taken]
            if not free:
                return None
            worker[n] = max(free, key=lambda w: (share[w], -w))
        if share[worker[n]] != count[n]:
            return None
    if sum(map(Counter.total, shares.values())) != count.total():
        return None
    spans = {n: _spans(kind, n) for n in count}
    same = ((a, b) for a, b in combinations(count, 2) if worker[a] == worker[b])
    return None if any(_overlap(*spans[a], *spans[b]) for a, b in same) else worker


def _shares(kind: Kind, lanes: Sequence[Lane], workers: int) -> dict[Engine, Counter[int]]:
    """By engine how many of its commands, or parts of them, each worker is dealt."""
    pieces = kind.pieces
    columns = pieces.lane.tolist(), pieces.operation.tolist(), pieces.index.tolist()
    groups: dict[tuple[str, int, int], set[int | None]] = defaultdict(set)
    for n, operation, index in zip(*columns, strict=True):
        groups[lanes[n].engine, operation, index].add(lanes[n].chiplet)
    (device,) = {lanes[n].device for n in columns[0]}
    shares: dict[Engine, Counter[int]] = defaultdict(Counter)
    for (engine, _, _), chiplets in groups.items():
        for place, chiplet in enumerate(sorted(chiplets, key=lambda c: c or 0)):
            for worker, _, _ in stretches(place, len(chiplets), workers):
                shares[device, chiplet, engine][worker] += 1
    return shares


def _guessed(kind: Kind, lanes: Sequence[Lane]) -> dict[int, int]:
    """By lane a worker: as few as never do two commands at a time, those that are named first."""
    used = np.unique(kind.pieces.lane).tolist()
    rivals: dict[int, set[int]] = {n: set() for n in used}
    spans = {n: _spans(kind, n) for n in used}
    for a, b in combinations(used, 2):
        if _same_engine(lanes[a], lanes[b]) or _overlap(*spans[a], *spans[b]):
            rivals[a].add(b)
            rivals[b].add(a)
    worker = {n: w for n in used if (w := worker_of(lanes[n].name)) is not None}
    while len(worker) < len(used):
        # Next comes the track that has fewest workers to choose from.
        free = [n for n in used if n not in worker]
        taken = {n: {worker[r] for r in rivals[n] if r in worker} for n in free}
        n = max(free, key=lambda n: (len(taken[n]), len(rivals[n])))
        worker[n] = next(w for w in range(len(used) + 1) if w not in taken[n])
    return worker


def _engine(lane: Lane) -> Engine:
    return lane.device, lane.chiplet, lane.engine


def _same_engine(a: Lane, b: Lane) -> bool:
    """An engine's own track and those below it are different workers'."""
    return _engine(a) == _engine(b)


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
