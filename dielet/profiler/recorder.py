"""Records what the host measures while a session runs; everything else waits for its end."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.host.runtime import Execution as HostRun
from dielet.host.runtime import Runtime
from dielet.host.tables import Tables
from dielet.profiler.clock import Clock, Scale
from dielet.profiler.host import HostSlice
from dielet.profiler.ring import Kind, Ring
from dielet.program.records import Execution, Lane

I64 = NDArray[np.int64]
HOST_MARKS = 1 << 18  # slices of the host's work that are kept, 48 bytes each
HEAD = 6  # numbers of a record: program, instance, sequence, workload, past, valid
MARK = struct.Struct("=6q")  # number of the work, begin, end, instance, sequence, thread
STEP, STEP_AT = struct.Struct("=2q"), 3 * 8


@dataclass
class Attached:
    """A runtime and how its executions are numbered.

    since: when it was attached, in ticks and in ns of `perf_counter_ns`; what began before is left
    out.  first: the instance number of its prefill, given at its first use; its decoders' follow,
    by batch size.  last: the instance and sequence of its newest execution, None before the first.
    """

    runtime: Runtime
    since: tuple[int, int]
    first: int = -1
    sequences: dict[int, int] = field(default_factory=dict)
    last: tuple[int, int] | None = None
    workload: int = 0


@dataclass
class _Thread:
    """What a thread did for an execution that it has not started yet, and its last one."""

    number: int
    waiting: list[int] = field(default_factory=list)  # rows of marks
    last: tuple[int, int] | None = None


class _Known:
    """What is needed of a program's tables whenever they were run."""

    def __init__(self, tables: Tables, number: int, place: int) -> None:
        self.tables, self.number = tables, number
        self.place = place  # of its instance among the runtime's; -1: the head, which has none
        self.kind = Kind(sum(map(len, tables.pieces)), HEAD, tables.stamps)
        self.firsts = [s for s, mine in zip(tables.stamps, tables.pieces, strict=True) if mine]

    def begin(self) -> int:
        """When the run that was stamped last began, in ticks."""
        return min(int(stamps[0, 0]) for stamps in self.firsts)


@dataclass
class _Survey:
    """What all records say together.

    tick: the last one.  orphans: heads whose decoder was dropped; weight: their commands.
    """

    tick: int = 0
    orphans: int = 0
    weight: int = 0
    newest: dict[int, int] = field(default_factory=dict)


