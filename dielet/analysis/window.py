"""A part of a trace: the runs that begin within some time, or of some steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dielet.analysis.table import HostWork, Runs, Table
from dielet.errors import UsageError

_OF_KINDS = ("start", "end", "nbytes", "ops", "percent", "bound")
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
    """Only the runs, and the host's work, that begin in the window."""
    begin, end = (table.begin + edge * 1e6 for edge in window_ms)
    runs = table.runs
    mine = (runs.start >= begin) & (runs.start < end)
    if not mine.any():
        whole = (table.finish - table.begin) * 1e-6
        raise UsageError(
            f"no run begins between {window_ms[0]:g} and {window_ms[1]:g} ms; "
            f"the trace has {whole:.3f} ms"
        )
    number = np.cumsum(mine) - 1
    kinds = []
    for kind in table.kinds:
        rows = mine[kind.runs]
        if rows.any():
            columns = {name: getattr(kind, name)[rows] for name in _OF_KINDS}
            kinds.append(replace(kind, runs=number[kind.runs[rows]], **columns))
    kept = np.flatnonzero(mine)
    columns = {name: getattr(runs, name)[kept] for name in _OF_RUNS}
    inside = (table.host.start >= begin) & (table.host.start < end)
    host = HostWork(
        table.host.start[inside],
        table.host.end[inside],
        table.host.step[inside],
        [what for what, keep in zip(table.host.what, inside.tolist(), strict=True) if keep],
    )
    return replace(
        table,
        runs=Runs(
            phase=[runs.phase[n] for n in kept.tolist()],
            program=[runs.program[n] for n in kept.tolist()],
            **columns,
        ),
        kinds=tuple(kinds),
        host=host,
    )
