"""The commands and the results as flat tables, for CSV, Parquet and SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet.analysis.every_gap import every_gap
from dielet.analysis.schema import Analysis, Change, Moved, Note, Owner, Reread, Route, Total
from dielet.analysis.steps import Steps
from dielet.analysis.table import Coded, Executor, Kind, Table

COMMANDS = "commands"
GAPS = "gaps"
_LISTS = (
    "answers", "steps", "phases", "findings", "further_findings", "engines", "overlap",
    "operations", "shapes", "layers", GAPS, "gap_causes", "paths", "path_parts", "what_if",
    "roofline", "verdicts",
)  # fmt: skip
"""The parts of an analysis that are tables themselves."""

NONE = -1
FRAME_ROWS = 1 << 16  # as Python's objects they are 30 MB


@dataclass(frozen=True)
class Column:
    """Values of one column: numbers, of which -1 is none where `missing` says so, or places in
    `texts`."""

    values: NDArray[np.generic]
    texts: Sequence[str | None] | None = None
    missing: bool = False

    def objects(self) -> list[object]:
        """The values as Python objects, None where there is none."""
        values = self.values.tolist()
        if self.texts is not None:
            return [self.texts[n] if n >= 0 else None for n in values]
        return [None if n == NONE else n for n in values] if self.missing else values


Frame = dict[str, Column]

Row = dict[str, object]


@dataclass(frozen=True)
class Made:
    """A table that is made of a part of the analysis which is no list of rows."""

    columns: tuple[str, ...]
    rows: Callable[[Analysis], Iterable[Row]]


def _heat(found: Analysis) -> Iterator[Row]:
    for heat in found.heat:
        for layer, values in zip(heat.layers, heat.values, strict=True):
            for operation, ns in zip(heat.operations, values, strict=True):
                yield dict(zip(_HEAT, (heat.phase, layer, operation, ns), strict=True))


def _counters(found: Analysis) -> Iterator[Row]:
    for one in found.counters:
        where = one.device, one.chiplet, one.name, one.unit
        for sample in zip(one.times_ns, one.values, strict=True):
            yield dict(zip(_COUNTERS, (*where, *sample), strict=True))


def _of(row: type[msgspec.Struct], part: Callable[[Analysis], Sequence[msgspec.Struct]]) -> Made:
    return Made(row.__struct_fields__, lambda found: map(_row, part(found)))


_HEAT = "phase", "layer", "operation", "mean_ns"
_COUNTERS = "device", "chiplet", "name", "unit", "time_ns", "value"
_MADE = {
    "notes": _of(Note, lambda found: found.coverage.notes),
    "heat": Made(_HEAT, _heat),
    "counters": Made(_COUNTERS, _counters),
    "routes": _of(Route, lambda found: found.traffic.routes),
    "moved": _of(Moved, lambda found: found.traffic.moved),
    "rereads": _of(Reread, lambda found: found.traffic.rereads),
    "owners": _of(Owner, lambda found: found.memory.owners),
    "totals": _of(Total, lambda found: found.diff.totals if found.diff else ()),
    "changes": _of(Change, lambda found: found.diff.changes if found.diff else ()),
}
RESULTS = (*_LISTS, *_MADE)
"""The tables beside that of the commands."""


def command_frames(table: Table, steps: Steps) -> Iterator[Frame]:
    """The commands, kind of run by kind of run, in order of run; frames of moderate size."""
    for kind in table.kinds:
        for rows in kind.blocks(FRAME_ROWS):
            yield _frame(table, steps, kind, rows)


def _frame(table: Table, steps: Steps, kind: Kind, rows: slice) -> Frame:
    """Some runs of a kind."""
    pieces, runs = kind.pieces, kind.runs[rows]

    def each(values: NDArray[np.generic], texts: Sequence[str | None] | None = None,
             missing: bool = False) -> Column:  # fmt: skip
        return Column(np.tile(values, len(runs)), texts, missing)

    def of_run(values: NDArray[np.generic], texts: Sequence[str] | None = None) -> Column:
        return Column(np.repeat(values[runs], len(pieces)), texts)

    def cells(column: NDArray[np.generic] | Coded, texts: Sequence[str] | None = None) -> Column:
        return Column(column[rows].ravel(), texts, texts is None)

    lanes = table.lanes
    operations = pieces.operation
    chiplets = np.array([NONE if lane.chiplet is None else lane.chiplet for lane in lanes])
    layers = np.array([table.layer[n] for n in operations.tolist()], np.int64)
    phase = np.zeros(len(table.runs), np.int64)
    return {
        "step": of_run(steps.of_run),
        "run": of_run(np.arange(len(table.runs))),
        "workload": of_run(table.runs.workload),
        "phase": of_run(phase, [kind.phase]),
        "program": of_run(phase, [kind.program]),
        "device": each(pieces.lane, [lane.device for lane in lanes]),
        "chiplet": each(chiplets[pieces.lane], missing=True),
        "engine": each(pieces.lane, [lane.engine for lane in lanes]),
        "executor": each(pieces.executor, [_executor(e) for e in table.executors]),
        "operation": each(operations, table.texts),
        "layer": each(layers, missing=True),
        "command": each(pieces.index),
        "kind": each(pieces.kind, table.texts),
        "shape": each(pieces.shape, table.texts),
        "format": each(pieces.format, table.texts),
        "route": each(pieces.route, table.texts),
        "start_ns": Column(kind.start[rows].ravel()),
        "duration_ns": Column((kind.end[rows] - kind.start[rows]).ravel()),
        "bytes": cells(kind.nbytes),
        "operations": cells(kind.ops),
        "percent_of_peak": cells(kind.percent),
        "bound": cells(kind.bound, table.bounds),
    }


def _executor(executor: Executor) -> str:
    where = "" if executor.chiplet is None else f"chiplet {executor.chiplet} "
    return where + executor.engine


def result_columns(name: str) -> tuple[str, ...]:
    """The columns of a part of the analysis, whether it has rows or not."""
    if name in _MADE:
        return _MADE[name].columns
    row = get_args(get_type_hints(Analysis)[name])[0]
    fields: tuple[str, ...] = row.__struct_fields__
    return fields


def result_rows(found: Analysis, name: str) -> list[Row]:
    """A part of the analysis as rows; what is nested in it becomes JSON text."""
    if name in _MADE:
        return list(_MADE[name].rows(found))
    return [_row(row) for row in getattr(found, name)]


def gap_rows(table: Table, steps: Steps) -> Iterator[list[Row]]:
    """All gaps, of which the analysis has only the longest; in parts of moderate size."""
    gaps = every_gap(table, steps)
    while part := [_row(gap) for gap in islice(gaps, FRAME_ROWS)]:
        yield part


def _row(row: msgspec.Struct) -> Row:
    return {key: _flat(value) for key, value in msgspec.to_builtins(row).items()}


def _flat(value: object) -> object:
    if isinstance(value, dict | list | tuple):
        return msgspec.json.encode(value).decode()
    return value
