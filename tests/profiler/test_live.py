"""Shared memory in use, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest

from dielet.profiler.live import live_bytes
from dielet.program.commands import ENTRIES
from dielet.program.types import Command, Operand, Program, Region
from dielet.simulator import simulate
from tests.profiler.make import REBEL, linear, program
from tests.profiler.test_writer import FOUR


def bytes_of(region: Region) -> set[int]:
    starts = (region.offset + row * region.stride for row in range(region.rows))
    return {start + at for start in starts for at in range(region.width)}


def byte_by_byte(of: Program) -> list[dict[int, int]]:
    """Per command and chiplet: bytes that were written and are read later, or are touched now."""
    sides = []
    for command in of.commands:
        entry = ENTRIES[command.kind]
        sides.append(
            [
                {(o.region.space, at) for o in command.operands
                 if o.role in (roles + " " + entry.updates).replace("?", "").split()
                 and o.region.space.startswith("shared") for at in bytes_of(o.region)}
                for roles in (entry.reads, entry.writes)
            ]
        )  # fmt: skip
    found = []
    writer: dict[tuple[str, int], int] = {}
    for number, command in enumerate(of.commands):
        reads, writes = sides[number]
        writer |= dict.fromkeys(writes, of.queues[command.queue].chiplet)
        used: dict[int, int] = {}
        for byte, chiplet in writer.items():
            alive = byte in reads or byte in writes
            for later_reads, later_writes in sides[number + 1 :] if not alive else ():
                if byte in later_reads or byte in later_writes:
                    alive = byte in later_reads
                    break
            if alive:
                space = byte[0].partition(".")[2]
                owner = int(space) if space else chiplet
                used[owner] = used.get(owner, 0) + 1
        found.append(used)
    return found


def random_program(seed: int, spaces: tuple[str, ...]) -> Program:
    """Products whose inputs and outputs lie anywhere in 4 kB, over each other."""
    rng = np.random.default_rng(seed)
    commands = []
    for n in range(24):
        rows = int(rng.integers(1, 4))
        plain = linear(n % 4, f"op.{n}", rows=rows)
        x, w, y = plain.operands
        places = [
            Region(str(rng.choice(spaces)), int(rng.integers(0, 40)) * 64, rows, 512, width)
            for width in (64, 256)
        ]
        operands = (
            Operand("x", places[0], x.dtype), Operand("w", w.region, w.dtype),
            Operand("y", places[1], y.dtype),
        )  # fmt: skip
        commands.append(Command("linear", n % 4, plain.layer, 0, operands, plain.attrs))
    return program(FOUR, commands)


@pytest.mark.parametrize("spaces", [("shared",), ("shared.0", "shared.1", "shared.2")])
@pytest.mark.parametrize("seed", range(4))
def test_as_counted_byte_by_byte(seed: int, spaces: tuple[str, ...]) -> None:
    of = random_program(seed, spaces)
    found = live_bytes(of)
    for number, expected in enumerate(byte_by_byte(of)):
        got = {c: int(series[number]) for c, series in found.items() if series[number]}
        assert got == expected


def test_never_more_than_there_is() -> None:
    answer = simulate(
        "tests/simulator/configs/qwen3-1.7b.json", REBEL.name, 20, 2, weights="bf16",
        max_seq_len=512, layers=2,
    )  # fmt: skip
    for execution in answer.executions():
        of = execution.program
        for chiplet, series in live_bytes(of).items():
            assert 0 < series.max() <= of.sizes[f"shared.{chiplet}"]
