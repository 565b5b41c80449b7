"""The slices of a trace as the analysis needs them: numbers of all, words only of some.

Words (shapes, formats, what was waited for) are the same in all runs of a kind, so they are asked
for one run of each.  Traces like ours are read by generated code, others by the profiler's reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.names import Names, Step, in_order, read_names, read_rests
from dielet.analysis.scan import Scan, Unfit, scan
from dielet.analysis.table import F64, I32, I64
from dielet.errors import DamagedFile
from dielet.profiler.reader import Trace, read_trace
from dielet.program.records import BOUNDS

NONE = -1
BYTES, OPS, PERCENT, BOUND = "bytes", "operations", "% of peak", "bound by"
NUMBERS = ("start", "duration", "track", "nbytes", "ops", "percent", "bound")
KIND, SHAPE, FORMAT, ROUTE, WAITS = "kind", "shape", "format", "memory", "waited for"


@dataclass(frozen=True)
class Details:
    """All that is said of some slices.  slices: which they are, in order; None for all."""

    trace: Trace
    slices: I64 | None = None

    def places(self, slices: I64) -> I64:
        return slices if self.slices is None else np.searchsorted(self.slices, slices)

    def _values(self, key: str, slices: I64, is_text: bool) -> I64:
        """Values of an argument, or numbers of texts; -1 where there is none."""
        out = np.full(len(slices), NONE, np.int64)
        argument = self.trace.arguments.get(key)
        if argument is None or argument.is_text != is_text or not len(argument.slices):
            return out
        known = slices >= 0
        places = self.places(slices[known])
        at = np.minimum(np.searchsorted(argument.slices, places), len(argument.slices) - 1)
        out[known] = np.where(argument.slices[at] == places, argument.values[at], NONE)
        return out

    def numbers(self, key: str, slices: I64) -> I64:
        return self._values(key, slices, False)

    def words(self, key: str, slices: I64) -> list[str]:
        """Texts of an argument, empty where there is none, or the slice is -1."""
        found = self._values(key, slices, True).tolist()
        return [self.trace.texts[n] if n >= 0 else "" for n in found]

    def categories(self, slices: I64) -> list[str]:
        numbers = self.trace.category[self.places(slices)].tolist()
        return [self.trace.texts[n] if n >= 0 else "" for n in numbers]

    def flows(self, slices: I64) -> I32:
        """int32 [n, 2]: arrows between some slices, as places in `slices`."""
        wanted = self.places(slices)
        order = np.argsort(wanted, kind="stable")
        places = np.full((len(self.trace.flows), 2), NONE, np.int64)
        for side in (0, 1):
            ends = self.trace.flows[:, side]
            at = np.minimum(np.searchsorted(wanted[order], ends), len(wanted) - 1)
            found = wanted[order[at]] == ends
            places[found, side] = order[at[found]]
        return places[(places >= 0).all(axis=1)].astype(np.int32)


@dataclass
class Events:
    """Slices in order of start.  Columns that are not needed any more may be taken out.

    track: uuids.  step, rest: places in the tables of `names`, -1 where a slice's name is none.
    nbytes, ops, percent, bound: -1 where nothing is said; bound: a place in BOUNDS.  example: a
    slice's name.  source: what `details` are read from.
    """

    start: I64
    duration: I64
    track: NDArray[np.integer]
    step: I32
    rest: I32
    nbytes: I64
    ops: I64
    percent: I32
    bound: NDArray[np.int8]
    names: Names
    counters: dict[int, tuple[I64, F64]]
    stray: int
    truncated: bool
    source: Trace | Scan

    def __len__(self) -> int:
        return len(self.track)

    def take(self, name: str) -> NDArray[Any]:
        """A column, which is then no longer here."""
        column: NDArray[Any] = getattr(self, name)
        setattr(self, name, column[:0])
        return column

    def details(self, slices: Sequence[int] | I64) -> Details:
        """What is said of some slices beside numbers; more than these may be known."""
        if isinstance(self.source, Trace):
            return Details(self.source)
        chosen = np.unique(np.asarray(slices, np.int64))
        return Details(self.source.packets(chosen), chosen)


def read_events(path: str | Path) -> Events:
    """Raises MissingFile, or DamagedFile for what is no trace."""
    path = Path(path)
    if path.is_file() and path.stat().st_size:
        try:
            return _scanned(scan(path))
        except (Unfit, DamagedFile):
            pass  # the general reader reads it, or says what is wrong
    return read(read_trace(path))


def _scanned(found: Scan) -> Events:
    keys = found.steps.tolist()
    steps = [((key >> 32) - 1 if key >> 32 else None, key & 0xFFFFFFFF) for key in keys]
    return Events(
        **dict[str, Any]({name: found.columns.pop(name) for name in NUMBERS}),
        counters=found.counters,
        stray=found.stray,
        truncated=found.truncated,
        source=found,
        **_named(found.columns.pop("step"), found.columns.pop("rest"), found.rests, steps),
    )


def read(trace: Trace) -> Events:
    """The events of a trace that was read in full."""
    used = np.unique(trace.name[trace.name >= 0])
    step, rest, rests, steps = read_names(trace.texts, used)
    return Events(
        start=trace.start,
        duration=trace.duration,
        track=trace.track,
        nbytes=_column(trace, BYTES),
        ops=_column(trace, OPS),
        percent=_column(trace, PERCENT).astype(np.int32),
        bound=_bounds(trace),
        counters=trace.counters,
        stray=trace.stray,
        truncated=trace.truncated,
        source=trace,
        **_named(step[trace.name], rest[trace.name], rests, steps),
    )


def _named(step: I32, rest: I32, rests: list[str], steps: list[Step]) -> dict[str, Any]:
    """The fields of Events that are about names."""
    rest, rests = in_order(rest, rests)
    names, fine = read_rests(rests, steps)
    if not fine.all():
        rest = np.append(np.where(fine, np.arange(len(fine)), NONE), NONE).astype(np.int32)[rest]
        step = np.where(rest >= 0, step, NONE).astype(np.int32)
    return {"step": step, "rest": rest, "names": names}


def _column(trace: Trace, key: str) -> I64:
    out = np.full(len(trace), NONE, np.int64)
    argument = trace.arguments.get(key)
    if argument is not None and not argument.is_text:
        out[argument.slices] = argument.values
    return out


def _bounds(trace: Trace) -> NDArray[np.int8]:
    out = np.full(len(trace), NONE, np.int8)
    argument = trace.arguments.get(BOUND)
    if argument is not None and argument.is_text:
        known = {number: text for number, text in enumerate(trace.texts) if text in BOUNDS}
        place = np.full(len(trace.texts), NONE, np.int8)
        for number, text in known.items():
            place[number] = BOUNDS.index(text)
        out[argument.slices] = place[argument.values]
    return out
