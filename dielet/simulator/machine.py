"""A device as resources that transfers share: memories, links between them, engines' ports."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from dielet.devices import Device, Link
from dielet.errors import UsageError
from dielet.program.types import Region

HOST = "host"


@dataclass(frozen=True)
class Place:
    """A memory of a chiplet; the host's memory has chiplet -1."""

    memory: str
    chiplet: int


@dataclass
class Machine:
    """Numbers resources as they are first used, so that only what takes part is simulated.

    names, kinds ('memory' or 'link') and rates (bytes per second) are by resource.
    """

    device: Device
    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    rates: list[int] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def place(self, region: Region, chiplet: int) -> Place:
        """The memory that a region is in, for a command of `chiplet`."""
        space, _, owner = region.space.partition(".")
        memory = self.device.memory_of(space)
        if memory == HOST:
            return Place(HOST, -1)
        if not self.device.local_memory:
            return Place(memory, 0)  # all chiplets work on the same memories
        if space == "staging":
            return Place(memory, 0)
        return Place(memory, int(owner) if owner else chiplet)

    def memory(self, place: Place) -> int:
        if place.memory not in self.device.memory:
            raise UsageError(
                f"device {self.device.name} describes no [memory.{place.memory}], "
                "which a simulation needs"
            )
        name = f"{place.memory}.{place.chiplet}"
        return self._number(name, "memory", self.device.memory[place.memory].bandwidth)

    def port(self, engine: str, lane: int, memory: str) -> list[int]:
        """What the engine itself can exchange with a memory; nothing where there is no limit."""
        rate = self.device.engine[engine].port.get(memory)
        return [] if rate is None else [self._number(f"{engine}.{lane}.{memory}", "memory", rate)]

    def latency(self, place: Place) -> int:
        return 0 if place.memory == HOST else self.device.memory[place.memory].latency

    def route(self, source: Place, target: Place) -> tuple[list[int], int]:
        """(links, latency) of the way from one memory to another."""
        if HOST in (source.memory, target.memory):
            return self._host(source, target)
        a, b = (p.chiplet // self.device.chiplets for p in (source, target))
        if a != b:
            return self._way(self._link("device_to_device"), a, b, 0, self.device.devices)
        if source.chiplet == target.chiplet:
            return [], 0
        first = a * self.device.chiplets
        return self._way(
            self._link("die_to_die"),
            source.chiplet - first,
            target.chiplet - first,
            first,
            self.device.chiplets,
        )

    def _host(self, source: Place, target: Place) -> tuple[list[int], int]:
        link = self._link("host")
        into = source.memory == HOST
        device = (target if into else source).chiplet // self.device.chiplets
        name = f"host.{'in' if into else 'out'}.{device}"
        return [self._number(name, "link", link.bandwidth)], link.latency

    def _way(self, link: Link, a: int, b: int, first: int, count: int) -> tuple[list[int], int]:
        """The links from node a to node b of `count`, by the link's topology."""
        if link.topology == "port":
            steps = [f"out.{first + a}", f"into.{first + b}"]
            hops = 1
        else:
            nodes = [a, b] if link.topology == "all" else mesh_route(a, b, count)
            steps = [f"{first + x}-{first + y}" for x, y in pairwise(nodes)]
            hops = len(steps)
        numbers = [self._number(f"{link.name}.{s}", "link", link.bandwidth) for s in steps]
        return numbers, hops * link.latency

    def _link(self, name: str) -> Link:
        if name not in self.device.link:
            raise UsageError(
                f"device {self.device.name} describes no [link.{name}], which a simulation needs"
            )
        return self.device.link[name]

    def _number(self, name: str, kind: str, rate: int) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
            self.kinds.append(kind)
            self.rates.append(rate)
        return self._numbers[name]

    def signal(self, source: int, target: int) -> int:
        """Picoseconds from a signal on one chiplet to its being seen on another."""
        signal = self.device.signal
        if source == target:
            return signal.engine
        if source // self.device.chiplets == target // self.device.chiplets:
            return signal.chiplet
        return signal.device


def mesh_route(a: int, b: int, count: int) -> list[int]:
    """The nodes from a to b on the squarest full grid of `count`, along the row first."""
    rows = max(d for d in range(1, count + 1) if count % d == 0 and d * d <= count)
    width = count // rows
    x, y = a % width, a // width
    nodes = [a]
    while x != b % width:
        x += 1 if b % width > x else -1
        nodes.append(y * width + x)
    while y != b // width:
        y += 1 if b // width > y else -1
        nodes.append(y * width + x)
    return nodes


def resource_group(name: str) -> str:
    """What a report counts a resource under: its memory or link, whichever chiplet's it is."""
    return name.split(".")[0]
