"""The critical path of each phase, by what is on it; and what if a kind of command were faster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dielet.analysis.graph import Critical, Graph, critical_path, graph_of, makespans
from dielet.analysis.operations import Key
from dielet.analysis.queues import Queues
from dielet.analysis.schema import Path, PathPart, WhatIf
from dielet.analysis.table import F64, I64, Kind, Table
from dielet.errors import UsageError

MOST_KINDS = 8  # kinds of runs of one program that are looked at: those with most runs
WAITING, END = "(waiting)", "(end of the run)"
SHRINK = 0.5
SMALL = 0.005  # share of the path below which a kind is not asked about
WAYS = ("engine", "kind", "layer", "bound", "operation")


@dataclass(frozen=True)
class Walked:
    """A kind of runs with its graph and path.  weight: runs that each looked at stands for."""

    kind: Kind
    graph: Graph
    critical: Critical

    @property
    def weight(self) -> float:
        return len(self.kind.runs) / len(self.graph.rows)

    def total(self, column: I64) -> F64:
        """f64 [pieces]: a column [rows, pieces] as it would add up over all runs of the kind."""
        return np.asarray(column.sum(axis=0) * self.weight, np.float64)


def walk(table: Table, queues: Sequence[Queues]) -> list[Walked]:
    by_program: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, kind in enumerate(table.kinds):
        by_program[kind.phase, kind.program].append(number)
    found = []
    for numbers in by_program.values():
        numbers.sort(key=lambda n: -len(table.kinds[n].runs))
        for number in numbers[:MOST_KINDS]:
            graph = graph_of(table.kinds[number], queues[number])
            found.append(Walked(table.kinds[number], graph, critical_path(graph)))
    return found


def labels(table: Table, kind: Kind, by: str) -> list[str]:
    """What each piece is called, seen by engine, kind, layer or operation."""
    pieces = kind.pieces
    if by == "engine":
        return [table.lanes[n].engine for n in pieces.lane.tolist()]
    if by == "kind":
        known = [table.text(n) for n in pieces.kind.tolist()]
        return [
            k or table.lanes[n].engine for k, n in zip(known, pieces.lane.tolist(), strict=True)
        ]
    if by == "layer":
        return [layer_name(table.layer[n]) for n in pieces.operation.tolist()]
    return [table.group[n] for n in pieces.operation.tolist()]


def layer_name(layer: int) -> str:
    return f"layer {layer}" if layer >= 0 else "no layer"


def path_times(table: Table, walked: Sequence[Walked], by: str) -> dict[str, dict[str, float]]:
    """By phase: ns on the path by name, over all runs of the phase that were looked at."""
    found: dict[str, dict[str, float]] = {}
    for each in walked:
        mine = found.setdefault(each.kind.phase, defaultdict(float))
        own = each.graph.duration * each.critical.on_path
        mine[WAITING] += float(each.critical.waiting.sum()) * each.weight
        mine[END] += float(each.critical.tail.sum()) * each.weight
        if by == "bound":
            bound = each.kind.bound[each.graph.rows]
            for number in np.unique(bound).tolist():
                name = table.bounds[number] if number >= 0 else "unknown"
                mine[name] += float((own * (bound == number)).sum()) * each.weight
            continue
        for name, ns in zip(labels(table, each.kind, by), each.total(own).tolist(), strict=True):
            if ns:
                mine[name] += ns
    return found


def path_per_run(table: Table, walked: Sequence[Walked], by: str) -> dict[str, dict[str, float]]:
    """The same as `path_times`, per run."""
    found = path_times(table, walked, by)
    for phase, times in found.items():
        runs = sum(len(each.kind.runs) for each in walked if each.kind.phase == phase)
        found[phase] = {name: ns / runs for name, ns in times.items()}
    return found


def path_by_operation(table: Table, walked: Sequence[Walked]) -> dict[Key, float]:
    """ns on the path, per run, by operation, phase, program and kind."""
    found: dict[Key, float] = defaultdict(float)
    runs: dict[tuple[str, str], int] = defaultdict(int)
    for each in walked:
        runs[each.kind.phase, each.kind.program] += len(each.kind.runs)
        own = each.total(each.graph.duration * each.critical.on_path).tolist()
        pieces = each.kind.pieces
        for n, ns in enumerate(own):
            name = table.group[int(pieces.operation[n])], table.text(int(pieces.kind[n]))
            found[name[0], each.kind.phase, each.kind.program, name[1]] += ns
    return {key: ns / runs[key[1], key[2]] for key, ns in found.items()}


def find_paths(table: Table, walked: Sequence[Walked]) -> tuple[Path, ...]:
    found = []
    for phase in dict.fromkeys(each.kind.phase for each in walked):
        mine = [each for each in walked if each.kind.phase == phase]
        runs = sum(len(each.kind.runs) for each in mine)
        spans = sum(_span(each) for each in mine)
        commands = sum(float(each.critical.on_path.sum()) * each.weight for each in mine)
        waiting = sum(
            float(each.critical.waiting.sum() + each.critical.tail.sum()) * each.weight
            for each in mine
        )
        found.append(
            Path(
                phase=phase,
                steps=table.runs.phase.count(phase),
                steps_used=sum(len(each.graph.rows) for each in mine),
                per_step_ns=spans / runs,
                commands_per_step=commands / runs,
                waiting_ns=waiting / runs,
            )
        )
    return tuple(found)


def _span(each: Walked) -> float:
    return float((each.graph.run_end - each.graph.run_start).sum()) * each.weight


def find_parts(table: Table, walked: Sequence[Walked]) -> tuple[PathPart, ...]:
    found = []
    for by in WAYS:
        for phase, times in path_times(table, walked, by).items():
            mine = [each for each in walked if each.kind.phase == phase]
            whole = sum(map(_span, mine))
            runs = sum(len(each.kind.runs) for each in mine)
            for name, ns in sorted(times.items(), key=lambda item: -item[1]):
                if ns:
                    found.append(
                        PathPart(
                            phase, by, name, round(ns), ns / runs, ns / whole if whole else 0.0
                        )
                    )
    return tuple(found)


def find_what_if(
    table: Table, walked: Sequence[Walked], asked: Mapping[str, float] | None = None
) -> tuple[WhatIf, ...]:
    """Every kind and engine that is on the path at SHRINK of its time, or what is asked for.

    Raises UsageError for a factor that is none, and for a name that the trace does not have.
    """
    cases = _on_path(table, walked) if asked is None else _asked(table, walked, asked)
    found = []
    for phase, wanted in cases.items():
        if wanted:
            of_phase = [each for each in walked if each.kind.phase == phase]
            found += _cases(table, phase, wanted, of_phase)
    return tuple(sorted(found, key=lambda w: (w.phase, w.by, -w.gain)))


Case = tuple[str, str, float]
"""`kind` or `engine`, its name, the factor."""


def _on_path(table: Table, walked: Sequence[Walked]) -> dict[str, list[Case]]:
    cases: dict[str, list[Case]] = defaultdict(list)
    for by in ("kind", "engine"):
        for phase, times in path_times(table, walked, by).items():
            least = SMALL * (sum(times.values()) or 1.0)
            cases[phase] += [
                (by, name, SHRINK)
                for name, ns in times.items()
                if name not in (WAITING, END) and ns > least
            ]
    return cases


def _asked(
    table: Table, walked: Sequence[Walked], asked: Mapping[str, float]
) -> dict[str, list[Case]]:
    names: dict[str, dict[str, set[str]]] = {"kind": {}, "engine": {}}
    for each in walked:
        for by, of_phase in names.items():
            of_phase.setdefault(each.kind.phase, set()).update(labels(table, each.kind, by))
    cases: dict[str, list[Case]] = defaultdict(list)
    for name, factor in asked.items():
        if not (math.isfinite(factor) and factor >= 0):
            raise UsageError(
                f"what if {name} took {factor} of its time: the factor must be a finite number, "
                "0 or more; for example 0.5"
            )
        mine = [
            (phase, by)
            for by, of_phase in names.items()
            for phase, known in of_phase.items()
            if name in known
        ]
        if not mine:
            kinds, engines = (
                ", ".join(sorted(set().union(*of_phase.values()))) for of_phase in names.values()
            )
            raise UsageError(
                f"what if {name!r} were faster: the trace has no such kind or engine; "
                f"kinds: {kinds}; engines: {engines}"
            )
        for phase, by in mine:
            cases[phase].append((by, name, factor))
    return cases


def _cases(
    table: Table, phase: str, wanted: Sequence[tuple[str, str, float]], walked: Sequence[Walked]
) -> list[WhatIf]:
    before, after = 0.0, np.zeros(len(wanted))
    runs = sum(len(each.kind.runs) for each in walked)
    for each in walked:
        names = {by: np.array(labels(table, each.kind, by)) for by in ("kind", "engine")}
        factors = np.stack([np.where(names[by] == name, f, 1.0) for by, name, f in wanted])
        tail = each.critical.tail
        after += (makespans(each.graph, factors) + tail).sum(axis=1) * each.weight
        before += _span(each)
    used = sum(len(each.graph.rows) for each in walked)
    return [
        WhatIf(phase, by, name, factor, before / runs, ns / runs, 1 - ns / before, used)
        for (by, name, factor), ns in zip(wanted, after.tolist(), strict=True)
    ]
