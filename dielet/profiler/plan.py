"""An execution as it will be drawn: its slices in order, their tracks, and what each will say.

A step is one execution of a runtime instance: the runs of the device in it, the decoder's and
mostly the head's.  A plan is what all steps of one kind have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dielet.profiler.describe import (
    NEURAL_DMA,
    command_indices,
    engine_title,
    waited_for,
)
from dielet.profiler.names import worker_of
from dielet.profiler.tracks import Place, Track, Tracks
from dielet.profiler.work import Peaks, Work
from dielet.program.records import BOUNDS, Execution
from dielet.program.types import Program

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
SETUP_SHARE = 0.25
"""Below this share of every limit a command is said to be bound by its set-up."""


@dataclass(frozen=True)
class Step:
    """The runs of one execution, in order: same instance and sequence, workloads 0, 1, ..."""

    runs: tuple[Execution, ...]

    @property
    def instance(self) -> int:
        return self.runs[0].instance

    @property
    def sequence(self) -> int:
        return self.runs[0].sequence

    @property
    def step(self) -> tuple[int, int]:
        return self.instance, self.sequence

    @property
    def start(self) -> int:
        return min(run.start for run in self.runs)

    @property
    def end(self) -> int:
        return max(run.end for run in self.runs)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """Steps of equal kinds have slices for the same commands on the same tracks."""
        lanes = ((lane.name, lane.commands.tobytes()) for run in self.runs for lane in run.lanes)
        runs = tuple((id(r.program), r.workload, r.bound is None) for r in self.runs)
        return self.instance, runs, tuple(lanes)


@dataclass(frozen=True)
class Facts:
    """What is known of a program once and for all."""

    program: Program
    work: Work
    indices: list[int]  # of commands among those of the same layer and chiplet
    flows: list[tuple[int, ...]]  # sources of the arrows into each command

    @staticmethod
    def of(program: Program, place: Place, peaks: Peaks | None) -> Facts:
        titles = [engine_title(place.device, program, n) for n in range(len(program.commands))]
        flows = [
            tuple(dep for dep in command.deps if NEURAL_DMA not in (title, titles[dep]))
            for command, title in zip(program.commands, titles, strict=True)
        ]
        return Facts(
            program,
            Work(program, place.device, peaks),
            command_indices(program),
            flows,
        )


@dataclass(frozen=True)
class Figures:
    """Of every slice of several steps, [steps, slices]; f64 but for `nearest`.

    moved: bytes, as `Work.carried`; dram: read and written in the DRAM; linked: those that crossed
    a link.  least: seconds that the slice would have taken at the limit that is nearest to it,
    which is number `nearest` of BOUNDS.
    """

    moved: F64
    dram: F64
    linked: F64
    ops: F64
    least: F64
    nearest: NDArray[np.integer]


class RunFigures:
    """Matrices that give the figures of one run's slices from the terms of its binding."""

    def __init__(self, work: Work, command: I64, share: F64) -> None:
        def matrix(coefficients: F64) -> F64:
            return coefficients[:, command] * share

        columns = {name: work.moved[:, :, n] for n, name in enumerate(work.memories)}
        self._work = work
        self._moved = matrix(work.carried)
        self._dram = matrix(columns.get("dram", np.zeros_like(work.ops)))
        self._linked = matrix(work.linked.sum(axis=2))
        self._ops = matrix(work.ops)
        # Seconds at the limit of the multipliers, each memory and each link, as far as known.
        limits = [("compute", self._ops / work.peak_ops[command])]
        for name, peak in zip(work.memories, work.peak_memories.tolist(), strict=True):
            limits.append(("memory", matrix(columns[name]) / peak))
        for n, peak in enumerate(work.peak_links.tolist()):
            limits.append(("link", matrix(work.linked[:, :, n]) / peak))
        self._limits = [(BOUNDS.index(kind), limit) for kind, limit in limits if limit.any()]

    def figures(self, valid: F64, past: F64) -> Figures:
        terms = self._work.terms(valid, past)
        shape = len(terms), self._ops.shape[1]
        least, nearest = np.zeros(shape), np.full(shape, BOUNDS.index("setup"))
        for kind, limit in self._limits:
            seconds = terms @ limit
            np.copyto(nearest, kind, where=seconds > least)
            np.maximum(least, seconds, out=least)
        linked = terms @ self._linked if self._linked.any() else np.zeros(shape)
        moved, dram, ops = (terms @ m for m in (self._moved, self._dram, self._ops))
        return Figures(moved, dram, linked, ops, least, nearest)


@dataclass(frozen=True)
class Piece:
    """One slice: what lane `lane` did of command `command` of the step's run `run`.

    edges: flow numbers, counted over the step.  waited: what it waited for, in words.  worker: who
    did it, where lanes are workers of the host.
    """

    run: int
    command: int
    lane: int
    track: Track
    edges: tuple[int, ...] = ()
    waited: str = ""
    worker: int | None = None


