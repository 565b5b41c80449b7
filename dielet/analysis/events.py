"""The slices of a trace as the analysis needs them: numbers of all, words only of some.

Words (shapes, formats, what was waited for) are the same in all runs of a kind, so they are asked
for one run of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.table import F64, I32, I64
from dielet.profiler.reader import Trace, TrackInfo, read_trace
from dielet.program.records import BOUNDS

NONE = -1
BYTES, OPS, PERCENT, BOUND = "bytes", "operations", "% of peak", "bound by"
KIND, SHAPE, FORMAT, ROUTE, WAITS = "kind", "shape", "format", "memory", "waited for"
NUMBERS = (BYTES, OPS, PERCENT)
WORDS = (KIND, SHAPE, FORMAT, ROUTE, WAITS)


@dataclass(frozen=True)
class Events:
    """Slices in order of start; see `Trace` for the columns."""

    trace: Trace
    _columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)

    @staticmethod
    def read(path: str | Path) -> Events:
        return Events(read_trace(path))

    def __len__(self) -> int:
        return len(self.trace.start)

    @property
    def tracks(self) -> dict[int, TrackInfo]:
        return self.trace.tracks

    @property
    def counters(self) -> dict[int, tuple[I64, F64]]:
        return self.trace.counters

    def number(self, key: str, slices: I64) -> I64:
        """Values of an argument of some slices, -1 where there is none."""
        return self._column(key)[slices].astype(np.int64)

    def bound(self, slices: I64) -> NDArray[np.int8]:
        """What bounded slices: places in BOUNDS, or -1."""
        return self._column(BOUND)[slices].astype(np.int8)

    def _column(self, key: str) -> NDArray[np.generic]:
        """Of all slices: a number, or of a text its place in BOUNDS; -1 where there is none."""
        column = self._columns.get(key)
        if column is None:
            argument = self.trace.arguments.get(key)
            column = np.full(len(self), NONE, np.int8 if key == BOUND else np.int64)
            if argument is not None and argument.is_text == (key == BOUND):
                values = argument.values
                if argument.is_text:
                    place = np.array([_bound(text) for text in self.trace.texts], np.int8)
                    values = place[values]
                column[argument.slices] = values
            self._columns[key] = column
        return column

    def words(self, key: str, slices: I64) -> list[str]:
        """Texts of an argument of a few slices, empty where there is none."""
        argument = self.trace.arguments.get(key)
        if argument is None or not argument.is_text or not len(argument.slices):
            return [""] * len(slices)
        place = np.minimum(np.searchsorted(argument.slices, slices), len(argument.slices) - 1)
        there = (argument.slices[place] == slices).tolist()
        numbers = argument.values[place].tolist()
        return [
            self.trace.texts[n] if found else "" for n, found in zip(numbers, there, strict=True)
        ]

    def flows(self, slices: I64) -> I32:
        """int32 [n, 2]: arrows between some slices, as places in `slices`."""
        by_source, sources = self._flows_by_source
        low = np.searchsorted(sources, slices, side="left")
        count = np.searchsorted(sources, slices, side="right") - low
        rows = np.repeat(low - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        targets = by_source[rows, 1]
        order = np.argsort(slices, kind="stable")
        place = np.minimum(np.searchsorted(slices[order], targets), len(slices) - 1)
        inside = slices[order[place]] == targets
        first = np.repeat(np.arange(len(slices)), count)[inside]
        return np.stack([first, order[place[inside]]], axis=1).astype(np.int32)

    @cached_property
    def _flows_by_source(self) -> tuple[I64, I64]:
        flows = self.trace.flows
        order = np.argsort(flows[:, 0], kind="stable")
        return flows[order], flows[order, 0]


def _bound(text: str) -> int:
    return BOUNDS.index(text) if text in BOUNDS else NONE
