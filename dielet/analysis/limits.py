"""The peaks that achieved rates are held against: the trace's own, or a device file's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dielet.analysis.schema import Peaks
from dielet.devices import Device, built_in, load_device
from dielet.profiler.work import Peaks as Figures

DRAM = "dram"
LINKS = ("die_to_die", "device_to_device", "host")
_FORMATS = {"bf16": "bf16", "int8": "int8", "int4": "int8"}


@dataclass(frozen=True)
class Limits:
    """Per worker or chiplet: bytes per second by memory and link, operations by engine and format.

    count: of workers or chiplets.  source: where the figures come from; empty without any.
    """

    memories: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, float] = field(default_factory=dict)
    engines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    count: int = 1
    source: str = ""

    def ops(self, form: str) -> float | None:
        """Operations per second of the fastest engine of one executor for a number format."""
        return max((peaks[form] for peaks in self.engines.values() if form in peaks), default=None)

    @property
    def dram(self) -> float | None:
        return self.memories.get(DRAM)

    def schema(self) -> Peaks:
        forms = dict.fromkeys(form for peaks in self.engines.values() for form in peaks)
        dram = self.dram
        ridge = {form: (self.ops(form) or 0.0) / dram for form in forms} if dram else {}
        return Peaks(
            dram=dram * self.count if dram else None,
            links={name: rate for name, rate in self.links.items()},
            ops={
                engine: {form: rate * self.count for form, rate in peaks.items()}
                for engine, peaks in self.engines.items()
            },
            ridge=ridge,
            executors=self.count,
        )


def limits_of(
    attributes: Mapping[str, int | str], device: str | Path | None = None, chiplets: int = 1
) -> Limits:
    """What is known of the peaks.  device: a file or a name that goes before the trace's own."""
    if device is not None:
        return _of_device(load_device(str(device)), chiplets, f"device file {device}, as asked")
    tables: dict[str, dict[str, float]] = {"memory": {}, "link": {}, "engine": {}}
    for key, value in attributes.items():
        head, _, name = key.partition(".")
        if head.startswith("peak ") and head[5:] in tables:
            tables[head[5:]][name] = float(value)
    if tables["memory"] or tables["engine"]:
        engines: dict[str, dict[str, float]] = {}
        for name, rate in tables["engine"].items():
            engine, _, form = name.partition(".")
            engines.setdefault(engine, {})[form] = rate
        each = attributes.get("peaks_of_each", "chiplet")
        count = int(attributes.get("peaks_count", 1))
        how = "measured when the session ended" if each == "worker" else "of the device file"
        source = f"the trace's own: {how}, {count} x one {each}"
        return Limits(tables["memory"], tables["link"], engines, count, source)
    name = str(attributes.get("device", ""))
    if name in built_in():
        found = load_device(name)
        same = hashlib.sha256(found.text.encode()).hexdigest() == attributes.get("device_sha256")
        note = "" if same else ", which is not the file that the trace was made with"
        return _of_device(found, chiplets, f"device file {name}{note}")
    return Limits()


def _of_device(device: Device, chiplets: int, source: str) -> Limits:
    figures = Figures.of(device)
    engines = {name: dict(rates) for name, rates in figures.rates.items() if rates}
    count = max(chiplets, 1)
    memories = dict(figures.memories)
    if not device.local_memory:  # then all chiplets share what the file gives
        memories = {name: rate / count for name, rate in memories.items()}
    return Limits(memories, dict(figures.links), engines, count, source)


def operation_format(kind: str, form: str) -> str:
    """The number format that a command's operations are counted in."""
    if kind == "linear":
        return next((ops for name, ops in _FORMATS.items() if form.startswith(name)), "")
    return "bf16" if kind == "attention" else "f32"
