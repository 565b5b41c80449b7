"""Devices are data: one TOML file each, read into a validated, frozen `Device`."""

from dielet.devices.device import (
    COMMANDS,
    Device,
    Engine,
    Figure,
    Link,
    Memory,
    Signal,
    Tile,
    resized,
)
from dielet.devices.override import overridden
from dielet.devices.read import (
    built_in,
    device_text,
    load_device,
    read_device,
    read_device_file,
)

__all__ = [
    "COMMANDS",
    "Device",
    "Engine",
    "Figure",
    "Link",
    "Memory",
    "Signal",
    "Tile",
    "built_in",
    "device_text",
    "load_device",
    "overridden",
    "read_device",
    "read_device_file",
    "resized",
]
