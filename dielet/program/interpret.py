"""Run a program by the numpy meanings, in any order that its queues, waits and signals permit.

This is the specification executed: slow, and independent of every kernel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dielet.errors import InternalError
from dielet.program.commands import ENTRIES, Run
from dielet.program.commands.attention import CACHES
from dielet.program.commands.entry import ITEM_SIZE
from dielet.program.types import Command, Operand, Program

Memory = Mapping[str, NDArray[np.uint8]]
NUMPY = {"f32": "<f4", "i32": "<i4", "bf16": "<u2", "s8": "i1", "u8": "u1", "packed": "u1"}

Order = Callable[[list[int]], int]
"""Picks one of the queues whose next command could start now."""


def as_early(ready: list[int]) -> int:
    """The lowest queue first: chiplet 0 runs as far ahead as it can."""
    return ready[0]


def as_late(ready: list[int]) -> int:
    """The highest queue first: chiplet 0 runs only when nothing else can."""
    return ready[-1]


def shuffled(seed: int) -> Order:
    return random.Random(seed).choice


def interpret(program: Program, memory: Memory, run: Run, order: Order = as_early) -> None:
    """Execute every command on `memory` (bytes by address space).

    Raises InternalError if the waits can never be met.
    """
    for number in schedule(program, order):
        execute(program.commands[number], memory, run, program.sizes["kv"])


def schedule(program: Program, order: Order) -> list[int]:
    """One order of all commands that the queues, waits and signals permit."""
    pending = [
        [n for n, c in enumerate(program.commands) if c.queue == q]
        for q in range(len(program.queues))
    ]
    raised = [0] * len(pending)
    done: list[int] = []
    while any(pending):
        ready = [
            q
            for q, queue in enumerate(pending)
            if queue and all(raised[w.queue] >= w.count for w in program.commands[queue[0]].waits)
        ]
        if not ready:
            raise InternalError(f"{program.name}: every queue waits; {len(done)} commands ran")
        number = pending[order(ready)].pop(0)
        raised[program.commands[number].queue] += program.commands[number].signals
        done.append(number)
    return done


def execute(command: Command, memory: Memory, run: Run, kv_bytes: int) -> None:
    """One command's meaning on `memory`, whose `kv` holds caches of `kv_bytes` side by side."""
    views = {operand.role: view(operand, memory) for operand in command.operands}
    caches = [operand for operand in command.operands if operand.role in CACHES]
    views |= {operand.role: sequences(operand, memory, kv_bytes) for operand in caches}
    ENTRIES[command.kind].meaning(command, views, run)


def view(operand: Operand, memory: Memory) -> NDArray[np.generic]:
    """The operand's elements [rows, columns] as a strided view of its address space."""
    region, size = operand.region, ITEM_SIZE[operand.dtype]
    space = memory[region.space]
    assert region.offset >= 0 and region.end <= len(space), (operand, len(space))
    flat = space[region.offset :].view() if region.offset else space
    dtype = np.dtype(NUMPY[operand.dtype])
    return np.ndarray(
        (region.rows, region.width // size), dtype, flat.data, 0, (region.stride, size)
    )


def sequences(operand: Operand, memory: Memory, kv_bytes: int) -> NDArray[np.generic]:
    """The operand in the cache of every sequence: [sequences, heads, columns].

    A cache that was brought elsewhere is one sequence's.
    """
    one = view(operand, memory)
    count = len(memory["kv"]) // kv_bytes if operand.region.space == "kv" else 1
    return np.lib.stride_tricks.as_strided(
        one, (count, *one.shape), (kv_bytes, *one.strides), writeable=True
    )
