"""The commands and the results as flat tables, for CSV, Parquet and SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet.analysis.schema import Analysis
from dielet.analysis.steps import Steps
from dielet.analysis.table import Coded, Executor, Kind, Table

COMMANDS = "commands"
RESULTS = (
    "answers", "steps", "phases", "engines", "overlap", "operations", "shapes", "layers", "gaps",
    "gap_causes", "path_parts", "what_if", "roofline", "verdicts",
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
    row = get_args(get_type_hints(Analysis)[name])[0]
    fields: tuple[str, ...] = row.__struct_fields__
    return fields


def result_rows(found: Analysis, name: str) -> list[dict[str, object]]:
    """A part of the analysis as rows; what is nested in it becomes JSON text."""
    rows: list[dict[str, object]] = []
    for row in getattr(found, name):
        fields = msgspec.to_builtins(row)
        rows.append({key: _flat(value) for key, value in fields.items()})
    return rows


def _flat(value: object) -> object:
    if isinstance(value, dict | list | tuple):
        return msgspec.json.encode(value).decode()
    return value
