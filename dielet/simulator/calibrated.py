"""The host as it was measured on this machine, which goes before the built-in description."""

from __future__ import annotations

from pathlib import Path

from dielet import paths
from dielet.devices import Device, load_device, read_device_file
from dielet.errors import DamagedFile


def calibrated_path() -> Path:
    """Where the calibrated host device is kept."""
    return paths.cache_dir("devices", "host.toml")


def calibrated_host() -> Device | None:
    """The host as measured on this machine, if it has been.  DamagedFile says how to go on."""
    path = calibrated_path()
    if not path.is_file():
        return None
    try:
        return read_device_file(path)
    except DamagedFile as error:
        raise DamagedFile(
            f"{error}; measure again with `dielet devices host --calibrate`, or delete the file"
        ) from None


def named_device(name_or_path: str) -> Device:
    """The device of that name or file: the host as it was measured, if it was."""
    return (calibrated_host() if name_or_path == "host" else None) or load_device(name_or_path)
