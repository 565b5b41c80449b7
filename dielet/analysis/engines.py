"""Where the time of every executor went, and which classes of engines work at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dielet.analysis.queues import Queues
from dielet.analysis.schema import Engine, Overlap
from dielet.analysis.steps import Steps
from dielet.analysis.table import CLASSES, HOST, I64, Table

RUN = "run"
"""The scope that is the whole window."""


@dataclass(frozen=True)
class Use:
    """Per run and executor, int64 [runs, executors]: busy, waiting, and how many commands."""

    busy: I64
    waiting: I64
    commands: I64


def use_of(table: Table, queues: Sequence[Queues]) -> Use:
    shape = len(table.runs), len(table.executors)
    use = Use(*(np.zeros(shape, np.int64) for _ in range(3)))
    for kind, queue in zip(table.kinds, queues, strict=True):
        there = np.ix_(kind.runs, queue.executor[queue.first])
        use.busy[there] = np.add.reduceat(queue.own, queue.first, axis=1)
        use.waiting[there] = np.add.reduceat(queue.gap, queue.first, axis=1)
        use.commands[there] = np.diff([*queue.first.tolist(), len(queue.executor)])
    return use


def find_engines(table: Table, steps: Steps, use: Use) -> tuple[Engine, ...]:
    phase_of_step = np.array([step.phase for step in steps.steps])
    phase_of_run = phase_of_step[steps.of_run]
    scopes = [(RUN, np.ones(len(table.runs), bool), table.finish - table.begin)]
    for phase in steps.phases():
        spent = sum(step.duration_ns for step in steps.of_phase(phase))
        scopes.append((phase, phase_of_run == phase, spent))
    found = []
    for scope, mine, whole in scopes:
        columns = (use.busy, use.waiting, use.commands)
        totals = zip(*(column[mine].sum(axis=0).tolist() for column in columns), strict=True)
        for executor, (busy, waiting, commands) in zip(table.executors, totals, strict=True):
            if commands:
                idle = whole - busy - waiting
                found.append(
                    Engine(
                        scope=scope,
                        device=executor.device,
                        chiplet=executor.chiplet,
                        engine=executor.engine,
                        kind=executor.kind,
                        commands=commands,
                        busy_ns=busy,
                        waiting_ns=waiting,
                        idle_ns=idle,
                        busy=busy / max(whole, 1),
                        waiting=waiting / max(whole, 1),
                        idle=idle / max(whole, 1),
                    )
                )
    return tuple(found)


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


def class_spans(table: Table, phase: str | None) -> Iterator[tuple[str, dict[str, Spans]]]:
    """Per chiplet: when each class of its engines was busy, in all runs or those of a phase."""
    chiplets = sorted({(lane.device, lane.chiplet or 0) for lane in table.lanes
                       if lane.kind != HOST})  # fmt: skip
    place_of = [
        (chiplets.index((lane.device, lane.chiplet or 0)), lane.kind) if lane.kind != HOST else None
        for lane in table.lanes
    ]
    host = Spans.union(table.host.start, table.host.end)
    for number in range(len(chiplets)):
        spans = {}
        for name in CLASSES:
            if name == HOST:
                if len(host.start) and phase is None:
                    spans[name] = host
                continue
            lanes = [n for n, place in enumerate(place_of) if place == (number, name)]
            starts, ends = [], []
            for kind in table.kinds:
                mine = np.isin(kind.pieces.lane, lanes)
                if mine.any() and phase in (None, kind.phase):
                    starts.append(kind.start[:, mine].ravel())
                    ends.append(kind.end[:, mine].ravel())
            if starts:
                spans[name] = Spans.union(np.concatenate(starts), np.concatenate(ends))
        yield f"{chiplets[number]}", spans


def find_overlap(table: Table) -> tuple[Overlap, ...]:
    found = []
    for phase in (None, *table.phases()):
        first: dict[str, int] = {}
        both: dict[tuple[str, str], int] = {}
        for _, spans in class_spans(table, phase):
            for name, mine in spans.items():
                first[name] = first.get(name, 0) + mine.length
            for a, b in product(spans, spans):
                shared = spans[a].length if a == b else spans[a].shared(spans[b])
                both[a, b] = both.get((a, b), 0) + shared
        found += [
            Overlap(phase or RUN, a, b, first[a], ns, ns / first[a] if first[a] else 0.0)
            for (a, b), ns in both.items()
        ]
    return tuple(found)
