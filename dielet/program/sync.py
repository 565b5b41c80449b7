"""Set waits and signals: the fewest that keep every command after those whose bytes it shares."""

from __future__ import annotations

import msgspec

from dielet.program.commands import ENTRIES
from dielet.program.types import READ_ONLY, Command, Program, Region, Wait


def accesses(command: Command) -> list[tuple[Region, bool]]:
    """The command's regions of writable memory, and whether it writes each."""
    entry = ENTRIES[command.kind]
    written = set((entry.writes + " " + entry.updates).replace("?", "").split())
    return [
        (operand.region, operand.role in written)
        for operand in command.operands
        if operand.region.space not in READ_ONLY
    ]


def synchronise(program: Program) -> Program:
    """Fill in deps, waits and signals of every command of `program`."""
    deps = dependencies(program.commands)
    waited = _needed_waits(program, deps)
    signalling = sorted({source for sources in waited for source in sources})
    count: dict[int, int] = {}
    raised = [0] * len(program.queues)
    for number in signalling:
        queue = program.commands[number].queue
        raised[queue] += 1
        count[number] = raised[queue]
    commands = tuple(
        msgspec.structs.replace(
            command,
            deps=tuple(sorted(deps[number])),
            waits=tuple(Wait(program.commands[s].queue, count[s]) for s in sorted(waited[number])),
            signals=number in count,
        )
        for number, command in enumerate(program.commands)
    )
    return msgspec.structs.replace(program, commands=commands)


def dependencies(commands: tuple[Command, ...]) -> list[set[int]]:
    """For each command, the earlier ones that it must follow: shared bytes, one of them writing."""
    live: dict[str, list[tuple[int, Region, bool]]] = {}
    deps: list[set[int]] = []
    for number, command in enumerate(commands):
        found: set[int] = set()
        mine = accesses(command)
        for region, writes in mine:
            for other, theirs, wrote in live.get(region.space, ()):
                if (writes or wrote) and other not in found and region.overlaps(theirs):
                    found.add(other)
        for region, writes in mine:
            bucket = live.setdefault(region.space, [])
            if writes:  # what this write covers is ordered through it from now on
                bucket[:] = [a for a in bucket if a[0] == number or not region.covers(a[1])]
            bucket.append((number, region, writes))
        deps.append(found)
    return deps


def _needed_waits(program: Program, deps: list[set[int]]) -> list[list[int]]:
    """Of each command's deps, those not already implied by its queue's order or other waits."""
    position = [0] * len(program.queues)
    at: list[int] = []
    after: list[list[int]] = []  # per command: how far each queue has got once it has completed
    last: dict[int, int] = {}
    needed: list[list[int]] = []
    for number, command in enumerate(program.commands):
        known = list(after[last[command.queue]]) if command.queue in last else [0] * len(position)
        chosen = []
        for source in sorted(deps[number], reverse=True):
            queue = program.commands[source].queue
            if at[source] > known[queue]:
                chosen.append(source)
                known = [max(a, b) for a, b in zip(known, after[source], strict=True)]
        position[command.queue] += 1
        at.append(position[command.queue])
        known[command.queue] = at[number]
        after.append(known)
        last[command.queue] = number
        needed.append(chosen)
    return needed
