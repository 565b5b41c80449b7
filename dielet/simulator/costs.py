"""What a command costs on a device: set-up, computation, and legs over its resources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dielet.devices import Device, Engine
from dielet.errors import UsageError
from dielet.program.commands import ENTRIES, Run
from dielet.program.commands.transfer import Transfer
from dielet.program.types import Command, Cost, Queue
from dielet.simulator.machine import Machine, Place

SECOND = 10**12  # picoseconds


@dataclass(frozen=True)
class Work:
    """A command's cost in time: ps of set-up and of computation, and (bytes, resources) legs."""

    setup: int
    compute: int
    legs: tuple[tuple[int, tuple[int, ...]], ...]
    moved: tuple[tuple[str, int], ...]  # bytes by memory or link, for reports
    units: int  # indivisible parts, for workers to share


class Costs:
    """Prices commands; equal ones on equal queues are priced once.

    `run` bounds the shapes on devices that skip padding; elsewhere every shape is full.
    together: whether several workers of an engine compute side by side.
    """

    def __init__(self, machine: Machine, run: Run | None, together: bool = False) -> None:
        self.machine = machine
        self.run = run if machine.device.padding == "skipped" else None
        # What one row costs is reading, and that its legs share already.
        self._together = together and (self.run is None or self.run.valid > 1)
        self._known: dict[object, Work] = {}
        self._rates: dict[str, Rates] = {
            name: Rates(engine) for name, engine in machine.device.engine.items()
        }

    def of(self, command: Command, queue: Queue, lane: int) -> Work:
        key = (
            command.kind,
            lane,
            tuple(command.attrs.values()),
            tuple([(o.region.space, o.region.rows, o.region.width) for o in command.operands]),
        )
        work = self._known.get(key)
        if work is None:
            work = self._known[key] = self._price(command, queue, lane)
        return work

    def _price(self, command: Command, queue: Queue, lane: int) -> Work:
        entry = ENTRIES[command.kind]
        cost = entry.cost(command, self.run)
        if isinstance(entry, Transfer):
            legs, latency = self._transfer(command, cost, queue, lane)
        else:
            legs, latency = self._operands(command, cost, queue, lane)
        engine = self.machine.device.engine[queue.engine]
        compute = self._rates[queue.engine].time(command, cost, self.run, self.machine.device)
        if self._together:
            compute = compute * 100 // engine.alongside
        moved: dict[str, int] = {}
        for nbytes, path in legs:
            for resource in path:
                name = self.machine.names[resource].split(".")[0]
                if name != queue.engine:  # a port is no place
                    moved[name] = moved.get(name, 0) + nbytes
        units = entry.units(command, self.run)
        return Work(engine.setup + latency, compute, tuple(legs), tuple(moved.items()), units)

    def _transfer(
        self, command: Command, cost: Cost, queue: Queue, lane: int
    ) -> tuple[list[tuple[int, tuple[int, ...]]], int]:
        """One leg, from memory to memory over the links between them."""
        m, half = self.machine, len(command.operands) // 2
        source, target = (m.place(command.operands[i].region, queue.chiplet) for i in (0, half))
        nbytes = sum(cost.reads.values())
        links, latency = m.route(source, target)
        latency += max(m.latency(source), m.latency(target))
        ends = [p for p in dict.fromkeys((source, target)) if p.chiplet >= 0]
        path = [m.memory(p) for p in ends] + links
        path += [r for p in ends for r in m.port(queue.engine, lane, p.memory)]
        if source == target:
            nbytes *= 2  # read from and written to one memory
        return ([(nbytes, tuple(path))] if nbytes else []), latency

    def _operands(
        self, command: Command, cost: Cost, queue: Queue, lane: int
    ) -> tuple[list[tuple[int, tuple[int, ...]]], int]:
        """A leg for each memory that the operands are in."""
        m = self.machine
        by_place: dict[Place, int] = {}
        for operand in command.operands:
            nbytes = cost.reads.get(operand.role, 0) + cost.writes.get(operand.role, 0)
            if nbytes:
                place = m.place(operand.region, queue.chiplet)
                by_place[place] = by_place.get(place, 0) + nbytes
        legs = [
            (nbytes, (m.memory(place), *m.port(queue.engine, lane, place.memory)))
            for place, nbytes in by_place.items()
        ]
        return legs, max(map(m.latency, by_place), default=0)


