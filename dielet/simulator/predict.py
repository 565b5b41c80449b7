"""How long a model answers on a device: the programs of prompt and answer, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dielet.codegen.worker import MAX_WORKERS
from dielet.devices import Device
from dielet.errors import CapacityError, UsageError
from dielet.program import Shape
from dielet.program.commands import Run
from dielet.program.records import BOUNDS, Execution
from dielet.program.select import rung_for
from dielet.simulator.model import Programs
from dielet.simulator.timing import Timing, simulate_program

STEP = 64  # positions between two that are simulated, where the time depends on the position


@dataclass(frozen=True)
class Stage:
    """One run of a decoder program, and of the head after it if `head`: at `past` for `rows`."""

    shape: Shape
    past: int
    rows: int
    head: bool


class Clock:
    """Times of stages on one device; each (program, what is bound) is walked once."""

    def __init__(self, programs: Programs, workers: int | None = None) -> None:
        self.programs = programs
        self.device = programs.device
        self.workers = workers
        self._known: dict[tuple[Shape, int, int], Timing] = {}
        self._grids: dict[Shape, dict[int, int]] = {}

    @property
    def bound(self) -> bool:
        """Whether times depend on past and valid, because padding is skipped."""
        return self.device.padding == "skipped"

    def timing(self, shape: Shape, past: int, rows: int) -> Timing:
        key = (shape, past, rows) if self.bound else (shape, 0, 0)
        if key not in self._known:
            batch = shape.phase == "decode" and shape.tokens > 1
            run = Run(past, rows, (past,) * rows if batch else ())
            program = self.programs.find(shape)
            self._known[key] = simulate_program(program, self.device, run, self.workers)
        return self._known[key]

    def head(self, rows: int = 1) -> Timing:
        return self.timing(self.programs.head(rows), 0, rows)

    def duration(self, stage: Stage) -> int:
        """Picoseconds from launch to the last command, the head's program included."""
        total = self._decoder(stage) + self.device.launch
        if stage.head:
            total += self.head(self._head_rows(stage)).duration + self.device.launch
        return total

    def timings(self, stage: Stage) -> list[Timing]:
        """The programs of a stage; on a grid of positions where they depend on it."""
        past = stage.past // STEP * STEP if self._on_grid(stage) else stage.past
        found = [self.timing(stage.shape, past, stage.rows)]
        return [*found, self.head(self._head_rows(stage))] if stage.head else found

    def _head_rows(self, stage: Stage) -> int:
        return stage.rows if stage.shape.phase == "decode" else 1

    def _on_grid(self, stage: Stage) -> bool:
        return self.bound and stage.shape.phase == "decode"

    def _decoder(self, stage: Stage) -> int:
        """Decode steps between two positions of the grid are on the line between their times."""
        if not self._on_grid(stage):
            return self.timing(stage.shape, stage.past, stage.rows).duration
        low = stage.past // STEP * STEP
        high = min(low + STEP, stage.shape.capacity - 1)
        a, b = (self.timing(stage.shape, at, stage.rows).duration for at in (low, high))
        return a if high == low else a + (b - a) * (stage.past - low) // (high - low)


