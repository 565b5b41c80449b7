"""Idle time: what each executor waited for whenever it did nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.graph import Joins
from dielet.analysis.queues import Queues
from dielet.analysis.schema import Gap, GapCause
from dielet.analysis.steps import Steps
from dielet.analysis.table import I64, Bool, Executor, HostWork, Kind, Table

DEPENDENCY, OTHER_CHIPLET, DELAY = "dependency", "other chiplet", "delay"
IMBALANCE, NO_WORK, HOST, UNKNOWN = "imbalance", "no work", "host", "unknown"
NOT_RECORDED = "not recorded"
_LOOK_BACK = 64  # slices of the host that began before an interval and may reach into it
LONGEST = 200  # gaps that are told one by one; `every_gap` has all
ALL = "all engines"
_CELLS = 1 << 17  # rows x edges that are looked at together

Key = tuple[str, str, str, str, str]
"""Cause, phase, engine that stood idle, engine and kind that it waited for."""


@dataclass
class _Tally:
    lost: int = 0
    gaps: int = 0


@dataclass
class Gaps:
    """Causes as they add up, and the longest gaps."""

    causes: dict[Key, _Tally] = field(default_factory=dict)
    longest: list[tuple[int, Gap]] = field(default_factory=list)

    def add(self, key: Key, lost: int, gaps: int) -> None:
        if lost > 0:
            tally = self.causes.setdefault(key, _Tally())
            tally.lost += lost
            tally.gaps += gaps


def find_gaps(
    table: Table, steps: Steps, queues: Sequence[Queues]
) -> tuple[tuple[GapCause, ...], tuple[Gap, ...]]:
    found = Gaps()
    for kind, queue in zip(table.kinds, queues, strict=True):
        _within(table, steps, kind, queue, found)
        _after(table, kind, queue, found)
    _between(table, found)
    gaps = tuple(gap for _, gap in sorted(found.longest, key=lambda item: -item[0])[:LONGEST])
    whole = max((table.finish - table.begin) * len(table.executors), 1)
    first: dict[tuple[str, str, str], int] = {}
    for number, gap in enumerate(gaps):
        first.setdefault((gap.cause, gap.phase, gap.engine), number)
    causes = [
        GapCause(*key, tally.gaps, tally.lost, tally.lost / whole, first.get(key[:3], -1))
        for key, tally in found.causes.items()
    ]
    return tuple(sorted(causes, key=lambda c: -c.lost_ns)), gaps


@dataclass(frozen=True)
class _Named:
    """What pieces are called in causes: numbers of (engine, kind), and of who stood idle."""

    names: list[tuple[str, str]]
    number: I64
    idle: list[str]
    idle_number: I64


def _named(table: Table, kind: Kind) -> _Named:
    lanes = [table.lanes[n] for n in kind.pieces.lane.tolist()]
    pairs = [
        (lane.engine, table.text(k))
        for lane, k in zip(lanes, kind.pieces.kind.tolist(), strict=True)
    ]
    names = list(dict.fromkeys(pairs))
    engines = [table.executors[n].engine for n in kind.pieces.executor.tolist()]
    idle = list(dict.fromkeys(engines))
    return _Named(
        names,
        np.array([names.index(pair) for pair in pairs]),
        idle,
        np.array([idle.index(engine) for engine in engines]),
    )


@dataclass(frozen=True)
class Looked:
    """What ended the gaps of some runs of a kind, [runs, pieces].

    gap: how long the executor did nothing before each command; waited: for a dependency.  by: the
    dependency that ended last, or -1; same: it is on the same engine of another chiplet.
    rest_name, [pieces]: what the rest of the gap is called.
    """

    kind: Kind
    part: slice
    gap: I64
    waited: I64
    by: I64
    same: Bool
    rest_name: NDArray[np.str_]

    def gap_at(self, table: Table, steps: Steps, place: int, names: Sequence[str]) -> Gap:
        """The gap at a place; names: of the kind's commands."""
        row, piece = divmod(place, self.gap.shape[1])
        length = int(self.gap[row, piece])
        executor = table.executors[int(self.kind.pieces.executor[piece])]
        cause = str(self.rest_name[piece])
        if 2 * int(self.waited[row, piece]) >= length:
            cause = OTHER_CHIPLET if self.same[row, piece] else DEPENDENCY
        source = int(self.by[row, piece])
        return Gap(
            step=int(steps.of_run[int(self.kind.runs[self.part][row])]),
            phase=self.kind.phase,
            chiplet=executor.chiplet,
            engine=executor.engine,
            start_ns=int(self.kind.start[self.part][row, piece]) - length,
            duration_ns=length,
            cause=cause,
            before=names[piece],
            waited=names[source] if source >= 0 else "",
        )