class Recorder:
    """Listens to runtimes and to the host's work.  memory, disk: limits of the ring, in bytes.

    marked: how often the host worked; only the last HOST_MARKS of that are kept.
    """

    def __init__(self, memory: int, disk: int, folder: Path) -> None:
        self.ring = Ring(memory, disk, folder)
        self.attached: list[Attached] = []
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._works: dict[str, int] = {}
        self._threads: dict[int, _Thread] = {}
        self._marks = np.zeros((HOST_MARKS, MARK.size // 8), np.int64)
        self._mark_bytes = self._marks.reshape(-1).data.cast("B")
        self.marked = 0
        self.clock: Clock | None = None
        self.scale: Scale | None = None

    @property
    def marks_lost(self) -> int:
        """Slices of the host's work that were dropped, the oldest."""
        return max(self.marked - HOST_MARKS, 0)

    def attach(self, runtime: Runtime) -> None:
        """Record what `runtime` begins to execute from now on."""
        with self._lock:
            if any(known.runtime is runtime for known in self.attached):
                return
            if self.clock is None:
                self.clock = Clock(runtime.ticks)
            attached = Attached(runtime, (runtime.ticks(), time.perf_counter_ns()))
            self.attached.append(attached)
        runtime.observer = partial(self._executed, attached)

    def detach(self) -> None:
        """Listen no more, and settle the clock."""
        for attached in self.attached:
            attached.runtime.observer = None
        if self.clock is not None and self.scale is None:
            scale = self.clock.scale()
            with self._lock:  # from here on nothing is added by threads that still run
                self.scale = scale

    def used(self) -> list[Attached]:
        """The runtimes that did something, in order of their instance numbers."""
        return sorted((a for a in self.attached if a.first >= 0), key=lambda a: a.first)

    def _number(self, attached: Attached) -> None:
        attached.first = sum(instances(other.runtime) for other in self.used())

    def _know(self, runtime: Runtime, tables: Tables) -> _Known:
        known = _Known(tables, len(self._known), _place(runtime, tables))
        self._known[id(tables)] = known
        return known

    def _executed(self, attached: Attached, run: HostRun) -> None:
        with self._lock:
            if self.scale is not None:
                return
            known = self._known.get(id(run.tables)) or self._know(attached.runtime, run.tables)
            step = attached.last
            if step is None:  # perhaps it began before the session did, or it is the head of such
                if known.place < 0 or known.begin() < attached.since[0]:
                    return
                if attached.first < 0:
                    self._number(attached)
            if known.place < 0:
                attached.workload += 1
            else:
                instance = attached.first + known.place
                sequence = attached.sequences.get(instance, 0)
                attached.sequences[instance] = sequence + 1
                attached.last = step = instance, sequence
                attached.workload = 0
            assert step is not None
            thread = self._thread()
            thread.last = step
            if thread.waiting:
                for row in thread.waiting:
                    STEP.pack_into(self._mark_bytes, row * MARK.size + STEP_AT, *step)
                thread.waiting.clear()
            self.ring.append(
                known.kind, known.number, *step, attached.workload, run.past, run.valid
            )

    def host_work(self, runtime: object, work: str, begin: int, end: int, before: bool) -> None:
        """The host worked for `runtime` from `begin` to `end` (`perf_counter_ns`).

        before: for its next execution, or else for the last one of this thread.
        """
        with self._lock:
            attached = next((a for a in self.attached if a.runtime is runtime), None)
            if attached is None or self.scale is not None or begin < attached.since[1]:
                return
            thread = self._thread()
            step = thread.last or attached.last
            if not before and step is None:
                return  # the execution that it was for began before the session, and is left out
            if attached.first < 0:
                self._number(attached)
            row = self.marked % HOST_MARKS
            if before or step is None:
                step = attached.first, attached.sequences.get(attached.first, 0)
                if self.marked >= HOST_MARKS:
                    thread.waiting = [other for other in thread.waiting if other != row]
                thread.waiting.append(row)
            number = self._works.setdefault(work, len(self._works))
            MARK.pack_into(self._mark_bytes, row * MARK.size, number, begin, end, *step,
                           thread.number)  # fmt: skip
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
        parts = [_Parts(known.tables) for known in self._known.values()]
        newest: dict[int, int] = {}
        for record in self.ring:
            if not self._follows(record, newest):
                continue
            number, *facts = record[2 : 2 + HEAD].tolist()
            yield parts[number].execution(record[2 + HEAD :], self.scale, tuple(facts))

    @cached_property
    def _survey(self) -> _Survey:
        """What is known once all records were seen; after `detach`."""
        found = _Survey()
        for record in self.ring:
            if self._follows(record, found.newest):
                found.tick = max(found.tick, int(record[2 + HEAD :].max()))
            else:
                found.orphans += 1
                found.weight += int(record[1])
        return found

    def _follows(self, record: I64, newest: dict[int, int]) -> bool:
        """Whether a record is a decoder's, or that of a head whose decoder is there too.

        newest: by instance, the sequence of the last decoder.
        """
        _, instance, sequence, workload = record[2:6].tolist()
        if workload == 0:
            newest[instance] = sequence
        return newest.get(instance) == sequence

    @property
    def lost(self) -> int:
        """Commands that were dropped; a head goes with its decoder."""
        return self.ring.lost + self._survey.weight

    @property
    def dropped(self) -> int:
        """Runs of programs that were dropped."""
        return self.ring.dropped + self._survey.orphans

    @property
    def commands(self) -> int:
        """Slices of commands that there are."""
        return self.ring.weight - self._survey.weight

    @property
    def last(self) -> int:
        """When the last record ends, in picoseconds; after `detach`."""
        assert self.scale is not None
        tick = self._survey.tick
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

    def execution(self, stamps: I64, scale: Scale, facts: tuple[int, ...]) -> Execution:
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


def _place(runtime: Runtime, tables: Tables) -> int:
    """Which of a runtime's instances a program belongs to; -1: the head's, to whichever ran."""
    if tables.phase == "head":
        return -1
    if tables.phase == "prefill":
        return 0
    return 1 + sorted(runtime.manifest.batch_sizes).index(tables.tokens)
