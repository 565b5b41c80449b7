"""Writes the traces of a session: one file of everything, and one of every execution."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from dielet.errors import CapacityError
from dielet.profiler import perfetto as p
from dielet.profiler.draw import Drawing, Filled
from dielet.profiler.file import TraceFile
from dielet.profiler.host import (
    HostEvent,
    HostSlice,
    begin_packet,
    end_packet,
    events,
    numbered,
)
from dielet.profiler.plan import Facts, Plan, Step
from dielet.profiler.texts import Entry, Texts, Used
from dielet.profiler.tracks import HOST, Place, Track, Tracks
from dielet.profiler.wire import width_of
from dielet.profiler.work import Peaks
from dielet.program.records import Execution

BATCH_SLICES = 1 << 14  # steps are drawn together until they have so many slices
PLAIN_COMMANDS = 20_000
"""Files of more commands are compressed unless it is said otherwise: 4 MB become 1."""
MIN_TIME_WIDTH = 5  # bytes of a time stamp: 34 seconds
MOST_HELD = 256
"""Executions that wait for an earlier one to be complete: of models that run at the same time."""

Attributes = Mapping[str, int | str]


@dataclass(frozen=True)
class Source:
    """Where an instance's executions come from: the place that shows them, and its limits."""

    place: Place
    peaks: Peaks | None = None


@dataclass
class Written:
    """What was written: files, the merged one first; what is in that one; its size.

    left_out: files of single executions that there was no room for.
    """

    files: list[Path] = field(default_factory=list)
    executions: int = 0
    commands: int = 0
    host: int = 0
    flows: int = 0
    nbytes: int = 0  # before compression
    left_out: int = 0


@dataclass
class _Batch:
    """Steps of one kind that are drawn together, with their numbers among all."""

    drawing: Drawing
    kind: object
    numbers: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


class Output:
    """An open file, and what has been defined in it."""

    def __init__(self, file: TraceFile, merged: bool, texts: set[Entry], tracks: set[int]) -> None:
        self.file, self.merged = file, merged
        self.names = 1  # the next free number
        self._texts, self._tracks = texts, tracks

    def define(self, tracks: Iterable[Track], texts: Iterable[Entry]) -> None:
        """Announce the tracks and texts that are new here."""
        fresh = [entry for entry in texts if entry not in self._texts]
        if fresh:
            self._texts.update(fresh)
            self.file.write(p.interned(fresh))
        for track in tracks:
            if track.uuid not in self._tracks:
                self._tracks.add(track.uuid)
                self.file.write(track.descriptor())

    def take_names(self, count: int) -> int:
        """The first of `count` numbers for names."""
        self.names += count
        return self.names - count


