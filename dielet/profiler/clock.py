"""One clock for host threads and devices: the time-stamp counter, calibrated against the system's.

Both ends of a session take many pairs (ticks, nanoseconds) close together; the median over pairs
is what a scheduler that comes between two readings cannot move.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLES = 400
SHORTEST_NS = 20_000_000  # two ends closer than this would not give the rate exactly enough


@dataclass(frozen=True)
class Scale:
    """Picoseconds since the session began, from ticks and from `perf_counter_ns`."""

    ticks: int
    nanoseconds: int
    ps_per_tick: float

    def of_ticks(self, ticks: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.rint((ticks - self.ticks) * self.ps_per_tick).astype(np.int64)

    def of_nanoseconds(self, nanoseconds: int) -> int:
        return (nanoseconds - self.nanoseconds) * 1000


class Clock:
    """Calibrates `ticks`, a function that reads the counter, from when it is made."""

    def __init__(self, ticks: Callable[[], int]) -> None:
        self._ticks = ticks
        self._first = self._pairs()

    def scale(self) -> Scale:
        """The scale over the time since then, which is waited for if it was too short."""
        begun = int(self._first[-1, 1])
        while time.perf_counter_ns() - begun < SHORTEST_NS:
            time.sleep(0.001)
        last = self._pairs()
        passed = last - self._first
        rate = float(np.median(passed[:, 1] / passed[:, 0]))
        ticks = int(self._first[0, 0])
        offsets = self._first[:, 1] - (self._first[:, 0] - ticks) * rate
        return Scale(ticks, round(float(np.median(offsets))), rate * 1000)

    def _pairs(self) -> NDArray[np.int64]:
        """int64 [SAMPLES, 2]: ticks, and the nanoseconds in the middle of reading them."""
        pairs = np.empty((SAMPLES, 2), np.int64)
        for row in range(SAMPLES):
            before = time.perf_counter_ns()
            ticks = self._ticks()
            pairs[row] = ticks, (before + time.perf_counter_ns()) // 2
        return pairs
