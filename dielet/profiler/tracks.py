"""The tree of tracks: devices, their chiplets, and below those the engines and the counters.

A track is announced in a file when something first goes onto it, so empty ones are left out; the
order on the screen is by rank, not by when that was.
"""

from __future__ import annotations

from dataclasses import dataclass

from dielet.devices import Device
from dielet.profiler import perfetto

WORKLOAD, HOST = "Device Workload", "Host"
ENGINES = (
    "Neural Engine Clusters", "Neural DMA", "Task DMA", "External HDMA", "Device HDMA",
    "Device Sync", "General Compute Engine",
)  # fmt: skip
"""The vendor's engines in the order of the screen; others follow in that of their device file."""

_CHIPLETS, _ENGINES, _OTHERS, _COUNTERS = 2, 100, 150, 200  # ranks start here
COUNTERS = {
    "DRAM bytes in use": "bytes",
    "shared-memory bytes in use": "bytes",
    "DRAM GB/s": "GB/s",
    "link GB/s": "GB/s",
}
"""Counter tracks and their units, in order."""


@dataclass(frozen=True)
class Track:
    """uuid: of the track, small and not reused within a session; rank: among its siblings."""

    uuid: int
    name: str
    rank: int
    parent: Track | None = None
    description: str = ""
    unit: str | None = None

    def descriptor(self) -> bytes:
        parent = self.parent.uuid if self.parent else None
        return perfetto.track_descriptor(
            self.uuid, self.name, parent, self.rank, self.description, self.unit
        )

    def chain(self) -> tuple[Track, ...]:
        """The track's ancestors from the top, and the track."""
        return (*(self.parent.chain() if self.parent else ()), self)


@dataclass(frozen=True, eq=False)
class Place:
    """A device as the trace shows it: which of several, what it is called, how it is built.

    group: tells apart several models that share a device and may run at the same time.
    """

    device: Device
    clock: str
    chiplets: int  # of all devices that a program spans
    group: int = 0
    label: str = ""
    first: int = 0  # number of the first device

    @property
    def per_device(self) -> int:
        return max(self.chiplets // self.device.devices, 1)

    def device_of(self, chiplet: int) -> int:
        return chiplet // self.per_device


class Tracks:
    """Makes tracks, each once; the same ones for all files of a session."""

    def __init__(self, several: bool = False) -> None:
        self._known: dict[object, Track] = {}
        # One device is its own root; several need one above them to keep their order.
        self._root = self._make(None, "dielet", 0) if several else None

    def device(self, place: Place, index: int) -> Track:
        number = place.first + index
        label = f", {place.label}" if place.label else ""
        name = f"Device {number} ({place.device.name}, {place.clock}){label}"
        about = (
            "times that commands took on this machine"
            if place.clock == "measured"
            else "times that a model of the device predicts; nothing ran on it"
        )
        return self._make(self._root, name, number + place.group, about, key=place.group)

    def workload(self, place: Place, index: int) -> Track:
        return self._make(self.device(place, index), WORKLOAD, 0)

    def host(self, place: Place, thread: int) -> Track:
        """Work of the host: a track of its own for every further thread."""
        parent = self._make(self.device(place, 0), HOST, 1)
        return self._make(parent, f"thread {thread}", thread) if thread else parent

    def chiplet(self, place: Place, chiplet: int) -> Track:
        """A chiplet's group; of a device with one die the device's own."""
        device = self.device(place, place.device_of(chiplet))
        if place.per_device == 1:
            return device
        number = chiplet % place.per_device
        return self._make(device, f"Chiplet {number}", _CHIPLETS + number)

    def engine(self, place: Place, chiplet: int, engine: str, lane: str | None = None) -> Track:
        """An engine's track; with `lane` one of several below it, whose slices may overlap."""
        group = self.chiplet(place, chiplet)
        described = place.device.engine[engine]
        rank = _OTHERS + [*place.device.engine].index(engine)
        if described.title in ENGINES:
            rank = _ENGINES + ENGINES.index(described.title)
        track = self._make(
            group, described.title, rank, "commands: " + " ".join(described.commands)
        )
        return track if lane is None else self._make(track, lane, len(self._known))

    def counter(self, place: Place, chiplet: int, name: str) -> Track:
        group = self.chiplet(place, chiplet)
        rank = _COUNTERS + [*COUNTERS].index(name)
        return self._make(group, name, rank, unit=COUNTERS[name])

    def _make(
        self,
        parent: Track | None,
        name: str,
        rank: int,
        description: str = "",
        unit: str | None = None,
        key: object = None,
    ) -> Track:
        place = parent.uuid if parent else 0, name, key
        track = self._known.get(place)
        if track is None:
            track = Track(len(self._known) + 1, name, rank, parent, description, unit)
            self._known[place] = track
        return track
