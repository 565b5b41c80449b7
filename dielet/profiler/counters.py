"""Counters of a step: sampled at a fixed number of places from each run's start to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.profiler.live import live_bytes
from dielet.profiler.plan import Facts, Figures, Plan, Step
from dielet.profiler.tracks import Track, Tracks
from dielet.program.types import Program

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
SLICES_PER_SAMPLE, FEWEST, MOST = 32, 8, 256
FEWEST_OF_RUN = 4


@dataclass(frozen=True)
class Counter:
    """One counter track; `once`: a single sample at the start, not one per place."""

    track: Track
    once: bool


class Counters:
    """The counters of every step of one plan, and what is needed to compute their values."""

    def __init__(self, plan: Plan, tracks: Tracks) -> None:
        self.plan = plan
        whole = int(np.clip(len(plan.pieces) // SLICES_PER_SAMPLE, FEWEST, MOST))
        # Short runs, such as the head's, get a few places of their own.
        shares = np.diff(plan.bounds) / len(plan.pieces)
        self.samples = [max(round(whole * share), FEWEST_OF_RUN) for share in shares.tolist()]
        self._ends = np.cumsum(np.array(self.samples) + 1) - 1  # places at which runs end
        self.places_each = int(self._ends[-1]) + 1
        programs = [facts.program for facts in plan.facts]
        self.chiplets = sorted({program.queues[c.queue].chiplet for program in programs
                                for c in program.commands})  # fmt: skip
        chiplet_of = [_chiplet(plan.facts[piece.run], piece.command) for piece in plan.pieces]
        self._lanes: dict[int, list[I64]] = {c: [] for c in self.chiplets}
        for lane, chiplet in sorted({*zip(plan.lane.tolist(), chiplet_of, strict=True)}):
            mine = (plan.lane == lane) & (np.array(chiplet_of) == chiplet)
            self._lanes[chiplet].append(np.flatnonzero(mine))
        self._weights = {c: sum(weight_bytes(p, c) for p in programs) for c in self.chiplets}
        self._kv = {c: sum(kv_bytes(p, c) for p in programs) for c in self.chiplets}
        live = [live_bytes(program) for program in programs]
        self._live = {
            c: np.array(
                [
                    live[piece.run][c][piece.command] if c in live[piece.run] else 0
                    for piece in plan.pieces
                ],
                np.float64,
            )
            for c in self.chiplets
        }
        self.counters: list[Counter] = []
        self._series: list[tuple[str, int]] = []
        for chiplet in self.chiplets:
            for name, present in (
                ("DRAM bytes in use", self._weights[chiplet] + self._kv[chiplet] > 0),
                ("shared-memory bytes in use", bool(self._live[chiplet].any())),
                ("DRAM GB/s", self._moves(chiplet, link=False)),
                ("link GB/s", self._moves(chiplet, link=True)),
            ):
                if present:
                    track = tracks.counter(plan.place, chiplet, name)
                    self.counters.append(Counter(track, name == "DRAM bytes in use"))
                    self._series.append((name, chiplet))

    def _moves(self, chiplet: int, link: bool) -> bool:
        """Whether any command of `chiplet` moves bytes of the DRAM, or over a link."""
        for facts in self.plan.facts:
            work = facts.work
            mine = [n for n in range(len(facts.program.commands)) if _chiplet(facts, n) == chiplet]
            if link and work.linked[:, mine].any():
                return True
            dram = work.memories.index("dram") if "dram" in work.memories else None
            if not link and dram is not None and work.moved[:, mine, dram].any():
                return True
        return False

    def places(self, begin: I64, end: I64) -> I64:
        """int64 [steps, places_each]: of each run the times of its samples, and its end."""
        bounds = self.plan.bounds[:-1]
        first = np.minimum.reduceat(begin, bounds, axis=1)
        last = np.maximum.reduceat(end, bounds, axis=1)
        edges = [
            first[:, run, None] + (last - first)[:, run, None] * np.arange(count + 1) // count
            for run, count in enumerate(self.samples)
        ]
        # Runs that overlap, as a step's do not, would still be sampled in order of time.
        return np.maximum.accumulate(np.concatenate(edges, axis=1), axis=1)

    def values(self, steps: Sequence[Step], begin: I64, end: I64, figures: Figures) -> F64:
        """f64 [steps, all samples]: of each counter one value or one per place, 0 at runs' ends."""
        edges = self.places(begin, end)
        begun = {c: [_begun(lane, begin, edges) for lane in self._lanes[c]] for c in self.chiplets}
        columns = []
        for name, chiplet in self._series:
            if name == "DRAM bytes in use":
                columns.append(self._in_use(steps, chiplet))
            elif name == "shared-memory bytes in use":
                columns.append(self._sampled(self._live[chiplet], begun[chiplet], begin))
            else:
                moved = figures.dram if name == "DRAM GB/s" else figures.linked
                columns.append(self._rates(moved, begun[chiplet], begin, end, edges))
        return np.concatenate(columns, axis=1) if columns else np.zeros((len(steps), 0))

    def _in_use(self, steps: Sequence[Step], chiplet: int) -> F64:
        tokens = np.array([max(r.past + r.valid for r in s.runs) for s in steps], np.float64)
        return (self._weights[chiplet] + self._kv[chiplet] * tokens)[:, None]

    def _sampled(self, live: F64, lanes: Sequence[_Begun], begin: I64) -> F64:
        """At every place what is live during the last command that began before it."""
        rows = np.arange(len(begin))[:, None]
        chosen = np.stack([lane.pieces[lane.last] for lane in lanes])
        starts = begin[rows, chosen]
        latest = np.where([lane.any for lane in lanes], starts, -starts - 1).argmax(axis=0)
        out = live[np.take_along_axis(chosen, latest[None], axis=0)[0]]
        out[:, self._ends] = 0
        return out

    def _rates(self, moved: F64, lanes: Sequence[_Begun], begin: I64, end: I64, edges: I64) -> F64:
        """GB/s between one place and the next: each slice's bytes spread over its time."""
        total = np.zeros(edges.shape)
        rows = np.arange(len(begin))[:, None]
        for lane in lanes:
            sums = np.cumsum(moved[:, lane.pieces], axis=1)
            piece = lane.pieces[lane.last]
            start = begin[rows, piece]
            left = 1 - (edges - start) / np.maximum(end[rows, piece] - start, 1)
            total += sums[rows, lane.last] - moved[rows, piece] * np.clip(left, 0, 1)
        width = np.maximum(np.diff(edges, axis=1), 1)
        rates = np.diff(total, axis=1) / width * 1e3  # bytes per picosecond are 1000 GB/s
        rates = np.concatenate([rates, np.zeros((len(begin), 1))], axis=1)
        rates[:, self._ends] = 0  # nothing moves until the next run begins
        return rates


