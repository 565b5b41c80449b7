"""What the commands of a program move and compute, in columns: bytes by memory, and operations.

On a machine that skips padding both depend on the run: on its real rows and on the positions in
the cache.  So every figure is a sum of terms (`TERMS`), whose coefficients are kept here; those of
all commands and many runs are one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.devices import Device
from dielet.program.commands import ENTRIES
from dielet.program.types import Command, Operand, Program

F64 = NDArray[np.float64]
LINK = "link"
"""Counted beside the memories: bytes from or to another chiplet's memory."""

FIXED, ROW, POSITION, PAIR = range(4)
TERMS = ("once", "by real row", "by position in the cache", "by row and position that it sees")


@dataclass(frozen=True)
class Peaks:
    """The most that one chiplet, or one worker of the host, can do.

    bandwidth: bytes per second by memory; rates: operations per second by engine and format.
    """

    bandwidth: Mapping[str, float]
    rates: Mapping[str, Mapping[str, float]]

    @staticmethod
    def of(device: Device) -> Peaks:
        """The figures of a device file."""
        links = [link.bandwidth for link in device.link.values()]
        bandwidth = {name: float(memory.bandwidth) for name, memory in device.memory.items()}
        return Peaks(
            bandwidth | ({LINK: float(max(links))} if links else {}),
            {
                name: {form: float(peak * engine.count) for form, peak in engine.peak.items()}
                for name, engine in device.engine.items()
            },
        )


class Work:
    """The columns of one program on one device.

    memories: names, the link last.  moved [4, commands, memories] and ops [4, commands] are the
    coefficients of bytes and operations.  peak_bytes [memories] and peak_ops [commands] are per
    second, infinite where not known.
    """

    def __init__(self, program: Program, device: Device, peaks: Peaks | None) -> None:
        self.program, self.device = program, device
        self.skips = device.padding == "skipped"
        spaces = {o.region.space for c in program.commands for o in c.operands}
        self.memories = (*sorted({device.memory_of(space) for space in spaces}), LINK)
        count = len(program.commands)
        self.moved = np.zeros((len(TERMS), count, len(self.memories)))
        self.ops = np.zeros((len(TERMS), count))
        known = {} if peaks is None else peaks.bandwidth
        self.peak_bytes = np.array([known.get(name) or np.inf for name in self.memories])
        self.peak_ops = np.full(count, np.inf)
        owned = [(int(c.attrs.get("row0", 0)), owned_rows(c, program.tokens))
                 for c in program.commands]  # fmt: skip
        self._owned = sorted(set(owned))
        self._owner = np.array([self._owned.index(rows) for rows in owned], np.int64)
        for number, command in enumerate(program.commands):
            self._add(number, command, {} if peaks is None else peaks.rates, owned[number][1])

    def terms(self, valid: F64, past: F64) -> F64:
        """f64 [runs, terms]: what the rows of a `matrix` are multiplied by, given the bindings.

        The terms are one, the real rows of each set of rows that commands own, the positions in
        the cache, and the pairs of each set of rows with the positions that they see.
        """
        first, count = np.array(self._owned).T[:, None]
        if self.skips:
            rows = np.clip(valid[:, None] - first, 0, count).astype(np.float64)
            positions, seen = past + valid, past + (valid + 1) / 2
            if self.program.phase == "decode" and self.program.tokens > 1:
                # A batch: every row has a cache of its own; `past` is the longest.
                positions, seen = valid * (past + 1), past + 1
        else:
            rows = np.tile(count.astype(np.float64), (len(valid), 1))
            positions = seen = np.full(len(valid), float(self.program.capacity))
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

    def _add(
        self, number: int, command: Command, rates: Mapping[str, Mapping[str, float]], rows: int
    ) -> None:
        cost = ENTRIES[command.kind].cost(command)
        queue = self.program.queues[command.queue]
        for operand in command.operands:
            nbytes = operand.region.nbytes * (
                (operand.role in cost.reads) + (operand.role in cost.writes)
            )
            term, share = self._traffic(command, operand, float(nbytes), rows)
            column = self.memories.index(self.device.memory_of(operand.region.space))
            self.moved[term, number, column] += share
            if is_remote(operand, queue.chiplet):
                self.moved[term, number, -1] += share
        total = float(sum(cost.ops.values()))
        if command.kind == "attention":
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
        """(term, coefficient) of an operand's bytes."""
        root, capacity = operand.region.space.split(".")[0], max(self.program.capacity, 1)
        if root == "kv":
            return POSITION if command.kind == "attention" else ROW, nbytes / capacity
        if root in ("cos", "sin"):
            return ROW, nbytes / operand.region.rows
        if root in ("weights", "head", "embedding") or operand.dtype == "packed":
            return FIXED, nbytes
        return ROW, nbytes / rows


def owned_rows(command: Command, tokens: int) -> int:
    """The rows of the chunk that a command works on."""
    if "row0" in command.attrs and command.has("x"):
        return command.operand("x").region.rows
    return max(tokens, 1)


def is_remote(operand: Operand, chiplet: int) -> bool:
    """Whether the operand is in another chiplet's memory (`shared.2` seen from chiplet 0)."""
    _, _, owner = operand.region.space.partition(".")
    return owner.isdigit() and int(owner) != chiplet
