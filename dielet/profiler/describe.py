"""What the trace says of each command besides its times: index, shape, format, places, causes."""

from __future__ import annotations

from collections import Counter

from dielet.devices import Device
from dielet.program.commands import ENTRIES
from dielet.program.commands.attention import cache_positions, kv_format
from dielet.program.commands.entry import ITEM_SIZE
from dielet.program.commands.linear import weight_format
from dielet.program.types import Command, Operand, Program
from dielet.simulator.machine import Machine

NEURAL_DMA = "Neural DMA"
MOST_NAMED = 4  # commands waited for that are named; of more, the rest is counted


def engine_title(device: Device, program: Program, command: int) -> str:
    """The name of the track that a command belongs on."""
    queue = program.queues[program.commands[command].queue]
    return device.engine[queue.engine].title


def command_indices(program: Program) -> list[int]:
    """Per command: how many of the same layer the same chiplet has before it."""
    seen: Counter[tuple[int, str]] = Counter()
    indices = []
    for command in program.commands:
        key = program.queues[command.queue].chiplet, command.layer
        indices.append(seen[key])
        seen[key] += 1
    return indices


def shape_of(command: Command) -> str:
    """The command's shape, rows first: `1x2048 . 2048x1024` for a product, sizes elsewhere."""
    if command.kind == "linear":
        y = _size(command.operand("y"))
        rows, columns = y.split("x")
        return f"{rows}x{command.attrs['K']} . {command.attrs['K']}x{columns}"
    if command.kind == "attention":
        cache = command.operand("k_cache").region
        size = f"{cache.rows} heads x {cache_positions(command)} positions"
        return f"{_size(command.operand('q'))} over {size}"
    for role in ("x", "gate", "k"):
        if command.has(role):
            return _size(command.operand(role))
    return _size(command.operands[0]) if command.operands else ""


def format_of(command: Command) -> str:
    """The number format of the weights, of the cache if it is int8, or of what is written."""
    if "format" in command.attrs:
        return weight_format(command.attrs).name
    if kv_format(command) == "int8":
        return "int8 cache"
    if "out" in command.attrs:
        return str(command.attrs["out"])
    written = [o.dtype for o in command.operands if o.role in ENTRIES[command.kind].writes.split()]
    return {"s8": "int8", "i32": "int32"}.get(written[0], written[0]) if written else ""


def places_of(program: Program, command: Command, machine: Machine) -> str:
    """From and to which memories: `dram, shared of chiplet 2 -> shared`."""
    chiplet, local = program.queues[command.queue].chiplet, machine.device.local_memory
    cost = ENTRIES[command.kind].cost(command)

    def name(operand: Operand) -> str:
        place = machine.place(operand.region, chiplet)
        remote = local and place.chiplet not in (-1, chiplet)
        return place.memory + (f" of chiplet {place.chiplet}" if remote else "")

    sides = (
        dict.fromkeys(name(operand) for operand in command.operands if operand.role in roles)
        for roles in (cost.reads, cost.writes)
    )
    return " -> ".join(map(", ".join, sides))


def waited_for(program: Program, commands: tuple[int, ...], indices: list[int]) -> str:
    """Commands in words, as they are named on their tracks, with their chiplets."""
    named = [
        f"{program.commands[c].layer}_{indices[c]}"
        f" (chiplet {program.queues[program.commands[c].queue].chiplet})"
        for c in commands[-MOST_NAMED:]
    ]
    rest = len(commands) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def _size(operand: Operand) -> str:
    region = operand.region
    return f"{region.rows}x{region.width // ITEM_SIZE[operand.dtype]}"
