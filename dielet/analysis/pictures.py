"""What pictures are drawn from: the whole window in bins, and some steps in full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dielet.analysis.graph import critical_path, graph_of
from dielet.analysis.queues import Queues
from dielet.analysis.schema import Gantt, Timeline, TimelineRow
from dielet.analysis.spans import engine_spans
from dielet.analysis.steps import DECODE, PREFILL, Steps
from dielet.analysis.table import Table

BINS = 2048
MEDIAN, SLOWEST, FIRST = "median", "slowest", "first"


def find_timeline(table: Table) -> Timeline:
    width = max((table.finish - table.begin) / BINS, 1.0)
    edges = np.rint(table.begin + np.arange(BINS + 1) * width).astype(np.int64)
    rows = [
        TimelineRow(
            device=device,
            chiplet=chiplet,
            engine=engine,
            kind=kind,
            busy=tuple(np.rint(np.diff(spans.before(edges)) / width * 1000).astype(int).tolist()),
        )
        for (device, chiplet, engine, kind), spans in engine_spans(table).items()
    ]
    return Timeline(table.begin, width, BINS, tuple(rows))


def find_gantts(table: Table, steps: Steps, queues: Sequence[Queues]) -> tuple[Gantt, ...]:
    chosen = []
    for phase in steps.phases():
        mine = sorted(steps.of_phase(phase), key=lambda step: step.duration_ns)
        if phase == PREFILL:
            chosen.append((min(mine, key=lambda step: step.number).number, FIRST))
        else:
            chosen.append((mine[(len(mine) - 1) // 2].number, MEDIAN))
        if phase == DECODE and mine[-1].number != chosen[-1][0]:
            chosen.append((mine[-1].number, SLOWEST))
    return tuple(_gantt(table, steps, queues, step, why) for step, why in chosen)


def _gantt(table: Table, steps: Steps, queues: Sequence[Queues], number: int, why: str) -> Gantt:
    step = steps.steps[number]
    runs = np.flatnonzero(steps.of_run == number)
    names: dict[str, dict[object, int]] = {"row": {}, "operation": {}, "kind": {}}
    columns: list[list[int]] = []
    several = len({executor.device for executor in table.executors}) > 1

    def place(what: str, name: object) -> int:
        return names[what].setdefault(name, len(names[what]))

    for kind, queue in zip(table.kinds, queues, strict=True):
        for at in np.flatnonzero(np.isin(kind.runs, runs)).tolist():
            critical = critical_path(graph_of(kind, queue, np.array([at]))).on_path[0]
            pieces = kind.pieces
            for n in np.argsort(kind.start[at], kind="stable").tolist():
                lane = table.lanes[int(pieces.lane[n])]
                track = lane.engine if lane.name == lane.engine else f"{lane.engine} {lane.name}"
                track = f"{lane.device.partition(' (')[0]} {track}" if several else track
                columns.append(
                    [
                        place("row", (lane.chiplet, track)),
                        int(kind.start[at, n]) - step.start_ns,
                        int(kind.end[at, n] - kind.start[at, n]),
                        place("operation", table.text(int(pieces.operation[n]))),
                        place("kind", table.text(int(pieces.kind[n]))),
                        int(kind.bound[at, n]),
                        int(critical[n]),
                        max(int(kind.nbytes[at, n]), 0),
                    ]
                )
    columns.sort(key=lambda column: column[1])  # painters leave out what is before the last drawn
    cells = [tuple(column) for column in zip(*columns, strict=True)] or [()] * 8
    return Gantt(
        step=number,
        phase=step.phase,
        program=step.program,
        why=why,
        duration_ns=step.duration_ns,
        rows=tuple(names["row"]),  # type: ignore[arg-type]
        operations=tuple(names["operation"]),  # type: ignore[arg-type]
        kinds=tuple(names["kind"]),  # type: ignore[arg-type]
        bounds=table.bounds,
        row=cells[0],
        start_ns=cells[1],
        slice_ns=cells[2],
        operation=cells[3],
        kind=cells[4],
        bound=cells[5],
        critical=cells[6],
        bytes=cells[7],
    )