class Plan:
    """The slices of every step of one kind, in program order, which dependencies never oppose.

    pieces: the slices.  order: where each is in the lanes of the runs, one after the other.
    previous: the slice before it in its lane, or -1.  share: the part of its command.
    """

    def __init__(self, step: Step, facts: Sequence[Facts], place: Place, tracks: Tracks) -> None:
        self.facts, self.place = tuple(facts), place
        found = [
            (run, int(command), number, at)
            for run, execution in enumerate(step.runs)
            for number, lane in enumerate(execution.lanes)
            for at, command in enumerate(lane.commands)
        ]
        sources = {piece: source for source, piece in enumerate(found)}
        found.sort()
        self.order = np.array([sources[piece] for piece in found], np.int64)
        self.run = np.array([piece[0] for piece in found], np.int64)
        self.command = np.array([piece[1] for piece in found], np.int64)
        self.lane = np.array([piece[2] for piece in found], np.int64)
        self.share = np.concatenate(
            [
                np.ones(len(lane.commands)) if lane.share is None else lane.share
                for execution in step.runs
                for lane in execution.lanes
            ]
        )[self.order]
        self.bounds = np.searchsorted(self.run, np.arange(len(step.runs) + 1))
        self._matrices = [
            RunFigures(self.facts[run].work, self.command[lo:hi], self.share[lo:hi])
            for run, (lo, hi) in enumerate(pairwise(self.bounds.tolist()))
        ]
        self.previous = self._previous()
        self.flow_count = 0
        self.pieces = self._pieces(step, tracks)

    def _previous(self) -> I64:
        previous = np.full(len(self.run), -1, np.int64)
        last: dict[tuple[int, int], int] = {}
        for piece, key in enumerate(zip(self.run.tolist(), self.lane.tolist(), strict=True)):
            previous[piece] = last.get(key, -1)
            last[key] = piece
        return previous

    def _pieces(self, step: Step, tracks: Tracks) -> list[Piece]:
        edges: list[list[int]] = [[] for _ in self.run]
        by_command: dict[tuple[int, int], list[int]] = {}
        keys = list(zip(self.run.tolist(), self.command.tolist(), strict=True))
        for piece, key in enumerate(keys):
            by_command.setdefault(key, []).append(piece)
        for (run, command), mine in by_command.items():
            for dep in self.facts[run].flows[command]:
                sources = by_command.get((run, dep))
                if sources:
                    # Of a divided command one part stands for all: the arrow is one.
                    edges[sources[-1]].append(self.flow_count)
                    edges[mine[0]].append(self.flow_count)
                    self.flow_count += 1
        lanes = [self._lane_names(execution) for execution in step.runs]
        lane_of = self.lane.tolist()
        pieces = []
        for piece, (run, command) in enumerate(keys):
            facts, lane = self.facts[run], lane_of[piece]
            queue = facts.program.queues[facts.program.commands[command].queue]
            waits = tuple(
                dep
                for dep in facts.program.commands[command].deps
                if any(lane_of[p] != lane for p in by_command.get((run, dep), ()))
            )
            name = lanes[run].get((queue.chiplet, queue.engine, lane))
            pieces.append(
                Piece(
                    run,
                    command,
                    lane,
                    tracks.engine(self.place, queue.chiplet, queue.engine, name),
                    tuple(edges[piece]),
                    waited_for(facts.program, waits, facts.indices),
                    worker_of(step.runs[run].lanes[lane].name),
                )
            )
        return pieces

    def _lane_names(self, execution: Execution) -> dict[tuple[int, str, int], str]:
        """Lanes that need a track below their engine's, since slices of two lanes may overlap.

        The lane that does most for an engine of a chiplet goes onto the engine's own track.
        """
        program = execution.program
        users: dict[tuple[int, str], Counter[int]] = {}
        for number, lane in enumerate(execution.lanes):
            for queue, count in enumerate(
                np.bincount([program.commands[c].queue for c in lane.commands.tolist()])
                if len(lane.commands)
                else ()
            ):
                if count:
                    key = program.queues[queue].chiplet, program.queues[queue].engine
                    users.setdefault(key, Counter())[number] = int(count)
        return {
            (*key, number): execution.lanes[number].name
            for key, counts in users.items()
            for number, _ in counts.most_common()[1:]
        }

    def times(self, steps: Sequence[Step]) -> tuple[I64, I64]:
        """(start, end) of the slices of several steps: int64 [steps, slices], picoseconds."""
        begin = np.concatenate([lane.start for s in steps for r in s.runs for lane in r.lanes])
        end = np.concatenate([lane.end for s in steps for r in s.runs for lane in r.lanes])
        shape = len(steps), len(self.order)
        return begin.reshape(shape)[:, self.order], end.reshape(shape)[:, self.order]

    def gaps(self, begin: I64, end: I64) -> I64:
        """Time between a slice and the one before it in its lane, or the start of its run."""
        out = begin - end[:, self.previous]
        for lo, hi in pairwise(self.bounds.tolist()):
            first = begin[:, lo:hi].min(axis=1, keepdims=True)
            out[:, lo:hi] = np.where(
                self.previous[lo:hi] < 0, begin[:, lo:hi] - first, out[:, lo:hi]
            )
        return out

    def figures(self, steps: Sequence[Step]) -> Figures:
        """What the slices moved and computed, and what they would take at their limits."""
        parts = []
        for run, matrices in enumerate(self._matrices):
            valid = np.array([step.runs[run].valid for step in steps], np.float64)
            past = np.array([step.runs[run].past for step in steps], np.float64)
            parts.append(matrices.figures(valid, past))
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return Figures(*(np.concatenate(column, axis=1) for column in columns))

    def bounds_of(self, steps: Sequence[Step], figures: Figures, seconds: F64) -> I64:
        """What bounded every slice: from the records, or else the nearest limit, if it is near."""
        out = np.where(
            figures.least < seconds * SETUP_SHARE, BOUNDS.index("setup"), figures.nearest
        )
        for run, (lo, hi) in enumerate(pairwise(self.bounds.tolist())):
            for row, step in enumerate(steps):
                given = step.runs[run].bound
                if given is not None:
                    out[row, lo:hi] = given[self.command[lo:hi]]
        return out
