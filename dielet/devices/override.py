"""A device with some figures changed: what `--set memory.dram.bandwidth="0.6 TB/s"` asks for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dielet.devices.device import Device
from dielet.devices.read import read_device_values
from dielet.devices.units import BANDWIDTH, RATE, SIZE, TIME
from dielet.errors import UsageError

SOURCE = "assumed: set by hand"
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_MOST_DIGITS = 40  # before or after the point


def overridden(device: Device, changes: Mapping[str, str]) -> Device:
    """The device that the same file with other values describes.

    changes: dotted path -> value as the file would write it, or `x0.5` for a multiple of the
    value there.  Raises UsageError for a path that no device file has.
    """
    values = tomllib.loads(device.text)
    for path, text in changes.items():
        _set(values, path, text, device.name)
    where = f"{device.name} with {', '.join(f'{p}={t}' for p, t in changes.items())}"
    return read_device_values(values, device.text, where, dict.fromkeys(changes, SOURCE))


def _set(values: dict[str, Any], path: str, text: str, name: str) -> None:
    *tables, key = path.split(".")
    table: Any = values
    for part in tables:
        table = table.get(part) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise UsageError(
            f"device {name} has no [{'.'.join(tables)}] in which {key} could be set to {text}"
        )
    if text.startswith("x"):
        table[key] = _multiple(table.get(key), text[1:], path)
    else:
        table[key] = int(text) if _WHOLE.fullmatch(text) else text


def _multiple(old: Any, factor: str, path: str) -> Any:
    if old is None:
        raise UsageError(f"the device has no {path}, of which x{factor} could be taken")
    try:
        times = Decimal(factor)
        number, _, unit = str(old).partition(" ")
        product = Decimal(number) * times
        if not product.is_finite() or abs(product.adjusted()) > _MOST_DIGITS:
            raise ArithmeticError
    except ArithmeticError:
        raise UsageError(f"{path} is {old!r}, of which x{factor} cannot be taken") from None
    known = any(unit in u.scale for u in (SIZE, BANDWIDTH, TIME, RATE))
    return f"{product:f} {unit}" if known else int(product)
