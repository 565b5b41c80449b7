"""A trace as tables: runs of programs, and of each kind of run a matrix of its commands.

Runs of one kind have the same commands on the same tracks.  What is the same in all of them is kept
once (`Pieces`); what differs is a matrix [runs, pieces].  Everything else is computed from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.profiler.names import WORKER

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

COMPUTE, DMA, SYNC, HOST = "compute", "dma", "sync", "host"
BLOCK_CELLS = 1 << 17  # of a matrix that is worked on at a time, so that little memory is needed
STRETCH = 1 << 16  # of a column, likewise
CLASSES = (COMPUTE, DMA, SYNC, HOST)

CounterKey = tuple[str, int | None, str, str]
"""Device, chiplet, name, unit."""


@dataclass(frozen=True)
class Lane:
    """A track with commands.  chiplet: None where the device has but one die."""

    device: str
    chiplet: int | None
    engine: str
    kind: str
    name: str


@dataclass(frozen=True)
class Executor:
    """What does one command after the other: an engine of a chiplet, or a worker of the host."""

    device: str
    chiplet: int | None
    engine: str
    kind: str

    @property
    def family(self) -> str:
        """What all that do the same work have in common: the engine's name, or `worker`."""
        return WORKER if self.engine.startswith(f"{WORKER} ") else self.engine


@dataclass(frozen=True)
class Pieces:
    """The commands that all runs of a kind have, in columns [pieces].

    lane, executor: places in the table's lists.  operation, kind, shape, format and route: places
    in the table's texts, -1 for none.  index: tells apart commands of one operation.
    """

    lane: I32
    executor: I32
    operation: I32
    index: I32
    kind: I32
    shape: I32
    format: I32
    route: I32

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(frozen=True)
class Facts:
    """What commands move and compute and what bounds them, each different case once.

    nbytes and ops: -1 where the trace does not say; bound: place in the table's bounds, -1
    likewise.
    """

    nbytes: I64
    ops: I64
    bound: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.bound)


@dataclass(frozen=True)
class Coded:
    """A matrix of which every different value is kept once: what is taken out are the values."""

    codes: I32
    values: NDArray[Any]

    def __getitem__(self, place: Any) -> NDArray[Any]:
        found: NDArray[Any] = self.values[self.codes[place]]
        return found


