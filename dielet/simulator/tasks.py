"""What the simulator walks: tasks on lanes, with waits, work of their own, and transfers.

A lane runs its tasks one after the other, in the order of their numbers.  A task starts when the
one before it on its lane has ended and every task that it waits for has ended and been seen.  After
`setup` its computation and all of its legs begin at once; it ends with the last of them.  A leg
moves bytes over resources (a memory, a link, an engine's port) that legs share max-min fairly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.errors import InternalError

I64 = NDArray[np.int64]

PER_SECOND = 1000  # capacities are kept in bytes per millisecond
BYTE = 10**9  # what a byte counts for: bytes per millisecond times picoseconds
MAX_LEG_BYTES = (1 << 62) // BYTE
LONGEST = 10**16  # ps of one program: far from where sums of times would wrap


@dataclass(frozen=True)
class Task:
    """One task in words, from which `make_tasks` builds the arrays; times in ps.

    legs: (bytes, resources); waits: (task, ps from its end to when this lane sees it).
    """

    lane: int
    setup: int = 0
    compute: int = 0
    legs: Sequence[tuple[int, Sequence[int]]] = ()
    waits: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Tasks:
    """All tasks as arrays.  `x_first[i] : x_first[i + 1]` are the entries of task (or leg) i."""

    lanes: int
    lane: I64
    setup: I64
    compute: I64
    wait_first: I64
    wait_task: I64
    wait_delay: I64
    leg_first: I64
    leg_bytes: I64
    path_first: I64
    path: I64
    capacity: I64  # bytes per millisecond of each resource

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True)
class Walk:
    """When each task started and ended, in ps, and the resource that decided when it ended.

    limiter: -1 the computation, else the resource at which its last leg was held up.
    cause: the task whose end decided when this one could start; -1 when it started at 0.
    """

    start: I64
    end: I64
    limiter: I64
    cause: I64


def make_tasks(tasks: Sequence[Task], capacities: Sequence[int], lanes: int) -> Tasks:
    """Arrays from tasks; `capacities` in bytes per second."""
    legs = [leg for task in tasks for leg in task.legs]
    waits = [wait for task in tasks for wait in task.waits]
    for nbytes, path in legs:
        if not (0 < nbytes <= MAX_LEG_BYTES and path):
            raise InternalError(f"a leg of {nbytes} bytes over resources {path} cannot be")
    return Tasks(
        lanes=lanes,
        lane=_array(task.lane for task in tasks),
        setup=_array(task.setup for task in tasks),
        compute=_array(task.compute for task in tasks),
        wait_first=_firsts(len(task.waits) for task in tasks),
        wait_task=_array(wait[0] for wait in waits),
        wait_delay=_array(wait[1] for wait in waits),
        leg_first=_firsts(len(task.legs) for task in tasks),
        leg_bytes=_array(leg[0] for leg in legs),
        path_first=_firsts(len(leg[1]) for leg in legs),
        path=_array(resource for leg in legs for resource in leg[1]),
        capacity=_array(max(1, rate // PER_SECOND) for rate in capacities),
    )


def _array(values: object) -> I64:
    return np.fromiter(values, np.int64)  # type: ignore[call-overload]


def _firsts(counts: object) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(_array(counts), dtype=np.int64)])
