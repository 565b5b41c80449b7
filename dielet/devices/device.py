"""What is known of a machine: chiplets, engines, memories, links, all in whole base units.

Sizes are bytes, bandwidths bytes per second, times picoseconds, rates operations per second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from dielet.devices.units import Unit, show
from dielet.errors import UsageError

COMMANDS = (
    "linear", "attention", "rmsnorm", "rotary", "kv_append", "silu_mul", "quantize", "convert",
    "route", "experts_gated", "experts_sum",
    "select", "reduce", "copy", "weight_copy", "host_copy", "device_copy", "device_sync",
)  # fmt: skip
"""Every command kind that an engine can take: the command set of `dielet.program.commands`."""

MAX_CHIPLETS = 64
FORMATS = ("bf16", "int8", "f32", "fp8", "int4")
Topology = Literal["mesh", "all", "port"]


@dataclass(frozen=True)
class Tile:
    """The shape that a matrix engine works in: a product is rounded up to whole tiles."""

    rows: int = 1
    columns: int = 1
    depth: int = 1


@dataclass(frozen=True)
class Engine:
    """One in-order queue per chiplet, and the commands that it takes.

    count: units that work on one command together, its columns shared out; `peak` is one unit's.
    rates: operations per second as measured, by "kind format rows"; they go before peak and tile.
    setup: from when a command starts to when it moves or computes anything.
    port: bytes per second that the engine itself can exchange with a memory, by memory.
    slots: of an engine that brings weights: pieces that the scratchpad holds at a time.
    alongside: percent of its speed that one of several workers keeps while all of them compute.
    """

    name: str
    title: str
    commands: tuple[str, ...]
    count: int = 1
    peak: dict[str, int] = field(default_factory=dict)
    tile: Tile = Tile()
    rates: dict[str, int] = field(default_factory=dict)
    setup: int = 0
    port: dict[str, int] = field(default_factory=dict)
    slots: int = 2
    alongside: int = 100


@dataclass(frozen=True)
class Memory:
    """One memory of a chiplet: `size` 0 means that it is not limited."""

    name: str
    size: int
    bandwidth: int
    latency: int = 0


@dataclass(frozen=True)
class Link:
    """How chiplets, devices or the host are joined; the bandwidth is one direction's.

    topology: `mesh` (a grid, X before Y, a link between neighbours), `all` (a link between any
    two), or `port` (one way out of and one way into each).
    """

    name: str
    bandwidth: int
    latency: int = 0
    topology: Topology = "all"


@dataclass(frozen=True)
class Signal:
    """From the completion of a command to when a queue that waits for it sees it, in ps."""

    engine: int = 0  # a queue of the same chiplet
    chiplet: int = 0  # of another chiplet of the device
    device: int = 0  # of another device


@dataclass(frozen=True)
class Figure:
    """One number of a device file, where it stands, and where it comes from."""

    path: str
    value: int
    unit: Unit | None
    line: int
    source: str

    @property
    def assumed(self) -> bool:
        """Whether it is, or a part of it: `source: PCIe 5.0 (x16 assumed)`."""
        return re.search(r"\bassumed\b", self.source) is not None

    def __str__(self) -> str:
        return show(self.value, self.unit) if self.unit else str(self.value)


@dataclass(frozen=True)
class Device:
    """The machine that a program is for.

    chiplets: of one device; devices: that one program spans.  shared_memory: `device` when all
    chiplets work on one activation memory, `chiplet` when each has its own, with DMA between them.
    padding: whether rows and positions beyond the real ones are `skipped` or `computed`.
    launch: from one program's end to the next one's start, in ps.  spaces: the memory that each
    address space is in.
    """

    name: str
    chiplets: int
    partition: str
    shared_memory: str
    engine: dict[str, Engine]
    devices: int = 1
    about: str = ""
    padding: str = "computed"
    memory: dict[str, Memory] = field(default_factory=dict)
    link: dict[str, Link] = field(default_factory=dict)
    signal: Signal = Signal()
    launch: int = 0
    spaces: dict[str, str] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    text: str = ""

    def engine_of(self, kind: str) -> str:
        """The engine that takes commands of `kind`."""
        for name, engine in self.engine.items():
            if kind in engine.commands:
                return name
        raise UsageError(
            f"device {self.name}: no engine takes the command '{kind}'; "
            "add it to one engine's `commands`"
        )

    def missing_parts(self) -> list[str]:
        """Tables of the file that a device with so many chiplets and devices needs and lacks."""
        if not self.local_memory:
            return []
        wanted = [f"memory.{name}" for name in ("dram", "shared", "scratchpad")] + ["link.host"]
        wanted += ["link.die_to_die"] * (self.chiplets > 1)
        wanted += ["link.device_to_device"] * (self.devices > 1)
        have = {f"memory.{n}" for n in self.memory} | {f"link.{n}" for n in self.link}
        return [name for name in wanted if name not in have]

    @property
    def local_memory(self) -> bool:
        """Whether each chiplet has activations of its own, so that values must be sent."""
        return self.shared_memory == "chiplet"

    def memory_of(self, space: str) -> str:
        """The memory that an address space (`weights`, `shared.3`) is in."""
        return self.spaces.get(space.split(".")[0], "dram")


def resized(device: Device, devices: int | None = None, chiplets: int | None = None) -> Device:
    """The same device with another number of chiplets, or several of it."""
    device = replace(
        device, devices=devices or device.devices, chiplets=chiplets or device.chiplets
    )
    if device.devices * device.chiplets > MAX_CHIPLETS:
        raise UsageError(
            f"{device.devices} devices of {device.chiplets} chiplets are more than {MAX_CHIPLETS}; "
            "use fewer"
        )
    if device.devices > 1 and not device.local_memory:
        raise UsageError(
            f"device {device.name} has one memory for all chiplets, so there is only one of it; "
            "use --chiplets"
        )
    if missing := device.missing_parts():
        raise UsageError(
            f"{device.devices} devices of {device.chiplets} chiplets need "
            f"[{'], ['.join(missing)}], which device {device.name} does not describe"
        )
    return device
