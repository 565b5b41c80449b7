"""Devices are data: one TOML file each, read into a validated, frozen `Device`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from dielet.errors import DamagedFile, MissingFile, UsageError


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One in-order queue per chiplet, and the commands that it takes."""

    commands: tuple[str, ...]
    count: int = 1


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the compiler must know of the machine that a program is for."""

    name: str
    chiplets: int
    partition: str
    shared_memory: str
    engine: dict[str, Engine]

    def engine_of(self, kind: str) -> str:
        """The engine that takes commands of `kind`."""
        for name, engine in self.engine.items():
            if kind in engine.commands:
                return name
        raise UsageError(
            f"device {self.name}: no engine takes the command '{kind}'; "
            "add it to one engine's `commands`"
        )


def built_in() -> tuple[str, ...]:
    """Names of the devices that come with dielet."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(f.name[:-5] for f in files if f.name.endswith(".toml")))


def load_device(name_or_path: str) -> Device:
    """The built-in device of that name, or the one described by that TOML file."""
    if name_or_path in built_in():
        text = (resources.files(__package__) / f"{name_or_path}.toml").read_bytes()
    elif Path(name_or_path).is_file():
        text = Path(name_or_path).read_bytes()
    else:
        raise MissingFile(
            f"device '{name_or_path}' is neither built in ({', '.join(built_in())}) nor a file; "
            "name one of those or give the path of a .toml"
        )
    try:
        device = msgspec.toml.decode(text, type=Device)
    except msgspec.MsgspecError as error:
        raise DamagedFile(f"device file {name_or_path}: {error}") from None
    if device.chiplets < 1:
        raise DamagedFile(f"device file {name_or_path}: chiplets = {device.chiplets}, must be >= 1")
    for engine_name, engine in device.engine.items():
        if not engine.commands:
            raise DamagedFile(f"device file {name_or_path}: engine.{engine_name} has no commands")
    return device
