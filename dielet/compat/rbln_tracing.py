"""`rebel.profiler`: sessions whose programs run on the host and whose times are the device's.

What is recorded is the order in which programs ran and what was bound; each is then walked over the
described device.  Models that were compiled for this machine keep their measured times.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dielet import profiling
from dielet.compat.said import say_once
from dielet.devices import Device
from dielet.errors import DieletError, UsageError
from dielet.profiler import session as sessions
from dielet.profiler.host import HostSlice
from dielet.profiler.modelled import attributes_of
from dielet.profiler.recorder import Recorder, instances
from dielet.profiler.session import HOST, Session
from dielet.profiler.tracks import Place
from dielet.profiler.work import Peaks
from dielet.profiler.writer import Source, TraceWriter, Written
from dielet.program.commands import Run
from dielet.program.records import Execution
from dielet.simulator import Timing, simulate_program

PREFIX, SWITCH = "rbln", "RBLN_PROFILER"


class ModelledSession(Session):
    """A session that writes `rbln_*.pb`, on the modelled clock of the device of the models."""

    def __init__(self, output_dir: str | Path = ".") -> None:
        super().__init__(output_dir, prefix=PREFIX)
        self._made = not self.output_dir.exists()

    def discard(self) -> None:
        """End, and forget what was recorded; of a folder that was made for it nothing is left."""
        super().discard()
        if self._made:
            with suppress(OSError):  # somebody else has put something there
                self.output_dir.rmdir()

    def _write(self, recorder: Recorder, run_s: float) -> Written:
        used = recorder.used()
        for attached in used:
            if profiling.runtimes.get(attached.runtime) is None:
                say_once(
                    "a runtime is recorded that was made without the profiler; on a board it needs "
                    f"rbln_activate_profiler=True or {SWITCH}=1 before it is made"
                )
        if all(attached.runtime.files.device().name == HOST for attached in used):
            return super()._write(recorder, run_s)
        sources: dict[int, Source] = {}
        devices: dict[str, Device] = {}
        names = []
        for group, attached in enumerate(used):
            runtime, first = attached.runtime, attached.first
            device = runtime.files.device()
            devices[device.name] = device
            names.append(runtime.spec.name or runtime.spec.model_type)
            label = f"model {group + 1}: {names[-1]}" if len(used) > 1 else ""
            place = Place(device, "modelled", runtime.manifest.chiplets, group, label)
            source = Source(place, Peaks.of(device))
            sources |= dict.fromkeys(range(first, first + instances(runtime)), source)
        steps = list(schedule(recorder.executions(), sources))
        if not steps:
            return Written()
        last = steps[-1].end
        chiplets = max(attached.runtime.manifest.chiplets for attached in used)
        attributes = attributes_of(
            ", ".join(names), [*devices.values()], chiplets, last, recorder.lost
        )
        writer = TraceWriter(
            self._place(),
            self._stem,
            sources,
            last,
            {**attributes, "wall_ns": round(run_s * 1e9)},
            commands=sum(len(step.timing.program.commands) for step in steps),
            single=self.executions,
            compress=self.compress,
        )
        runs = (step.execution() for step in steps)
        return writer.write(runs, [step.launch for step in steps], self._closing(run_s))


@dataclass(frozen=True)
class Step:
    """One program run, placed on the device's clock; times in ps."""

    timing: Timing
    facts: tuple[int, int, int]  # instance, sequence, workload
    run: Run
    launch: HostSlice
    start: int

    @property
    def end(self) -> int:
        return self.start + self.timing.duration

    def execution(self) -> Execution:
        return self.timing.execution(*self.facts, self.start, self.run)


def schedule(executions: Iterable[Execution], sources: dict[int, Source]) -> Iterator[Step]:
    """The same runs in the same order, one after the other, each as long as the device takes."""
    known: dict[tuple[int, int, int], Timing] = {}
    kept: list[object] = []  # programs, so that their ids stay their own
    at = 0
    for each in executions:
        device: Device = sources[each.instance].place.device
        bound = (each.past, each.valid) if device.padding == "skipped" else (0, 0)
        key = (id(each.program), *bound)
        if key not in known:
            kept.append(each.program)
            batch = each.program.phase == "decode" and each.program.tokens > 1
            pasts = (each.past,) * each.valid if batch else ()
            known[key] = simulate_program(each.program, device, Run(each.past, each.valid, pasts))
        facts = (each.instance, each.sequence, each.workload)
        launch = HostSlice("launch", at, at + device.launch, each.instance, each.sequence)
        at += device.launch
        step = Step(known[key], facts, Run(each.past, each.valid), launch, at)
        at = step.end
        yield step


def switched_on() -> bool:
    """What RBLN_PROFILER says."""
    value = os.environ.get(SWITCH, "").strip().lower()
    if value not in ("", "0", "1", "true", "false", "on", "off", "yes", "no"):
        raise UsageError(f"{SWITCH} is {value!r}; set it to 1 to profile, or to 0")
    return value in ("1", "true", "on", "yes")


def begin_with_process() -> None:
    """Record all models whose profiler is on until the process ends, unless a window is opened."""
    sessions.begin_with_process(ModelledSession())


_window: ModelledSession | None = None


def start(output_dir: str | Path = ".") -> None:
    """`rebel.profiler.start()`: record from here on; what was recorded before is forgotten."""
    global _window
    if _window is not None:
        _window.discard()
        say_once("the profiler was started again, so what it had recorded until then is forgotten")
    _window = ModelledSession(output_dir)
    try:
        _window.start()
    except DieletError:
        _window = None
        raise


def done() -> list[Path]:
    """`rebel.profiler.done()`: write what was recorded; the files, the whole trace first."""
    global _window
    window, _window = _window, None
    if window is None:
        raise UsageError("rebel.profiler.done() without start(): nothing is being recorded")
    files = window.stop()
    if not files:
        say_once("nothing ran while the profiler did, so there is no trace")
    return files


class profile:
    """`with rebel.profiler.profile(output_dir="./profile_out"):` start, the block, done."""

    def __init__(self, output_dir: str | Path = ".") -> None:
        self.output_dir = output_dir
        self.files: list[Path] = []

    def __enter__(self) -> profile:
        start(self.output_dir)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _window is not None:
            self.files = done()
