"""Programs and executions made up for tests: small, but of every shape that traces can have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dielet.devices import Device, load_device
from dielet.profiler.plan import Step
from dielet.profiler.tracks import Place
from dielet.profiler.work import Peaks
from dielet.profiler.writer import Source
from dielet.program.records import Clock, Execution, Lane
from dielet.program.types import Command, Operand, Program, Queue, Region


def linear(queue: int, layer: str, deps: Sequence[int] = (), rows: int = 1) -> Command:
    """y [rows, 64] = x [rows, 32] . w; its places are its own, so only `deps` order it."""
    operands = (
        Operand("x", Region("shared", 0, rows, 64, 64), "bf16"),
        Operand("w", Region("weights", 0, 1, 4096, 4096), "packed"),
        Operand("y", Region("shared", 4096, rows, 256, 256), "f32"),
    )
    attrs: dict[str, int | float | str | bool] = {
        "K": 32, "format": "bf16", "group": 0, "minimum": False, "T": rows,
        "residual": False, "bias": False,
    }  # fmt: skip
    return Command("linear", queue, layer, 0, operands, attrs, tuple(deps))


def program(
    queues: Sequence[Queue],
    commands: Sequence[Command],
    device: str = "rebel100",
    phase: str = "decode",
    tokens: int = 1,
) -> Program:
    return Program(
        name=f"{phase}_{tokens}_kv64",
        phase=phase,  # type: ignore[arg-type]
        tokens=tokens,
        capacity=64,
        device=device,
        chiplets=1 + max(queue.chiplet for queue in queues),
        queues=tuple(queues),
        commands=tuple(commands),
        groups=tuple(range(len(commands))),
        sizes={},
        io={},
    )


def serial(
    of: Program,
    instance: int = 0,
    sequence: int = 0,
    workload: int = 0,
    at: int = 0,
    clock: Clock = "modelled",
    length: int = 3_000_000,
    gap: int = 500_000,
    past: int = 0,
    valid: int = 1,
) -> Execution:
    """Every command after the one before it, on one lane per queue; times in picoseconds."""
    lanes = []
    for number, queue in enumerate(of.queues):
        mine = np.array([n for n, c in enumerate(of.commands) if c.queue == number], np.int32)
        start = at + mine.astype(np.int64) * (length + gap)
        name = f"{queue.chiplet}.{queue.engine}"
        lanes.append(Lane(name, mine, start, start + length))
    return Execution(of, clock, instance, sequence, workload, past, valid, tuple(lanes))


def sources(device: Device, chiplets: int, instances: int = 1, clock: Clock = "modelled",
            peaks: bool = True) -> dict[int, Source]:  # fmt: skip
    source = Source(Place(device, clock, chiplets), Peaks.of(device) if peaks else None)
    return dict.fromkeys(range(instances), source)


REBEL = load_device("rebel100")


def step(*runs: Execution) -> Step:
    return Step(runs)
