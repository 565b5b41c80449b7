"""Records what the host measures while a session runs; everything else waits for its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.host.runtime import Execution as HostRun
from dielet.host.runtime import Runtime
from dielet.host.tables import Tables
from dielet.profiler.clock import Clock, Scale
from dielet.profiler.host import HostSlice
from dielet.profiler.ring import Ring
from dielet.program.records import Execution, Lane

I64 = NDArray[np.int64]
HOST_MARKS = 1 << 18  # slices of the host's work that are kept, 48 bytes each


@dataclass
class Attached:
    """A runtime and how its executions are numbered.

    first: the instance number of its prefill, given at its first use; its decoders' follow, by
    batch size.
    """

    runtime: Runtime
    first: int = -1
    sequences: dict[int, int] = field(default_factory=dict)
    last: tuple[int, int] = (0, 0)  # instance, sequence
    workload: int = 0


@dataclass
class _Thread:
    """What a thread did for an execution that it has not started yet, and its last one."""

    number: int
    waiting: list[int] = field(default_factory=list)  # rows of marks
    last: tuple[int, int] | None = None


class Recorder:
    """Listens to runtimes and to the host's work.  memory, disk: limits of the ring, in bytes."""

    def __init__(self, memory: int, disk: int, folder: Path) -> None:
        self.ring = Ring(memory, disk, folder)
        self.attached: list[Attached] = []
        self._lock = threading.Lock()
        self._tables: dict[int, int] = {}
        self._alive: list[Tables] = []
        self._counts: list[int] = []
        self._works: dict[str, int] = {}
        self._threads: dict[int, _Thread] = {}
        self._marks = np.zeros((HOST_MARKS, 6), np.int64)
        self.marked = 0
        self.clock: Clock | None = None
        self.scale: Scale | None = None

    def attach(self, runtime: Runtime) -> None:
        """Record what `runtime` executes from now on."""
        with self._lock:
            if any(known.runtime is runtime for known in self.attached):
                return
            if self.clock is None:
                self.clock = Clock(runtime.ticks)
            attached = Attached(runtime)
            self.attached.append(attached)
        runtime.observer = lambda run: self._executed(attached, run)

    def detach(self) -> None:
        """Listen no more, and settle the clock."""
        for attached in self.attached:
            attached.runtime.observer = None
        if self.clock is not None and self.scale is None:
            self.scale = self.clock.scale()

    def used(self) -> list[Attached]:
        """The runtimes that did something, in order of their instance numbers."""
        return sorted((a for a in self.attached if a.first >= 0), key=lambda a: a.first)

    def _number(self, attached: Attached) -> None:
        if attached.first < 0:
            attached.first = sum(instances(other.runtime) for other in self.used())

    def _executed(self, attached: Attached, run: HostRun) -> None:
        with self._lock:
            self._number(attached)
            if run.tables.phase == "head":
                instance, sequence = attached.last
                attached.workload += 1
            else:
                instance = attached.first + _place(attached.runtime, run)
                sequence = attached.sequences.get(instance, 0)
                attached.sequences[instance] = sequence + 1
                attached.last, attached.workload = (instance, sequence), 0
            thread = self._thread()
            thread.last = attached.last
            for row in thread.waiting:
                self._marks[row, 3:5] = thread.last
            thread.waiting.clear()
            number = self._tables.get(id(run.tables))
            if number is None:
                number = self._tables[id(run.tables)] = len(self._alive)
                self._alive.append(run.tables)
                self._counts.append(sum(map(len, run.tables.pieces)))
            head = number, instance, sequence, attached.workload, run.past, run.valid
            stamps = [part.reshape(-1) for part in run.tables.stamps]
            self.ring.append(self._counts[number], head, stamps)

    def host_work(self, runtime: object, work: str, begin: int, end: int, before: bool) -> None:
        """The host worked for `runtime` from `begin` to `end` (`perf_counter_ns`).

        before: for its next execution, or else for the last one of this thread.
        """
        with self._lock:
            attached = next((a for a in self.attached if a.runtime is runtime), None)
            if attached is None:
                return
            self._number(attached)
            thread = self._thread()
            row = self.marked % HOST_MARKS
            number = self._works.setdefault(work, len(self._works))
            step = thread.last
            if before or step is None:
                step = attached.first, attached.sequences.get(attached.first, 0)
                thread.waiting = [other for other in thread.waiting if other != row]
                thread.waiting.append(row)
            self._marks[row] = number, begin, end, *step, thread.number
            self.marked += 1

    def _thread(self) -> _Thread:
        ident = threading.get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = _Thread(len(self._threads))
        return thread

    def host_slices(self) -> list[HostSlice]:
        """What the host did, in order of start; after `detach`."""
        assert self.scale is not None
        works = list(self._works)
        kept = self._marks[: min(self.marked, HOST_MARKS)]
        return [
            HostSlice(
                works[number],
                self.scale.of_nanoseconds(begin),
                self.scale.of_nanoseconds(end),
                instance,
                sequence,
                thread,
            )
            for number, begin, end, instance, sequence, thread in kept[
                np.argsort(kept[:, 1], kind="stable")
            ].tolist()
        ]

    def executions(self) -> Iterator[Execution]:
        """What was recorded, in order; after `detach`."""
        assert self.scale is not None
        parts = [_Parts(tables) for tables in self._alive]
        for record in self.ring:
            number, instance, sequence, workload, past, valid = record[2:8].tolist()
            yield parts[number].execution(
                record[8:], self.scale, (instance, sequence, workload, past, valid)
            )

    @property
    def last(self) -> int:
        """When the last record ends, in picoseconds; after `detach`."""
        assert self.scale is not None
        tick = 0
        for record in self.ring:
            tick = max(tick, int(record[8:].max()))
        slices = [piece.end for piece in self.host_slices()]
        return max(int(self.scale.of_ticks(np.array(tick))), max(slices, default=0), 0)


class _Parts:
    """How the stamps of one program's tables become lanes."""

    def __init__(self, tables: Tables) -> None:
        self.program = tables.program
        self._lanes = []
        at = 0
        for worker, (pieces, stamps) in enumerate(zip(tables.pieces, tables.stamps, strict=True)):
            if pieces:
                commands = np.array([piece.command for piece in pieces], np.int32)
                share = np.array([(piece.hi - piece.lo) / piece.den for piece in pieces])
                name = f"worker {worker}"
                self._lanes.append((name, commands, share, slice(at, at + 2 * len(pieces))))
            at += stamps.size

    def execution(
        self, stamps: I64, scale: Scale, facts: tuple[int, int, int, int, int]
    ) -> Execution:
        times = scale.of_ticks(stamps)
        lanes = tuple(
            Lane(name, commands, times[where][0::2], times[where][1::2], share)
            for name, commands, share, where in self._lanes
        )
        instance, sequence, workload, past, valid = facts
        return Execution(self.program, "measured", instance, sequence, workload, past, valid, lanes)


def instances(runtime: Runtime) -> int:
    """How many runtime instances a model has: its prefill, and a decoder per batch size."""
    return 1 + len(runtime.manifest.batch_sizes)


def _place(runtime: Runtime, run: HostRun) -> int:
    if run.tables.phase == "prefill":
        return 0
    return 1 + sorted(runtime.manifest.batch_sizes).index(run.tables.tokens)
