"""What the commands of a program move and compute, in columns: bytes by memory, and operations.

On a machine that skips padding both depend on the run: on its real rows and on the positions in
the cache.  So every figure is a sum of a few terms, whose coefficients are kept here; the figures
of all commands in many runs are one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

    def attributes(self, each: str, count: int) -> dict[str, int | str]:
        """The figures as traces say them; they are those of each of `count` workers or chiplets."""
        engines = {f"{e}.{form}": v for e, rates in self.rates.items() for form, v in rates.items()}
        tables = {"memory": self.memories, "link": self.links, "engine": engines}
        return {
            "peaks_of_each": each,
            "peaks_count": count,
            **{f"peak {table}.{name}": round(value)
               for table, values in tables.items() for name, value in values.items()},
        }  # fmt: skip


UNKNOWN = Peaks({}, {}, {})

Rows = tuple[int, int]
"""The first row of the chunk that an operand has, and how many."""

Term = tuple[str, Rows | None]
"""What a coefficient is multiplied by; of rows and pairs, whose."""

ROW, PAIR = "row", "pair"
ONCE, POSITION = ("once", None), ("position", None)


@dataclass(frozen=True)
class _Part:
    """One coefficient: in which column of `Work`, of which term, where, how much."""

    column: str
    term: Term
    at: tuple[int, ...]
    value: float


class Work:
    """The columns of one program on one device.

    memories: names.  moved [terms, commands, memories], linked [terms, commands, links] and ops
    [terms, commands] are the coefficients of bytes and operations; carried [terms, commands] those
    of the bytes that a command is said to move: all that it reads and writes, of a copy only the
    one.  peak_memories, peak_links and peak_ops [commands] are per second, infinite where not
    known.
    """

    def __init__(self, program: Program, device: Device, peaks: Peaks | None) -> None:
        self.program, self.device = program, device
        self.skips = device.padding == "skipped"
        self.machine = Machine(device)
        spaces = {o.region.space for c in program.commands for o in c.operands}
        self.memories = sorted({device.memory_of(space) for space in spaces})
        count = len(program.commands)
        known = peaks or UNKNOWN
        self.peak_memories = _peaks(known.memories, self.memories)
        self.peak_links = _peaks(known.links, LINKS)
        self.peak_ops = np.full(count, np.inf)
        self._rows: dict[Rows, int] = {}
        parts: list[_Part] = []
        for number, command in enumerate(program.commands):
            parts += self._parts(number, command, known.rates)
        terms = 2 + 2 * len(self._rows)
        self.moved = np.zeros((terms, count, len(self.memories)))
        self.linked = np.zeros((terms, count, len(LINKS)))
        self.carried, self.ops = np.zeros((terms, count)), np.zeros((terms, count))
        for part in parts:
            getattr(self, part.column)[(self._place(part.term), *part.at)] += part.value

    def terms(self, valid: F64, past: F64) -> F64:
        """f64 [runs, terms]: what coefficients are multiplied by, given each run's binding.

        The terms are one, the positions in the cache, the real rows of each range of rows that
        operands have, and the pairs of those with the positions that they see.
        """
        positions, seen = past + valid, past + (valid + 1) / 2
        if self._batch:  # every row has a cache of its own; `past` is the longest
            positions, seen = valid * (past + 1), past + 1
        columns = [np.ones_like(valid), positions]
        rows = [np.clip(valid - first, 0, count) for first, count in self._rows]
        columns += rows
        columns += [real * seen for real in rows]
        return np.stack(columns, axis=1)

    @property
    def _batch(self) -> bool:
        return self.program.phase == "decode" and self.program.tokens > 1

    def _place(self, term: Term) -> int:
        """The index of a term, in the order of `terms`."""
        if term in (ONCE, POSITION):
            return (ONCE, POSITION).index(term)
        kind, rows = term
        assert rows is not None
        return 2 + self._rows[rows] + (len(self._rows) if kind == PAIR else 0)

    def _parts(
        self, number: int, command: Command, rates: Mapping[str, Mapping[str, float]]
    ) -> Iterator[_Part]:
        """What one command adds to the columns."""
        entry = ENTRIES[command.kind]
        cost = entry.cost(command)
        queue = self.program.queues[command.queue]
        for operand in command.operands:
            nbytes = cost.reads.get(operand.role, 0) + cost.writes.get(operand.role, 0)
            term, share = self._traffic(command, operand, float(nbytes))
            place = self.machine.place(operand.region, queue.chiplet)
            yield _Part("moved", term, (number, self.memories.index(place.memory)), share)
            if entry.engine != "dma" or operand.role in cost.reads:
                yield _Part("carried", term, (number,), share)
            link = self._link(place, queue.chiplet)
            if link is not None:
                yield _Part("linked", term, (number, LINKS.index(link)), share)
        total = float(sum(cost.ops.values()))
        if total:
            term, divisor = self._operations(command)
            yield _Part("ops", term, (number,), total / divisor)
        known = rates.get(queue.engine, {})
        peaks = [known[name] for name in cost.ops if known.get(name)]
        if peaks:
            self.peak_ops[number] = min(peaks)

    def _traffic(self, command: Command, operand: Operand, nbytes: float) -> tuple[Term, float]:
        """The term and coefficient of an operand's bytes; `nbytes` are the full shape's."""
        extent = command.attrs.get("extent")  # of a copy
        if operand.dtype == "packed" or extent == "all" or not self.skips:
            return ONCE, nbytes
        cache = operand.role in ("k_cache", "v_cache")
        if extent == "positions" or (cache and command.kind == "attention"):
            caches = self.program.tokens if self._batch else 1
            return POSITION, nbytes / (caches * max(self.program.capacity, 1))
        by_position = cache or operand.role in ("cos", "sin")  # what the rows take of it
        rows = self._rows_of(command, _main(command) if by_position else operand)
        return (ROW, rows), nbytes / rows[1]

    def _operations(self, command: Command) -> tuple[Term, float]:
        """The term of a command's operations, and what the full shape's are divided by."""
        if not self.skips:
            return ONCE, 1.0
        rows = self._rows_of(command, _main(command))
        if command.kind == "attention":
            return (PAIR, rows), float(rows[1] * max(self.program.capacity, 1))
        return (ROW, rows), float(rows[1])

    def _rows_of(self, command: Command, operand: Operand) -> Rows:
        rows = int(command.attrs.get("row0", 0)), max(operand.region.rows, 1)
        self._rows.setdefault(rows, len(self._rows))
        return rows

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


def _main(command: Command) -> Operand:
    """The operand whose rows are the command's."""
    for role in ("q", "k", "x", "gate", "x0"):
        if command.has(role):
            return command.operand(role)
    return command.operands[0]


def _peaks(known: Mapping[str, float], names: Sequence[str]) -> F64:
    return np.array([known.get(name) or np.inf for name in names], np.float64)