@dataclass(frozen=True)
class _Begun:
    """What a lane did last at every place: number `last` of its `pieces`, if there was any."""

    pieces: I64
    last: I64
    any: NDArray[np.bool_]


def _begun(pieces: I64, begin: I64, edges: I64) -> _Begun:
    """pieces: of one lane, in order of time.  begin: of all, [steps, pieces]."""
    starts = begin[:, pieces]
    flat, offset = _stacked(starts)
    at = np.searchsorted(flat, edges + offset, side="right") - 1
    at -= np.arange(len(begin))[:, None] * len(pieces)
    return _Begun(pieces, np.maximum(at, 0), at >= 0)


def _stacked(times: I64) -> tuple[I64, I64]:
    """All rows in one increasing sequence, and what was added to each row for that."""
    span = int(times.max() - times.min()) + 1
    offset = np.arange(len(times), dtype=np.int64)[:, None] * (span + 1)
    return (times - times.min() + offset).ravel(), offset - times.min()


def _chiplet(facts: Facts, command: int) -> int:
    return facts.program.queues[facts.program.commands[command].queue].chiplet


def weight_bytes(program: Program, chiplet: int) -> int:
    """Bytes of the parameters that commands of `chiplet` use, each counted once."""
    regions = {
        operand.region
        for command in program.commands
        if program.queues[command.queue].chiplet == chiplet
        for operand in command.operands
        if operand.region.space.split(".")[0] in ("weights", "head", "embedding")
    }
    return sum(region.nbytes for region in regions)


def kv_bytes(program: Program, chiplet: int) -> float:
    """Bytes of cache per position that commands of `chiplet` use."""
    regions = {
        operand.region
        for command in program.commands
        if program.queues[command.queue].chiplet == chiplet
        for operand in command.operands
        if operand.region.space.split(".")[0] == "kv"
    }
    return sum(region.nbytes for region in regions) / max(program.capacity, 1)
