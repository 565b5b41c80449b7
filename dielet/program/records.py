"""Records: when every command of an execution ran, by whichever clock.

The host measures them and the simulator models them; the profiler and the analysis see records and
do not ask which, except to say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dielet.program.types import Program

Clock = Literal["measured", "modelled"]


@dataclass(frozen=True)
class Lane:
    """Commands that one executor ran one after the other: a worker's pieces, or an engine's queue.

    commands: int32 [n], indices into the program; start, end: int64 [n], picoseconds since the
    start of the session's clock.  A command that was split over workers is in several lanes;
    share: f64 [n], the part of each command that ran here, None when that is all of it.
    """

    name: str
    commands: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    share: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Execution:
    """One run of one program.

    instance: the runtime instance (prefill is one, each decode batch size another); sequence:
    executions of that instance before this one; workload: the device run within the execution
    (0 the decoder, 1 the head); bound: per command what bounded it, where a model knows.
    """

    program: Program
    clock: Clock
    instance: int
    sequence: int
    workload: int
    past: int
    valid: int
    lanes: tuple[Lane, ...]
    bound: NDArray[np.uint8] | None = None

    @property
    def start(self) -> int:
        return min(int(lane.start[0]) for lane in self.lanes if len(lane.start))

    @property
    def end(self) -> int:
        return max(int(lane.end[-1]) for lane in self.lanes if len(lane.end))


BOUNDS = ("compute", "memory", "link", "wait", "setup")
"""What `Execution.bound` counts: the resource that decided how long a command took."""
