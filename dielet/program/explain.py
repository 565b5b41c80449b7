"""Print a program: one line per command, with its operands, waits, signals and bytes."""

from __future__ import annotations

from collections.abc import Iterator

from dielet.program.commands import ENTRIES
from dielet.program.types import Command, Operand, Program


def explain(program: Program, chiplet: int | None = None) -> Iterator[str]:
    """Lines of the listing, of one chiplet's commands or of all."""
    spaces = ", ".join(f"{name} {size:,} B" for name, size in program.sizes.items() if size)
    yield (
        f"program {program.name}: {program.phase} of {program.tokens} tokens, "
        f"KV capacity {program.capacity}, {program.chiplets} chiplets of {program.device}"
    )
    yield f"memory: {spaces}"
    raised = [0] * len(program.queues)
    for number, command in enumerate(program.commands):
        raised[command.queue] += command.signals
        queue = program.queues[command.queue]
        if chiplet is None or queue.chiplet == chiplet:
            yield _line(number, command, queue.chiplet, queue.engine, raised[command.queue])


def _line(number: int, command: Command, chiplet: int, engine: str, count: int) -> str:
    waits = "".join(f" wait s{w.queue}>={w.count}" for w in command.waits)
    signal = f" signal s{command.queue}={count}" if command.signals else ""
    attrs = " ".join(f"{name}={_short(value)}" for name, value in command.attrs.items())
    operands = ", ".join(_operand(operand) for operand in command.operands)
    cost = ENTRIES[command.kind].cost(command)
    moved = sum(cost.reads.values()) + sum(cost.writes.values())
    return (
        f"{number:5d} c{chiplet}.{engine} {command.kind:<9} {command.layer}\n"
        f"        {operands}\n"
        f"        {attrs}; {moved:,} B{waits}{signal}"
    )


def _operand(operand: Operand) -> str:
    region = operand.region
    shape = f"{region.rows}x{region.width}" if region.rows > 1 else f"{region.width}"
    return f"{operand.role}={region.space}[{region.offset}:{shape}]"


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
