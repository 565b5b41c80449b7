"""Each idle gap of a trace, for its table; there may be as many as commands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dielet.analysis.gaps import after_last, between_runs, command_names, look
from dielet.analysis.queues import Queues, queues_of
from dielet.analysis.schema import Gap
from dielet.analysis.steps import Steps
from dielet.analysis.table import Kind, Table


def every_gap(table: Table, steps: Steps) -> Iterator[Gap]:
    """Kind of run by kind of run: what ends with a command, what follows the last; then between.

    A gap between runs is one for all engines of a device.
    """
    for kind in table.kinds:
        queue = queues_of(kind, table.runs)
        names = command_names(table, kind)
        for seen in look(table, kind, queue):
            for place in np.flatnonzero(seen.gap).tolist():
                yield seen.gap_at(table, steps, place, names)
        yield from _after(table, steps, kind, queue)
    yield from (gap for _, gap, _ in between_runs(table))


def _after(table: Table, steps: Steps, kind: Kind, queue: Queues) -> Iterator[Gap]:
    for number, cause, begin, length in after_last(table, queue):
        executor = table.executors[number]
        for row in np.flatnonzero(length).tolist():
            yield Gap(
                step=int(steps.of_run[int(kind.runs[row])]),
                phase=kind.phase,
                chiplet=executor.chiplet,
                engine=executor.engine,
                start_ns=int(begin[row]),
                duration_ns=int(length[row]),
                cause=cause,
                before="",
                waited="",
            )
