"""Set dependencies, waits and signals: the fewest that keep every command after those whose bytes
it shares."""

from __future__ import annotations

import msgspec
import numpy as np

from dielet.program.commands import ENTRIES
from dielet.program.types import READ_ONLY, Command, Program, Region, Wait

WINDOW = 1 << 13  # commands over which chains of dependencies are followed


def accesses(command: Command) -> list[tuple[Region, bool]]:
    """The command's regions of writable memory, and whether it writes each."""
    written = ENTRIES[command.kind].written_roles()
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
            deps=deps[number],
            waits=tuple(Wait(program.commands[s].queue, count[s]) for s in sorted(waited[number])),
            signals=number in count,
        )
        for number, command in enumerate(program.commands)
    )
    return msgspec.structs.replace(program, commands=commands)


def dependencies(commands: tuple[Command, ...]) -> list[tuple[int, ...]]:
    """For each command, the earlier ones that it must follow: shared bytes, one of them writing.

    Left out are those that follow from the others, by a chain of them.  Between commands that
    copy no weights, chains through copies of weights do not count: that one gave its result to the
    other matters more than that it made room for the other's weights.  Nor do chains over more than
    WINDOW commands, so that such a dependency stays although it could go.
    """
    before: list[int] = []  # per command: bit k stands for the command k + 1 places before it
    direct = []
    mask = (1 << WINDOW) - 1
    for number, found in enumerate(_sharing(commands)):
        follows, kept = 0, []
        for dep in sorted(found, reverse=True):
            back = number - dep
            if back > WINDOW or not follows >> (back - 1) & 1:
                kept.append(dep)
                follows |= (before[dep] << back | 1 << (back - 1)) & mask
        before.append(0 if commands[number].kind == "weight_copy" else follows)
        direct.append(tuple(reversed(kept)))
    return direct


def _sharing(commands: tuple[Command, ...]) -> list[set[int]]:
    """For each command, earlier ones with which it shares bytes, from which all others follow."""
    live: dict[str, _Live] = {}
    deps: list[set[int]] = []
    for number, command in enumerate(commands):
        found: set[int] = set()
        mine = accesses(command)
        for region, writes in mine:
            if region.space in live:
                live[region.space].find(region, writes, found)
        for region, writes in mine:
            if region.space not in live:
                live[region.space] = _Live()
            bucket = live[region.space]
            if writes:  # what this write covers is ordered through it from now on
                bucket.cover(region, number)
            bucket.add(number, region, writes)
        deps.append(found)
    return deps


class _Live:
    """The accesses to one address space that a later one may have to follow.

    Candidates are found by the bytes from first to last, all at once, and then looked at.
    """

    def __init__(self) -> None:
        self._begin = np.empty(64, np.int64)
        self._end = np.empty(64, np.int64)  # 0 for accesses that are gone
        self._entries: list[tuple[int, Region, bool]] = []
        self._gone = 0

    def add(self, number: int, region: Region, writes: bool) -> None:
        n = len(self._entries)
        if n == len(self._begin):
            self._make_room()
            n = len(self._entries)
        self._begin[n], self._end[n] = region.offset, region.end
        self._entries.append((number, region, writes))

    def find(self, region: Region, writes: bool, found: set[int]) -> None:
        """Add to `found` the commands whose accesses clash with this one."""
        for at in self._near(region):
            number, other, wrote = self._entries[at]
            if (writes or wrote) and number not in found and region.overlaps(other):
                found.add(number)

    def cover(self, region: Region, number: int) -> None:
        """Forget the accesses of earlier commands of which `region` has every byte.

        In memories that buffers pass through, also the bytes that it has of an access.
        """
        trim = "." in region.space and _solid(region)
        rests: list[tuple[int, Region, bool]] = []
        for at in self._near(region):
            other, old, wrote = self._entries[at]
            covered = region.covers(old)
            if other == number or not (covered or (trim and _solid(old))):
                continue
            self._end[at] = 0
            self._gone += 1
            for lo, hi in ((old.offset, region.offset), (region.end, old.end)):
                if lo < hi and not covered:
                    rests.append((other, Region(old.space, lo, 1, hi - lo, hi - lo), wrote))
        for rest in rests:
            self.add(*rest)

    def _near(self, region: Region) -> list[int]:
        n = len(self._entries)
        near = (self._begin[:n] < region.end) & (self._end[:n] > region.offset)
        found: list[int] = near.nonzero()[0].tolist()
        return found

    def _make_room(self) -> None:
        """Close the gaps if they are many, else double the room."""
        n = len(self._entries)
        if self._gone * 2 < n:
            for name in ("_begin", "_end"):
                setattr(self, name, np.concatenate([getattr(self, name), np.empty(n, np.int64)]))
            return
        kept = (self._end[:n] > 0).nonzero()[0]
        self._begin[: len(kept)], self._end[: len(kept)] = self._begin[kept], self._end[kept]
        self._entries = [self._entries[at] for at in kept.tolist()]
        self._gone = 0


def _solid(region: Region) -> bool:
    """Whether a region has all bytes from its first to its last."""
    return region.rows == 1 or region.stride == region.width


def _needed_waits(program: Program, deps: list[tuple[int, ...]]) -> list[list[int]]:
    """Of each command's deps, those not already implied by its queue's order or other waits."""
    position = [0] * len(program.queues)
    at: list[int] = []
    after: list[list[int]] = []  # per command: how far each queue has got once it has completed
    last: dict[int, int] = {}
    needed: list[list[int]] = []
    for number, command in enumerate(program.commands):
        known = list(after[last[command.queue]]) if command.queue in last else [0] * len(position)
        chosen = []
        for source in reversed(deps[number]):
            queue = program.commands[source].queue
            if at[source] > known[queue]:
                chosen.append(source)
                known = list(map(max, known, after[source]))
        position[command.queue] += 1
        at.append(position[command.queue])
        known[command.queue] = at[number]
        after.append(known)
        last[command.queue] = number
        needed.append(chosen)
    return needed