Points = dict[int, list[tuple[int, int]]]
"""Measurements by depth: (rows, operations per second), in order of rows."""


class Rates:
    """How fast an engine computes: as measured where the device file says, else peak and tile."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @cached_property
    def _measured(self) -> dict[str, dict[str, Points]]:
        """kind -> variant -> depth -> (rows, operations per second)."""
        found: dict[str, dict[str, Points]] = {}
        for name, rate in self.engine.rates.items():
            kind, variant, rows = name.split()
            base, _, depth = variant.partition(".k")
            by_depth = found.setdefault(kind, {}).setdefault(base, {})
            points = by_depth.setdefault(int(depth or 0), [])
            points.append((int(rows), rate))
            points.sort()
        return found

    def time(self, command: Command, cost: Cost, run: Run | None, device: Device) -> int:
        """Picoseconds of computation."""
        ops = sum(cost.ops.values())
        if not ops:
            return 0
        points = self._points(command)
        if points is not None:
            entry = ENTRIES[command.kind]
            rows = entry.rows(command, run, command.operands[0].role)
            return round(ops * SECOND / rate_at(points, rows, entry.depth(command, run)))
        return sum(self._peak_time(fmt, n, cost, device) for fmt, n in cost.ops.items())

    def _points(self, command: Command) -> Points | None:
        """The measurements of the command's kind and variant, or of the variant most like it."""
        alike = self._measured.get(command.kind)
        if not alike:
            return None
        variant = ENTRIES[command.kind].variant(command)
        return alike[max(alike, key=lambda v: (v == variant, _common(v, variant)))]

    def _peak_time(self, fmt: str, ops: int, cost: Cost, device: Device) -> int:
        engine = self.engine
        peak = engine.peak.get(fmt)
        if peak is None:
            raise UsageError(
                f"device {device.name}: engine.{engine.name} has no peak for {fmt}, which a "
                f"command needs; add {fmt} to [engine.{engine.name}.peak]"
            )
        if cost.shape is None:
            return -(-ops * SECOND // (peak * engine.count))
        rows, columns, depth = cost.shape
        tile = engine.tile
        each = -(-columns // engine.count)
        full = whole(rows, tile.rows) * whole(each, tile.columns) * whole(depth, tile.depth)
        # Whole tiles are computed, whatever of them is used.
        return -(-ops * full * SECOND // (rows * columns * depth * peak))


def _common(a: str, b: str) -> int:
    """How many characters two words begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


def whole(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def rate_at(points: Points, rows: int, depth: int) -> float:
    """Operations per second for a size, where the time is linear in rows and in depth."""
    depths = sorted(points)
    if len(depths) == 1:
        return interpolated(points[depths[0]], rows)
    low = max((d for d in depths[:-1] if d <= depth), default=depths[0])
    high = depths[depths.index(low) + 1]
    a, b = (at / interpolated(points[at], rows) for at in (low, high))
    time = a + (b - a) * (depth - low) / (high - low)
    if time <= 0 or depth < 1:  # far below what was measured
        return interpolated(points[low], rows)
    return depth / time


def interpolated(points: list[tuple[int, int]], rows: int) -> float:
    """Operations per second at `rows`: between measured points the time is taken as linear."""
    if rows <= points[0][0] or len(points) == 1:
        return float(points[0][1])
    for (r0, rate0), (r1, rate1) in pairwise(points):
        if rows <= r1:
            time = r0 / rate0 + (r1 / rate1 - r0 / rate0) * (rows - r0) / (r1 - r0)
            return rows / time
    return float(points[-1][1])