def look(table: Table, kind: Kind, queue: Queues) -> Iterator[Looked]:
    """The gaps that end with a command, some runs after the other."""
    joins = Joins.of(kind.edges.astype(np.int64))
    chiplet = np.array([table.lanes[n].chiplet or 0 for n in kind.pieces.lane.tolist()])
    engines = [lane.engine for lane in table.lanes]
    engine = np.array([engines.index(engines[n]) for n in kind.pieces.lane.tolist()])
    has_edges = np.zeros(len(kind.pieces), bool)
    has_edges[joins.targets] = True
    rest_name = np.where(has_edges, DELAY, UNKNOWN)
    rows = max(_CELLS // max(len(joins.source), len(kind.pieces), 1), 1)
    for low in range(0, len(kind.runs), rows):
        part = slice(low, low + rows)
        start, free = kind.start[part], queue.by_piece(part, queue.part(part).before)
        by, when = joins.bindings(start, kind.end[part], np.minimum(free, start))
        gap = np.maximum(start - free, 0)
        waited = np.where(by >= 0, when - np.minimum(free, start), 0)
        source = np.maximum(by, 0)
        same = (engine[source] == engine) & (chiplet[source] != chiplet) & (by >= 0)
        yield Looked(kind, part, gap, waited, by, same, rest_name)


def _within(table: Table, steps: Steps, kind: Kind, queue: Queues, found: Gaps) -> None:
    """Gaps that end with a command."""
    named = _named(table, kind)
    names = command_names(table, kind)
    for seen in look(table, kind, queue):
        _tally(kind, named, found, seen.waited, np.maximum(seen.by, 0), seen.same)
        rest = seen.gap - seen.waited
        for cause in (DELAY, UNKNOWN):
            _tally_plain(kind, named, found, rest * (seen.rest_name == cause), cause)
        _note_longest(table, steps, seen, names, found)


def _tally(kind: Kind, named: _Named, found: Gaps, waited: I64, source: I64, same: Bool) -> None:
    width = len(named.names)
    code = (named.idle_number * width + named.number[source]) * 2 + same
    size = len(named.idle) * width * 2
    there = waited > 0
    lost = np.bincount(code[there], waited[there], size)
    count = np.bincount(code[there], minlength=size)
    for place in np.flatnonzero(count).tolist():
        rest, is_other = divmod(place, 2)
        idle, name = divmod(rest, width)
        cause = OTHER_CHIPLET if is_other else DEPENDENCY
        key = cause, kind.phase, named.idle[idle], *named.names[name]
        found.add(key, round(float(lost[place])), int(count[place]))


def _tally_plain(kind: Kind, named: _Named, found: Gaps, lost: I64, cause: str) -> None:
    totals = np.bincount(named.idle_number, lost.sum(axis=0), len(named.idle))
    counts = np.bincount(named.idle_number, (lost > 0).sum(axis=0), len(named.idle))
    for engine, total, count in zip(named.idle, totals.tolist(), counts.tolist(), strict=True):
        found.add((cause, kind.phase, engine, "", ""), round(total), round(count))


def _note_longest(
    table: Table, steps: Steps, seen: Looked, names: Sequence[str], found: Gaps
) -> None:
    flat = seen.gap.ravel()
    most = min(LONGEST, len(flat))
    for place in np.argpartition(flat, len(flat) - most)[len(flat) - most :].tolist():
        if flat[place] > 0:
            gap = seen.gap_at(table, steps, place, names)
            found.longest.append((gap.duration_ns, gap))
    if len(found.longest) > 4 * LONGEST:
        found.longest = sorted(found.longest, key=lambda item: -item[0])[:LONGEST]


def command_names(table: Table, kind: Kind) -> list[str]:
    return [command_name(table, kind, piece) for piece in range(len(kind.pieces))]


def command_name(table: Table, kind: Kind, piece: int) -> str:
    """A command as causes in words name it: operation, index, chiplet."""
    pieces = kind.pieces
    chiplet = table.lanes[int(pieces.lane[piece])].chiplet
    where = "" if chiplet is None else f" (chiplet {chiplet})"
    return f"{table.text(int(pieces.operation[piece]))}_{int(pieces.index[piece])}{where}"


def _after(table: Table, kind: Kind, queue: Queues, found: Gaps) -> None:
    """What is left of the runs after each executor's last command, and of those without any."""
    for number, cause, _, lost in after_last(table, queue):
        name = table.executors[number].engine
        found.add((cause, kind.phase, name, "", ""), int(lost.sum()), int((lost > 0).sum()))


def after_last(table: Table, queue: Queues) -> Iterator[tuple[int, str, I64, I64]]:
    """By executor and cause: when what is left after its last command begins, and how long it is.

    Both int64 [runs].
    """
    executors = queue.executor[queue.first].tolist()
    families = [table.executors[n].family for n in executors]
    last = queue.last_end
    for place, number in enumerate(executors):
        mine = last[:, place]
        peers = [n for n, other in enumerate(families) if other == families[place]]
        slowest = np.minimum(last[:, peers].max(axis=1), queue.run_end)
        yield number, IMBALANCE, mine, np.maximum(slowest - mine, 0)
        done = np.maximum(slowest, mine)
        yield number, NO_WORK, done, np.maximum(queue.run_end - done, 0)
    devices = {table.executors[n].device for n in executors}
    for number, executor in enumerate(table.executors):
        if number not in executors and executor.device in devices:
            yield number, NO_WORK, queue.run_start, queue.run_end - queue.run_start


def _between(table: Table, found: Gaps) -> None:
    """Time in which no run was under way on a device."""
    for executors, gap, work in between_runs(table):
        for what, ns in work.items():
            found.add((HOST, gap.phase, ALL, "Host", what), ns * executors, 1)
        found.longest.append((gap.duration_ns, gap))


def between_runs(table: Table) -> Iterator[tuple[int, Gap, dict[str, int]]]:
    """How many executors stand idle, one gap for all of them, and the host's work in it in ns."""
    for device, executors in _devices(table).items():
        host = _host_of(table, device)
        latest = np.maximum.accumulate(host.end)
        mine = [n for n, executor in enumerate(table.executors) if executor.device == device]
        used = [k.runs for k in table.kinds if np.isin(k.pieces.executor, mine).any()]
        runs = np.sort(np.concatenate(used)) if used else np.zeros(0, np.int64)
        ends = np.maximum.accumulate(table.runs.end[runs])
        low = np.append(table.begin, ends)
        high = np.append(table.runs.start[runs], table.finish)
        phases = [*(table.runs.phase[n] for n in runs.tolist()), ""]
        for place in np.flatnonzero(high > low).tolist():
            begin, end = int(low[place]), int(high[place])
            phase = phases[place] or phases[place - 1]
            work = _host_work(host, latest, begin, end)
            most = max(work, key=lambda what: work[what])
            gap = Gap(-1, phase, None, ALL, begin, end - begin, HOST, phases[place], most)
            yield len(executors), gap, work


def _devices(table: Table) -> dict[str, list[Executor]]:
    found: dict[str, list[Executor]] = {}
    for executor in table.executors:
        found.setdefault(executor.device, []).append(executor)
    return found


def _host_of(table: Table, device: str) -> HostWork:
    """The host's work without that for models of other devices."""
    model = table.models.get(device)
    return table.host.part(
        np.array([table.models.get(name, model) == model for name in table.host.device], bool)
    )


def _host_work(host: HostWork, latest: I64, begin: int, end: int) -> dict[str, int]:
    """What the host did in an interval, in ns, and the rest as NOT_RECORDED; all of it once.

    latest: when everything of the host that began so far was done, by place.
    """
    last = int(np.searchsorted(host.start, end))
    first = int(np.searchsorted(latest, begin, side="right"))
    first = max(first, int(np.searchsorted(host.start, begin)) - _LOOK_BACK)
    spent: dict[str, int] = {}
    covered = begin
    for place in range(first, last):
        done = min(int(host.end[place]), end)
        mine = done - max(int(host.start[place]), covered)
        if mine > 0:
            spent[host.what[place]] = spent.get(host.what[place], 0) + mine
            covered = done
    rest = end - begin - sum(spent.values())
    if rest > 0:
        spent[NOT_RECORDED] = rest
    return spent
