"""A chiplet device with memories so small that everything must be cut, for tests."""

from __future__ import annotations

from pathlib import Path

from dielet.devices import device_text

CASES = [  # device, partition (None: the device file's own), chiplets, num_devices
    ("rebel100", None, None, None),
    ("rebel100", "column_row", None, None),
    ("rebel100", "column_row", 3, None),
    ("rebel100", None, 2, 2),
    ("rebel100", "column_row", 2, 2),
    ("atom", None, None, None),
    ("atom-x4", "column_row", None, None),
    ("atom-x4", None, None, 3),
    ("atom-x4", None, None, None),
]


def given(device: str, partition: str | None, chiplets: int | None, devices: int | None):
    """Compile options of a case."""
    options = {"device": device, "partition": partition, "chiplets": chiplets}
    return {**options, "num_devices": devices}


def cramped(folder: Path, scratchpad: str = "24 kB", shared: str = "128 kB") -> str:
    """The path of a rebel100 with other sizes of its memories."""
    text = device_text("rebel100")
    text = text.replace('size = "32 MiB"', f'size = "{scratchpad}"')
    text = text.replace('size = "64 MiB"', f'size = "{shared}"')
    path = folder / "cramped.toml"
    path.write_text(text)
    return str(path)
