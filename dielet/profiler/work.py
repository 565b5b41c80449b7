"""What the commands of a program move and compute, in columns: bytes by memory, and operations.

On a machine that skips padding both depend on the run: on its real rows and on the positions in
the cache.  So every figure is a sum of terms (`TERMS`), whose coefficients are kept here; those of
all commands and many runs are one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.devices import Device
from dielet.program.commands import ENTRIES
from dielet.program.types import Command, Operand, Program
from dielet.simulator.machine import HOST, Machine, Place

F64 = NDArray[np.float64]
DIE_TO_DIE, DEVICE_TO_DEVICE, HOST_LINK = "die_to_die", "device_to_device", "host"
LINKS = (DIE_TO_DIE, DEVICE_TO_DEVICE, HOST_LINK)
"""Counted beside the memories: what comes from or goes to other chiplets, devices, the host."""

FIXED, ROW, POSITION, PAIR = range(4)
TERMS = ("once", "by real row", "by position in the cache", "by row and position that it sees")


@dataclass(frozen=True)
class Peaks:
    """The most that one chiplet, or one worker of the host, can do.

    memories, links: bytes per second by name; rates: operations per second by engine and format.
    """

    memories: Mapping[str, float]
    links: Mapping[str, float]
    rates: Mapping[str, Mapping[str, float]]

    @staticmethod
    def of(device: Device) -> Peaks:
        """The figures of a device file."""
        return Peaks(
            {name: float(memory.bandwidth) for name, memory in device.memory.items()},
            {name: float(link.bandwidth) for name, link in device.link.items()},
            {
                name: {form: float(peak * engine.count) for form, peak in engine.peak.items()}
                for name, engine in device.engine.items()
            },
        )


UNKNOWN = Peaks({}, {}, {})


class Work:
    """The columns of one program on one device.

    memories: names.  moved [4, commands, memories], linked [4, commands, links] and ops [4,
    commands] are the coefficients of bytes and operations; carried [4, commands] those of the
    bytes that a command is said to move: all that it reads and writes, of a copy only the one.
    peak_memories, peak_links and peak_ops [commands] are per second, infinite where not known.
    """

    def __init__(self, program: Program, device: Device, peaks: Peaks | None) -> None:
        self.program, self.device = program, device
        self.skips = device.padding == "skipped"
        self.machine = Machine(device)
        spaces = {o.region.space for c in program.commands for o in c.operands}
        self.memories = sorted({device.memory_of(space) for space in spaces})
        count = len(program.commands)
        self.moved = np.zeros((len(TERMS), count, len(self.memories)))
        self.linked = np.zeros((len(TERMS), count, len(LINKS)))
        self.carried = np.zeros((len(TERMS), count))
        self.ops = np.zeros((len(TERMS), count))
        known = peaks or UNKNOWN
        self.peak_memories = _peaks(known.memories, self.memories)
        self.peak_links = _peaks(known.links, LINKS)
        self.peak_ops = np.full(count, np.inf)
        owned = [(int(c.attrs.get("row0", 0)), owned_rows(c, program.tokens))
                 for c in program.commands]  # fmt: skip
        self._owned = sorted(set(owned))
        self._owner = np.array([self._owned.index(rows) for rows in owned], np.int64)
        for number, command in enumerate(program.commands):
            self._add(number, command, known.rates, owned[number][1])

    def terms(self, valid: F64, past: F64) -> F64:
        """f64 [runs, terms]: what the rows of a `matrix` are multiplied by, given the bindings.

        The terms are one, the real rows of each set of rows that commands own, the positions in
        the cache, and the pairs of each set of rows with the positions that they see.
        """
        first, count = np.array(self._owned).T[:, None]
        rows = np.clip(valid[:, None] - first, 0, count).astype(np.float64)
        positions, seen = past + valid, past + (valid + 1) / 2
        if self._batch:  # every row has a cache of its own; `past` is the longest
            positions, seen = valid * (past + 1), past + 1
        one = np.ones((len(valid), 1))
        return np.concatenate([one, rows, positions[:, None], rows * seen[:, None]], axis=1)

    def matrix(self, coefficients: F64) -> F64:
        """f64 [terms, commands] from [4, commands]: multiply `terms` by it."""
        sets, commands = len(self._owned), np.arange(len(self._owner))
        out = np.zeros((2 + 2 * sets, len(commands)))
        out[0] = coefficients[FIXED]
        out[1 + self._owner, commands] = coefficients[ROW]
        out[1 + sets] = coefficients[POSITION]
        out[2 + sets + self._owner, commands] = coefficients[PAIR]
        return out

    @property
    def _batch(self) -> bool:
        return self.program.phase == "decode" and self.program.tokens > 1

    def _add(
        self, number: int, command: Command, rates: Mapping[str, Mapping[str, float]], rows: int
    ) -> None:
        entry = ENTRIES[command.kind]
        cost = entry.cost(command)
        queue = self.program.queues[command.queue]
        for operand in command.operands:
            nbytes = cost.reads.get(operand.role, 0) + cost.writes.get(operand.role, 0)
            term, share = self._traffic(command, operand, float(nbytes), rows)
            place = self.machine.place(operand.region, queue.chiplet)
            self.moved[term, number, self.memories.index(place.memory)] += share
            if entry.engine != "dma" or operand.role in cost.reads:
                self.carried[term, number] += share
            link = self._link(place, queue.chiplet)
            if link is not None:
                self.linked[term, number, LINKS.index(link)] += share
        total = float(sum(cost.ops.values()))
        if not self.skips:
            self.ops[FIXED, number] = total
        elif command.kind == "attention":
            self.ops[PAIR, number] = total / (rows * max(self.program.capacity, 1))
        else:
            self.ops[ROW, number] = total / rows
        known = rates.get(queue.engine, {})
        peaks = [known[name] for name in cost.ops if known.get(name)]
        if peaks:
            self.peak_ops[number] = min(peaks)

    def _traffic(
        self, command: Command, operand: Operand, nbytes: float, rows: int
    ) -> tuple[int, float]:
        """(term, coefficient) of an operand's bytes, of which `nbytes` is the full shape's."""
        root = operand.region.space.split(".")[0]
        parameter = root in ("weights", "head", "embedding") or operand.dtype == "packed"
        if parameter or not self.skips:
            return FIXED, nbytes
        if root == "kv" and command.kind == "attention":
            caches = self.program.tokens if self._batch else 1
            return POSITION, nbytes / (caches * max(self.program.capacity, 1))
        return ROW, nbytes / rows

    def _link(self, place: Place, chiplet: int) -> str | None:
        """The link between a memory and a command of `chiplet`, if there is one."""
        if not self.device.local_memory:
            return None
        if place.memory == HOST:
            return HOST_LINK
        if place.chiplet == chiplet:
            return None
        per_device = self.device.chiplets
        same = place.chiplet // per_device == chiplet // per_device
        return DIE_TO_DIE if same else DEVICE_TO_DEVICE


def _peaks(known: Mapping[str, float], names: Sequence[str]) -> F64:
    return np.array([known.get(name) or np.inf for name in names], np.float64)


def owned_rows(command: Command, tokens: int) -> int:
    """The rows of the chunk that a command works on."""
    if "row0" in command.attrs and command.has("x"):
        return command.operand("x").region.rows
    return max(tokens, 1)
