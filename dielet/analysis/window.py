"""A part of a trace: the steps within some time, or what is left after the oldest were dropped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dielet.analysis.steps import PREFILL
from dielet.analysis.table import F64, I64, Bool, CounterKey, Runs, Table
from dielet.errors import UsageError

_OF_KINDS = ("start", "end", "fact", "percent")
_OF_RUNS = ("step", "workload", "start", "end", "tokens", "valid", "past", "capacity")


def parse_window(text: str) -> tuple[float, float]:
    """`12.5:40` as milliseconds since the trace's first slice; either side may be left out."""
    low, colon, high = text.partition(":")
    try:
        begin, end = float(low or 0.0), float(high or "inf")
    except ValueError:
        begin = end = np.nan
    if not colon or not 0 <= begin < end:
        raise UsageError(
            f"--window is {text!r}; it takes two times in ms since the first slice, as in 12.5:40"
        )
    return begin, end


def cut(table: Table, window_ms: tuple[float, float]) -> Table:
    """Only the steps, and the host's work, that begin and end in the window.

    Half a step would be a fast one.  The host's work for steps that are left out is left out too.
    """
    begin, end = (table.begin + edge * 1e6 for edge in window_ms)
    runs, host = table.runs, table.host
    within = (runs.start >= begin) & (runs.end <= end)
    mine = ~np.isin(runs.step, runs.step[~within])
    if not mine.any():
        whole = (table.finish - table.begin) * 1e-6
        raise UsageError(
            f"no step is whole between {window_ms[0]:g} and {window_ms[1]:g} ms; "
            f"the trace has {whole:.3f} ms, its first step ends after "
            f"{(_first_end(runs) - table.begin) * 1e-6:.3f} ms"
        )
    inside = (host.start >= begin) & (host.end <= end) & ~np.isin(host.step, runs.step[~mine])
    return _part(table, mine, inside)


def _first_end(runs: Runs) -> int:
    return int(runs.end[runs.step == runs.step[0]].max())


def kept(table: Table) -> Table:
    """Without the host's work for runs that were dropped: the window begins at the first run."""
    inside = table.host.start >= table.runs.start.min()
    return replace(_part(table, np.ones(len(table.runs), bool), inside), headless=True)


def finished(table: Table) -> Table:
    """Of a file that is cut off: without the steps that may not be whole, if others are left.

    Those are the last one with commands and all after it, unless their runs have exactly the
    commands of a step before them.
    """
    runs, host = table.runs, table.host
    kind_of = np.full(len(runs), -1)
    for number, kind in enumerate(table.kinds):
        kind_of[kind.runs] = number
    of_step: dict[int, list[tuple[int, int]]] = {}  # in order of start
    for step, workload, number in zip(
        runs.step.tolist(), runs.workload.tolist(), kind_of.tolist(), strict=True
    ):
        of_step.setdefault(step, []).append((workload, number))
    order = list(of_step)
    last = max(n for n, step in enumerate(order) if any(k >= 0 for _, k in of_step[step]))
    whole = {tuple(sorted(of_step[step])) for step in order[:last]}
    doubtful = [step for step in order[last:] if tuple(sorted(of_step[step])) not in whole]
    if not last or not doubtful:
        return table
    mine = ~np.isin(runs.step, doubtful)
    known = np.isin(host.step, runs.step[mine])
    before = (host.start < runs.end[mine].max()) & ~np.isin(host.step, doubtful)
    part = _part(table, mine, known | before)
    return replace(part, found=replace(part.found, unfinished=len(doubtful)))


def _part(table: Table, mine: Bool, inside: Bool) -> Table:
    """Some of the runs and of the host's work, and what is counted of those."""
    runs, host = table.runs, table.host
    number = np.cumsum(mine) - 1
    kinds = []
    for kind in table.kinds:
        rows = mine[kind.runs]
        if rows.any():
            columns = {name: getattr(kind, name)[rows] for name in _OF_KINDS}
            kinds.append(replace(kind, runs=number[kind.runs[rows]], **columns))
    chosen = np.flatnonzero(mine)
    columns = {name: getattr(runs, name)[chosen] for name in _OF_RUNS}
    headless = bool(np.isin(host.step[~inside], columns["step"]).any()) or any(
        runs.phase[first] == PREFILL and bool(runs.past[first] > 0)
        for first in set(_openings(table, chosen)) - set(_openings(table, np.arange(len(runs))))
    )
    found = table.found
    commands = sum(kind.start.size for kind in kinds)
    part = replace(
        table,
        runs=Runs(
            phase=[runs.phase[n] for n in chosen.tolist()],
            program=[runs.program[n] for n in chosen.tolist()],
            **columns,
        ),
        kinds=tuple(kinds),
        host=host.part(inside),
        headless=table.headless or headless,
        found=replace(
            found,
            slices=found.slices
            - (found.commands - commands)
            - int((~inside).sum())
            - sum(bool(runs.program[n]) for n in np.flatnonzero(~mine).tolist()),
            commands=commands,
            left_out=found.left_out + found.commands - commands,
        ),
    )
    return replace(part, counters=_counters(table, part.begin, part.finish))


def _openings(table: Table, chosen: I64) -> list[int]:
    """Of some runs the first of each model."""
    first: list[int] = chosen[np.unique(table.model[chosen], return_index=True)[1]].tolist()
    return first


def _counters(table: Table, begin: int, finish: int) -> dict[CounterKey, tuple[I64, F64]]:
    """The counters' values between two times; those that hold there begin and end at these."""
    found = {}
    for key, (times, values) in table.counters.items():
        low = max(int(np.searchsorted(times, begin, side="right")) - 1, 0)
        high = int(np.searchsorted(times, finish, side="right"))
        if low < high:
            inside, mine = np.maximum(times[low:high], begin), values[low:high]
            if high < len(times) and inside[-1] < finish:
                inside, mine = np.append(inside, finish), np.append(mine, mine[-1])
            found[key] = inside, mine
    return found