@dataclass(frozen=True)
class Prediction:
    """What a simulation says; times in seconds, unless they are called _ps."""

    model: str
    device: Device
    clock: Clock = field(repr=False)
    prompt_tokens: int
    new_tokens: int
    batch: int
    prefill: tuple[Stage, ...]
    decode: tuple[Stage, ...]

    @cached_property
    def ttft_s(self) -> float:
        """From the prompt to the first token: every chunk, then the head."""
        return sum(map(self.clock.duration, self.prefill)) / 1e12

    @cached_property
    def tpot_s(self) -> float:
        """Per token after the first; of a batch, per step of all its sequences."""
        if not self.decode:
            return 0.0
        return sum(map(self.clock.duration, self.decode)) / len(self.decode) / 1e12

    @property
    def decode_tok_s(self) -> float:
        return self.batch / self.tpot_s if self.tpot_s else 0.0

    @cached_property
    def bound_by(self) -> dict[str, float]:
        """Shares of the whole time, along the critical paths, launches counted as set-up."""
        total = dict.fromkeys(BOUNDS, 0)
        for stage in self.stages():
            for timing in self.clock.timings(stage):
                total["setup"] += self.device.launch
                for name, ps in timing.bound_by.items():
                    total[name] += ps
        whole = sum(total.values()) or 1
        return {name: ps / whole for name, ps in total.items()}

    @cached_property
    def bytes(self) -> dict[str, int]:
        """Bytes that pass each kind of memory and link, over the whole answer."""
        found: dict[str, int] = {}
        for stage in self.stages():
            for timing in self.clock.timings(stage):
                for name, nbytes in timing.moved.items():
                    found[name] = found.get(name, 0) + nbytes
        return found

    def stages(self) -> Iterator[Stage]:
        yield from self.prefill
        yield from self.decode

    def programs(self) -> dict[str, dict[str, Any]]:
        """Of every program that runs: how often, how long, by what bounded, and its engines."""
        found: dict[str, dict[str, Any]] = {}
        for stage in self.stages():
            for timing in self.clock.timings(stage):
                name = timing.program.name
                if name not in found:
                    found[name] = {"runs": 0, **_described(timing)}
                found[name]["runs"] += 1
        return found

    def context(self) -> list[dict[str, float]]:
        """Tokens per second at contexts up to the longest that the model is compiled for."""
        planner = self.clock.programs.planner
        found = []
        for rung in planner.ladder:
            stage = _decode_stage(planner.ladder, rung - 1, self.batch)
            found.append(
                {"context": rung, "decode_tok_s": self.batch * 1e12 / self.clock.duration(stage)}
            )
        return found

    def executions(self) -> Iterator[Execution]:
        """The records of the whole answer, for the profiler: prefill is instance 0."""
        at = 0
        for instance, stages in enumerate((self.prefill, self.decode)):
            for sequence, stage in enumerate(stages):
                for workload, timing in enumerate(self.clock.timings(stage)):
                    at += self.device.launch
                    run = Run(stage.past, stage.rows) if workload == 0 else Run(0, 1)
                    yield timing.execution(instance, sequence, workload, at, run)
                    at += timing.duration

    def to_dict(self, context: bool = True) -> dict[str, Any]:
        """The object of `simulate --json`; `context` needs a program for every KV capacity."""
        found = {
            "model": self.model,
            "device": self.device.name,
            "devices": self.device.devices,
            "chiplets": self.device.chiplets,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "batch": self.batch,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "decode_tok_s": self.decode_tok_s,
            "bound_by": self.bound_by,
            "bytes": self.bytes,
            "programs": self.programs(),
        }
        return {**found, "context": self.context()} if context else found


def _described(timing: Timing) -> dict[str, Any]:
    return {
        "seconds": timing.duration / 1e12,
        "commands": len(timing.program.commands),
        "bound_by": {name: ps / max(timing.duration, 1) for name, ps in timing.bound_by.items()},
        "bytes": timing.moved,
        "engines": timing.engines(),
    }


def predict(
    programs: Programs,
    name: str,
    prompt_tokens: int = 128,
    new_tokens: int = 128,
    batch: int = 1,
    workers: int | None = None,
) -> Prediction:
    """Prompt and answer on the device of `programs`.

    batch: sequences that are decoded together; their prompts come one after the other, and the
    time to the first token is one prompt's.  Raises CapacityError when the context is too short.
    """
    if prompt_tokens < 1 or new_tokens < 1 or batch < 1:
        raise UsageError(
            f"prompt_tokens {prompt_tokens}, new_tokens {new_tokens} and batch {batch} must be at "
            "least 1"
        )
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise UsageError(f"{workers} threads: must be from 1 to {MAX_WORKERS}")
    planner = programs.planner
    if batch not in planner.batch_sizes:
        raise UsageError(
            f"there is no decode program for a batch of {batch}; "
            f"compile with batch_sizes (there are {', '.join(map(str, planner.batch_sizes))})"
        )
    if prompt_tokens + new_tokens - 1 > planner.max_seq_len:
        raise CapacityError(
            f"{prompt_tokens} prompt and {new_tokens} new tokens do not fit the context of "
            f"{planner.max_seq_len}; use a larger max_seq_len"
        )
    prefill = []
    for past in range(0, prompt_tokens, planner.chunk):
        rows = min(planner.chunk, prompt_tokens - past)
        rung = rung_for(planner.ladder, past, rows)
        shape = Shape("prefill", planner.chunk, rung) if rows > 1 else Shape("decode", 1, rung)
        last = past + rows == prompt_tokens
        prefill.append(Stage(shape, past, rows, last))
    decode = [
        _decode_stage(planner.ladder, past, batch)
        for past in range(prompt_tokens, prompt_tokens + new_tokens - 1)
    ]
    clock = Clock(programs, workers)
    return Prediction(
        name, programs.device, clock, prompt_tokens, new_tokens, batch, tuple(prefill),
        tuple(decode),
    )  # fmt: skip


def _decode_stage(ladder: tuple[int, ...], past: int, batch: int) -> Stage:
    return Stage(Shape("decode", batch, rung_for(ladder, past, 1)), past, batch, True)
