"""Where the time of every executor went, and which classes of engines work at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dielet.analysis.queues import Queues
from dielet.analysis.schema import Engine, Overlap
from dielet.analysis.spans import class_spans
from dielet.analysis.steps import Steps
from dielet.analysis.table import I64, Table

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
        for rows in kind.blocks():
            part = queue.part(rows)
            there = np.ix_(kind.runs[rows], queue.executor[queue.first])
            use.busy[there] = np.add.reduceat(part.own, queue.first, axis=1)
            use.waiting[there] = np.add.reduceat(part.gap, queue.first, axis=1)
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


def find_overlap(table: Table) -> tuple[Overlap, ...]:
    found = []
    for phase in (None, *table.phases()):
        first: dict[str, int] = {}
        both: dict[tuple[str, str], int] = {}
        for spans in class_spans(table, phase):
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
