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
from dielet.analysis.table import F64, I32, I64, Facts
from dielet.errors import DamagedFile
from dielet.profiler.reader import Trace, read_trace
from dielet.program.records import BOUNDS

NONE = -1
BYTES, OPS, PERCENT, BOUND = "bytes", "operations", "% of peak", "bound by"
NUMBERS = ("start", "duration", "track", "fact", "percent")
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

    duration: -1 where there is no end; below that a place in `longs`, counted from -2 down; see
    `durations`.  track: uuids.  step, rest: places in the tables of `names`, -1 where a slice's
    name is none.  fact: places in `facts`, whose bounds are places in BOUNDS.  percent: -1 where
    nothing is said.  source: what `details` are read from.
    """

    start: I64
    duration: NDArray[np.integer]
    longs: I64
    track: NDArray[np.integer]
    step: I32
    rest: I32
    fact: I32
    facts: Facts
    percent: NDArray[np.integer]
    names: Names
    counters: dict[int, tuple[I64, F64]]
    stray: int
    truncated: bool
    source: Trace | Scan

    def __len__(self) -> int:
        return len(self.track)

    def durations(self, slices: I64 | I32) -> I64:
        """In ns; -1 where there is no end."""
        return self.in_ns(self.duration[slices])

    def in_ns(self, durations: NDArray[np.integer]) -> I64:
        """What stands in the column `duration` as ns."""
        found = durations.astype(np.int64)
        if len(self.longs):
            is_long = found < NONE
            found[is_long] = self.longs[NONE - 1 - found[is_long]]
        return found

    def longest(self) -> int:
        """Which slice takes longest."""
        if len(self.longs):
            return int(np.argmax(self.duration == NONE - 1 - int(np.argmax(self.longs))))
        return int(np.argmax(self.duration))

    def take(self, name: str) -> NDArray[Any]:
        """A column, which is then no longer here."""
        column: NDArray[Any] = getattr(self, name)
        setattr(self, name, np.zeros(0, column.dtype))  # a part of it would keep all of it
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
        longs=found.longs,
        facts=found.facts,
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
    fact, facts = _facts(_column(trace, BYTES), _column(trace, OPS), _bounds(trace))
    return Events(
        start=trace.start,
        duration=trace.duration,
        longs=np.zeros(0, np.int64),
        track=trace.track,
        fact=fact,
        facts=facts,
        percent=_column(trace, PERCENT).astype(np.int32),
        counters=trace.counters,
        stray=trace.stray,
        truncated=trace.truncated,
        source=trace,
        **_named(step[trace.name], rest[trace.name], rests, steps),
    )


def _named(step: I32, rest: I32, rests: list[str], steps: list[Step]) -> dict[str, Any]:
    """The fields of Events that are about names."""
    rests = in_order(rest, rests)
    names, fine = read_rests(rests, steps)
    if not fine.all():
        rest = np.append(np.where(fine, np.arange(len(fine)), NONE), NONE).astype(np.int32)[rest]
        step[rest < 0] = NONE
    return {"step": step, "rest": rest, "names": names}


def _facts(nbytes: I64, ops: I64, bound: NDArray[np.int8]) -> tuple[I32, Facts]:
    """Which of the different cases every slice is, and those."""
    code = np.zeros(len(bound), np.int64)
    for column in (nbytes, ops, bound):
        values, place = np.unique(column, return_inverse=True)
        _, code = np.unique(code * len(values) + place, return_inverse=True)
    first = np.unique(code, return_index=True)[1]
    return code.astype(np.int32), Facts(nbytes[first], ops[first], bound[first])


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