@dataclass(frozen=True)
class Kind:
    """All runs of one kind.

    runs: their numbers.  start, end: ns; fact: place in `facts`; percent: of the nearest peak, -1
    where the trace does not say; all of these [runs, pieces].  edges: int32 [n, 2], from piece to
    piece, that dependencies make.  waits, resolved: causes that a run gives in words, and how many
    of them were found; backward: edges that were left out, since they point back in time.
    """

    phase: str
    program: str
    runs: I64
    pieces: Pieces
    start: I64
    end: I64
    fact: I32
    percent: NDArray[np.integer]
    facts: Facts
    edges: I32
    waits: int
    resolved: int
    backward: int

    @property
    def nbytes(self) -> Coded:
        return Coded(self.fact, self.facts.nbytes)

    @property
    def ops(self) -> Coded:
        return Coded(self.fact, self.facts.ops)

    @property
    def bound(self) -> Coded:
        return Coded(self.fact, self.facts.bound)

    @property
    def duration(self) -> I64:
        return self.end - self.start

    def time(self) -> I64:
        """int64 [pieces]: the durations, over all runs."""
        return self._total(lambda rows: self.end[rows] - self.start[rows])

    def moved(self) -> I64:
        """int64 [pieces]: the bytes that are known, over all runs."""
        return self._total(lambda rows: np.maximum(self.nbytes[rows], 0))

    def computed(self) -> I64:
        """int64 [pieces]: the operations that are known, over all runs."""
        return self._total(lambda rows: np.maximum(self.ops[rows], 0))

    def _total(self, part: Callable[[slice], I64]) -> I64:
        total: I64 = np.zeros(len(self.pieces), np.int64)
        for rows in self.blocks():
            total += part(rows).sum(axis=0)
        return total

    def blocks(self, cells: int = BLOCK_CELLS) -> Iterator[slice]:
        """Some runs after the other, as many as make matrices of at most so many cells."""
        rows = max(cells // max(len(self.pieces), 1), 1)
        for low in range(0, len(self.runs), rows):
            yield slice(low, low + rows)


@dataclass(frozen=True)
class Runs:
    """Every run of a program, in order of start, in columns.

    step: the step that it is part of; workload: which of that step's runs it is.  tokens, valid,
    past, capacity: -1 where not known.  phase, program: by name.
    """

    step: I64
    workload: I64
    start: I64
    end: I64
    phase: list[str]
    program: list[str]
    tokens: I64
    valid: I64
    past: I64
    capacity: I64

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class HostWork:
    """What the host did: columns in order of start.  step: -1 where not known.

    device: on whose track it is, empty where that is no device's.
    """

    start: I64
    end: I64
    step: I64
    what: list[str]
    device: list[str]

    def part(self, mine: Bool) -> HostWork:
        places = np.flatnonzero(mine).tolist()
        return HostWork(
            self.start[mine],
            self.end[mine],
            self.step[mine],
            [self.what[n] for n in places],
            [self.device[n] for n in places],
        )


@dataclass(frozen=True)
class Found:
    """What was counted on the way in; see `schema.Coverage`.

    left_out: commands of the trace that are not in the window.  Of the whole file, whatever the
    window, are open_slices, unnamed, stray and truncated.  unfinished: steps that were left out as
    the file may end within them.
    """

    slices: int
    commands: int
    open_slices: int
    unnamed: int
    stray: int
    truncated: bool
    old_names: bool
    left_out: int = 0
    unfinished: int = 0


@dataclass(frozen=True)
class Table:
    """texts: of operations, kinds, shapes, formats, routes.  steps: (instance or None, sequence).

    layer and group, by operation's text: the layer's number (-1: none), and the operation with `*`
    in its place.  models: by device with commands the number of the model that ran there.
    headless: something that was done for the first step or answer is not in it.  guessed: which
    worker did what is, of some runs, a guess.
    """

    attributes: dict[str, int | str]
    texts: list[str]
    bounds: tuple[str, ...]
    lanes: tuple[Lane, ...]
    executors: tuple[Executor, ...]
    steps: list[tuple[int | None, int]]
    runs: Runs
    kinds: tuple[Kind, ...]
    host: HostWork
    counters: dict[CounterKey, tuple[I64, F64]]
    layer: dict[int, int]
    group: dict[int, str]
    models: dict[str, int]
    found: Found
    headless: bool = False
    guessed: bool = False

    @property
    def chiplets(self) -> int:
        """How many chiplets there are, over all devices; 0 where each device has but one die."""
        return len({(e.device, e.chiplet) for e in self.lanes if e.chiplet is not None})

    @cached_property
    def model(self) -> I64:
        """int64 [runs]: the number of its model; 0 for a run without commands."""
        found = np.zeros(len(self.runs), np.int64)
        for kind in self.kinds:
            found[kind.runs] = self.models[self.lanes[int(kind.pieces.lane[0])].device]
        return found

    @cached_property
    def with_bytes(self) -> int:
        """Commands that say how many bytes they move."""
        return sum(
            int((kind.nbytes[rows] >= 0).sum()) for kind in self.kinds for rows in kind.blocks()
        )

    @property
    def dependencies(self) -> int:
        return sum(len(kind.edges) * len(kind.runs) for kind in self.kinds)

    @property
    def begin(self) -> int:
        starts = [a for a in (self.runs.start, self.host.start) if len(a)]
        return min((int(a.min()) for a in starts), default=0)

    @property
    def finish(self) -> int:
        ends = [a for a in (self.runs.end, self.host.end) if len(a)]
        return max((int(a.max()) for a in ends), default=0)

    def text(self, place: int) -> str:
        return self.texts[place] if place >= 0 else ""

    def phases(self) -> list[str]:
        """Phases in the order in which they first occur."""
        return list(dict.fromkeys(self.runs.phase))

    def of_phase(self, phase: str) -> list[Kind]:
        return [kind for kind in self.kinds if kind.phase == phase]
