"""The packets of the steps of one plan: as a template, and the columns that fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.profiler import perfetto as p
from dielet.profiler.counters import Counters
from dielet.profiler.describe import format_of, places_of, shape_of
from dielet.profiler.names import WORKER
from dielet.profiler.plan import Piece, Plan, Step
from dielet.profiler.template import Body, Field, Layout, NameTable, Template
from dielet.profiler.texts import Texts, Used
from dielet.profiler.tracks import Track, Tracks
from dielet.profiler.wire import Bytes, number

I64 = NDArray[np.int64]
Columns = dict[str, NDArray[np.generic]]

NAME_WIDTH = 4  # bytes of a name's number: 2^28 names
BYTES, OPS, RATE, PERCENT, WAIT, COUNT = 5, 6, 4, 2, 5, 4  # bytes of the varints in arguments


def _most(width: int) -> int:
    return (1 << 7 * width) - 1


@dataclass(frozen=True)
class Filled:
    """The numbers of several steps of one plan, ready to be put into any of its templates."""

    steps: Sequence[Step]
    columns: Columns


class Drawing:
    """What all steps of one plan put into a trace, and how."""

    def __init__(
        self, plan: Plan, tracks: Tracks, texts: Texts, sample: Step, time_width: int
    ) -> None:
        self.plan = plan
        self.counters = Counters(plan, tracks)
        self.runs = [(run.program, run.workload) for run in sample.runs]
        self.instance = sample.instance
        chiplets = {facts.program.queues[c.queue].chiplet for facts in plan.facts
                    for c in facts.program.commands}  # fmt: skip
        devices = sorted({plan.place.device_of(chiplet) for chiplet in chiplets})
        self.workloads = [
            (run, tracks.workload(plan.place, device))
            for run in range(len(self.runs))
            for device in devices
        ]
        self.names = self._names()
        self.used = Used(texts)
        self.tracks = list(
            dict.fromkeys(
                track
                for leaf in (
                    *(track for _, track in self.workloads),
                    *(piece.track for piece in plan.pieces),
                    *(counter.track for counter in self.counters.counters),
                )
                for track in leaf.chain()
            )
        )
        self._estimated = any(np.isfinite(f.work.peak_memories).any() for f in plan.facts)
        self._computes = [{*np.flatnonzero(f.work.ops.any(axis=0)).tolist()} for f in plan.facts]
        self._bound = self._estimated or all(run.bound is not None for run in sample.runs)
        self._tables: dict[bool, tuple[tuple[int, int], NameTable]] = {}
        if self._bound:
            self.used.bounds()
        self.template = self._lay_out(time_width)
        self.header = p.interned(self.used.entries, p.CLEARED | p.NEEDS_STATE)
        self.header += b"".join(track.descriptor() for track in self.tracks)

    @property
    def slices(self) -> int:
        """Slices of one step, those of the Device Workload track included."""
        return len(self.plan.pieces) + len(self.workloads)

    def name_packets(self, steps: Sequence[Step], merged: bool, first: int) -> tuple[Bytes, I64]:
        """The names of steps, numbered from `first`, and where packets end.

        In a merged file names say the instance.  All sequences have the same number of digits.
        """
        digits = len(str(steps[0].sequence))
        key = len(steps), digits
        known, table = self._tables.get(merged, ((0, 0), None))
        if table is None or known != key:
            prefix = f"i{self.instance}_" if merged else ""
            names = [(prefix, after) for after in self.names]
            table = NameTable(names, len(steps), digits, NAME_WIDTH)
            self._tables[merged] = key, table
        return table.render([step.sequence for step in steps], first), table.ends

    def _names(self) -> list[str]:
        """What follows the sequence number in each different name; `_name_of` finds a piece's."""
        known: dict[str, int] = {}
        self._name_of = []
        for run, _ in self.workloads:
            name = f"_Device Workload_{self.runs[run][1]}"
            self._name_of.append(known.setdefault(name, len(known)))
        for piece in self.plan.pieces:
            facts = self.plan.facts[piece.run]
            layer = facts.program.commands[piece.command].layer
            index = facts.indices[piece.command]
            name = f"_W{self.runs[piece.run][1]}_{layer}_{index}"
            self._name_of.append(known.setdefault(name, len(known)))
        return list(known)

    # Times of a step: slices' starts, slices' ends, runs' starts, runs' ends, counters' places.

    def _lay_out(self, time_width: int) -> Template:
        layout = Layout(time_width)
        n, runs = len(self.plan.pieces), len(self.runs)
        for place, (run, track) in enumerate(self.workloads):
            layout.event(2 * n + run, self._workload_begin(place, run, track), stateful=True)
            layout.end(2 * n + runs + run, track.uuid)
        for place, piece in enumerate(self.plan.pieces):
            layout.event(place, self._begin(place, piece), stateful=True)
            layout.end(n + place, piece.track.uuid)
        sample, first = 0, 2 * n + 2 * runs
        for counter in self.counters.counters:
            for place in range(1 if counter.once else self.counters.places_each):
                layout.counter(first + place, counter.track.uuid, Field("counter", sample, 0))
                sample += 1
        return layout.template()

    # What is the same in all steps comes first in a packet: then it is one match for a compressor.

    def _slice(self, track: Track, category: str) -> Body:
        event = Body().add(number(p.TYPE, p.BEGIN) + number(p.TRACK, track.uuid))
        return event.add(number(p.CATEGORY, self.used.category(category)))

    def _name(self, event: Body, place: int) -> None:
        event.hole(p.NAME, Field("name", self._name_of[place], NAME_WIDTH))

    def _text(self, event: Body, key: str, value: str) -> None:
        event.add(p.string_argument(self.used.key(key), self.used.string(value)))

    def _number(self, event: Body, key: str, value: int) -> None:
        event.message(
            p.ANNOTATION, Body().add(number(p.KEY, self.used.key(key)) + number(p.UINT, value))
        )

    def _workload_begin(self, place: int, run: int, track: Track) -> Body:
        program = self.runs[run][0]
        event = self._slice(track, track.name)
        self._text(event, "phase", program.phase)
        self._text(event, "program", program.name)
        self._number(event, "tokens", program.tokens)
        self._number(event, "capacity", program.capacity)
        self._name(event, place)
        event.argument(self.used.key("valid"), Field("valid", run, COUNT))
        event.argument(self.used.key("past"), Field("past", run, COUNT))
        return event

    def _begin(self, place: int, piece: Piece) -> Body:
        facts = self.plan.facts[piece.run]
        command = facts.program.commands[piece.command]
        key = self.used.key
        title = self.plan.place.device.engine[facts.program.queues[command.queue].engine].title
        event = self._slice(piece.track, title)
        computes = piece.command in self._computes[piece.run]
        self._text(event, "kind", command.kind)
        self._text(event, "shape", shape_of(command))
        self._text(event, "format", format_of(command))
        self._text(event, "memory", places_of(facts.program, command, facts.work.machine))
        if piece.worker is not None:
            self._number(event, WORKER, piece.worker)
        event.argument(key("bytes"), Field("bytes", place, BYTES))
        if computes:
            event.argument(key("operations"), Field("ops", place, OPS))
        if piece.waited:
            self._text(event, "waited for", piece.waited)
        self._name(event, len(self.workloads) + place)
        event.argument(key("MB/s"), Field("byte_rate", place, RATE))
        if computes:
            event.argument(key("GOP/s"), Field("op_rate", place, RATE))
        if self._estimated:
            event.argument(key("% of peak"), Field("percent", place, PERCENT))
        if self._bound:
            event.argument(key("bound by"), Field("bound", place, 1), p.STRING)
        if piece.waited:
            event.argument(key("waited ns"), Field("waited", place, WAIT))
        for edge in piece.edges:
            event.hole(p.FLOW, Field("flow", edge, 0))
        return event

    def fill(self, steps: Sequence[Step], first_flow: I64) -> Filled:
        """Columns for steps of this plan; names are numbered by whoever writes a file."""
        plan = self.plan
        begin, end = plan.times(steps)
        figures = plan.figures(steps)
        bounds = plan.bounds.tolist()
        starts = np.minimum.reduceat(begin, bounds[:-1], axis=1)
        ends = np.maximum.reduceat(end, bounds[:-1], axis=1)
        places = self.counters.places(begin, end)
        seconds = np.maximum(end - begin, 1) * 1e-12
        per_second = 1 / seconds
        columns: Columns = {
            "bytes": _whole(figures.moved, BYTES),
            "byte_rate": _whole(figures.moved * (per_second * 1e-6), RATE),
            "ops": _whole(figures.ops, OPS),
            "op_rate": _whole(figures.ops * (per_second * 1e-9), RATE),
            "percent": _whole(figures.least * (per_second * 100), PERCENT),
            "bound": plan.bounds_of(steps, figures, seconds) + 1,
            "waited": np.minimum(plan.gaps(begin, end) // 1000, _most(WAIT)),
            "valid": np.array([[run.valid for run in step.runs] for step in steps]),
            "past": np.array([[run.past for run in step.runs] for step in steps]),
            "flow": (first_flow[:, None] + np.arange(plan.flow_count)).astype(np.uint64),
            "counter": self.counters.values(steps, begin, end, figures),
            "time": np.concatenate([begin, end, starts, ends, places], axis=1) // 1000,
        }
        return Filled(steps, columns)

    def render(self, filled: Filled, first: int, apart: int) -> Bytes:
        """uint8 [steps, bytes]: the events.

        first: the number of the first name of the first step.  apart: how far the numbers of one
        step's names are from each other, see `NameTable`; 0: every step has a file of its own.
        """
        steps = len(filled.steps)
        within = np.arange(steps) if apart else np.zeros(steps, np.int64)
        names = first + within[:, None] + np.arange(len(self.names)) * max(apart, 1)
        return self.template.render(steps, {**filled.columns, "name": names})


def _whole(values: NDArray[np.float64], width: int) -> I64:
    """Rounded to whole numbers that a varint of `width` bytes holds."""
    return np.minimum(values + 0.5, _most(width)).astype(np.int64)