class TraceWriter:
    """Draws executions and the host's work into files in `directory`, named after `stem`.

    sources: by instance.  last: the end of everything, in ps.  commands: how many slices of them
    there will be.  single: whether every execution also gets a file of its own.  compress: write
    compressed packets; None: into files that are large.
    """

    def __init__(
        self,
        directory: Path,
        stem: str,
        sources: Mapping[int, Source],
        last: int,
        attributes: Attributes,
        *,
        commands: int,
        single: bool = True,
        compress: bool | None = None,
    ) -> None:
        self._directory, self._stem = directory, stem
        self._sources, self._attributes = sources, dict(attributes)
        self._commands, self._single, self._compress = commands, single, compress
        self._width = max(MIN_TIME_WIDTH, width_of(last // 1000))
        places = {source.place for source in sources.values()}
        self._tracks = Tracks(len(places) > 1 or any(q.device.devices > 1 for q in places))
        self._texts = Texts()
        self._facts: dict[int, Facts] = {}
        self._drawings: dict[object, Drawing] = {}
        self._flows = 1
        self._host: deque[HostEvent] = deque()
        self._host_of: dict[tuple[int, int], list[tuple[HostSlice, int]]] = {}
        self._written = Written()
        self._singles: dict[int, Path] = {}

    def write(
        self,
        executions: Iterable[Execution],
        host: Sequence[HostSlice] = (),
        closing: Callable[[Written], Attributes] = lambda written: {},
    ) -> Written:
        """Write all files; `closing` gives the facts that are only known at the end.

        executions in order of time, host in order of start.  Where there is no room for all, the
        files of single executions make way for the merged one.  After an error the files that are
        complete stay, and nothing of the others is left.
        """
        pieces = list(numbered(host))
        self._host = events(pieces)
        self._written.host = len(pieces)
        for piece, index in pieces if self._single else ():
            self._host_of.setdefault(piece.step, []).append((piece, index))
        path = self._directory / f"{self._stem}.pb"
        written = self._written
        with self._file(path, self._commands, self._give_way) as file:
            file.write(p.interned((), p.CLEARED | p.NEEDS_STATE))
            file.write(p.attributes(self._attributes))
            output = Output(file, True, set(), set())
            for batch in self._batches(executions):
                self._draw(output, batch)
            self._draw_host(output, self._host, None)
            counts = {"command_count": written.commands, "execution_count": written.executions}
            file.write(p.attributes({**counts, **closing(written)}))
        written.nbytes = file.nbytes
        written.files = [path, *(self._singles[number] for number in sorted(self._singles))]
        if written.left_out:
            written.left_out = written.executions
        return written

    def _file(self, path: Path, commands: int, *make_room: Callable[[], bool]) -> TraceFile:
        large = commands > PLAIN_COMMANDS
        return TraceFile(path, large if self._compress is None else self._compress, *make_room)

    def _give_way(self) -> bool:
        """Remove the files of single executions, and write no more; whether there were any."""
        for path in self._singles.values():
            path.unlink(missing_ok=True)
        self._single = False
        self._written.left_out += len(self._singles)
        removed = bool(self._singles)
        self._singles.clear()
        return removed

    def _batches(self, executions: Iterable[Execution]) -> Iterator[_Batch]:
        """Consecutive steps of a place that are of one kind, as many as make a good batch."""
        batches: dict[Place, _Batch] = {}
        for number, step in enumerate(steps_of(executions, self._place_of)):
            drawing = self._drawing(step)
            kind = step.kind, len(str(step.sequence))  # so that names are equally long
            batch = batches.get(drawing.plan.place)
            full = batch is not None and len(batch.steps) * drawing.slices >= BATCH_SLICES
            if batch is not None and (full or batch.kind != kind):
                yield batch
                batch = None
            if batch is None:
                batch = batches[drawing.plan.place] = _Batch(drawing, kind)
            batch.numbers.append(number)
            batch.steps.append(step)
        yield from batches.values()

    def _place_of(self, run: Execution) -> Place:
        return self._sources[run.instance].place

    def _drawing(self, step: Step) -> Drawing:
        drawing = self._drawings.get(step.kind)
        if drawing is None:
            source = self._sources[step.instance]
            facts = [self._facts_of(run, source) for run in step.runs]
            plan = Plan(step, facts, source.place, self._tracks)
            drawing = Drawing(plan, self._tracks, self._texts, step, self._width)
            self._drawings[step.kind] = drawing
        return drawing

    def _facts_of(self, run: Execution, source: Source) -> Facts:
        found = self._facts.get(id(run.program))  # which the facts keep alive
        if found is None:
            found = Facts.of(run.program, source.place, source.peaks)
            self._facts[id(run.program)] = found
        return found

    def _draw(self, output: Output, batch: _Batch) -> None:
        drawing, steps = batch.drawing, batch.steps
        output.define(drawing.tracks, drawing.used.entries)
        count = len(steps)
        flows = self._flows + np.arange(count) * drawing.plan.flow_count
        filled = drawing.fill(steps, flows)
        first = output.take_names(count * len(drawing.names))
        output.file.write(*drawing.name_packets(steps, True, first))
        for step, data in zip(steps, drawing.render(filled, first, count), strict=True):
            self._draw_host(output, self._host, step.start)
            output.file.write(data, drawing.template.ends)
        self._flows += count * drawing.plan.flow_count
        if self._single:
            try:
                self._draw_singles(batch, filled)
            except CapacityError:
                self._written.left_out += 1
                self._give_way()
        written = self._written
        written.executions += count
        written.commands += count * len(drawing.plan.pieces)
        written.flows += count * drawing.plan.flow_count

    def _draw_singles(self, batch: _Batch, filled: Filled) -> None:
        """A file for each of the steps, with the host's work for it."""
        drawing = batch.drawing
        rows = drawing.render(filled, 1, 0)
        for number, step, data in zip(batch.numbers, batch.steps, rows, strict=True):
            path = self._directory / f"{self._stem}_{number}.pb"
            with self._file(path, len(drawing.plan.pieces)) as file:
                file.write(drawing.header)
                counts = {"command_count": len(drawing.plan.pieces), "execution": number}
                file.write(p.attributes({**self._attributes, **counts}))
                file.write(*drawing.name_packets([step], False, 1))
                texts, tracks = set(drawing.used.entries), {t.uuid for t in drawing.tracks}
                output = Output(file, False, texts, tracks)
                output.take_names(len(drawing.names))
                file.write(data, drawing.template.ends)
                self._draw_host(output, events(self._host_of.pop(step.step, ())), None)
            self._singles[number] = path

    def _draw_host(self, output: Output, host: deque[HostEvent], until: int | None) -> None:
        """What the host did before `until`, or all the rest."""
        while host and (until is None or host[0].time < until):
            self._draw_host_event(output, host.popleft())

    def _draw_host_event(self, output: Output, event: HostEvent) -> None:
        piece = event.piece
        track = self._tracks.host(self._sources[piece.instance].place, piece.thread)
        if event.is_end:
            output.file.write(end_packet(event, track, self._width))
            return
        used = Used(self._texts)
        used.category(HOST)
        output.define(track.chain(), used.entries)
        name = output.take_names(1)
        output.file.write(begin_packet(event, output.merged, name, track, used, self._width))


def steps_of(
    executions: Iterable[Execution], runner: Callable[[Execution], object] = lambda run: None
) -> Iterator[Step]:
    """The runs of each instance and sequence together, in the order of their first ones.

    runner: whose a run is.  One's executions follow each other, and their heads come last; runs of
    others may come between.
    """
    running: dict[object, list[Execution]] = {}
    found: deque[tuple[object, list[Execution]]] = deque()
    for run in executions:
        who = runner(run)
        runs = running.get(who)
        if runs is None or (run.instance, run.sequence) != (runs[0].instance, runs[0].sequence):
            runs = running[who] = []
            found.append((who, runs))
        runs.append(run)
        if run.program.phase == "head":
            del running[who]
        while found and (running.get(found[0][0]) is not found[0][1] or len(found) > MOST_HELD):
            yield _step(*found.popleft(), running)
    while found:
        yield _step(*found.popleft(), running)


def _step(who: object, runs: list[Execution], running: dict[object, list[Execution]]) -> Step:
    if running.get(who) is runs:
        del running[who]
    return Step(tuple(runs))


def free_stem(folder: Path, prefix: str) -> str:
    """`{prefix}_{date}_{time}` of now, or of the first free millisecond after."""
    while True:
        now = datetime.now()
        stem = f"{prefix}_{now:%Y%m%d}_{now:%H%M%S}{now.microsecond // 1000:03d}"
        if not (folder / f"{stem}.pb").exists():
            return stem
        time.sleep(0.001)
