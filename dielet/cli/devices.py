"""List the devices that dielet knows, show one with all its figures, or measure the host."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dielet.cli.console import Console, duration, table
from dielet.cli.parser import place
from dielet.errors import UsageError

if TYPE_CHECKING:
    from dielet.devices import Device

HELP = "list and show devices; measure this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", type=place, metavar="NAME|PATH.toml",
        help="show this one with all its figures",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate", action="store_true",
        help="measure the host by single commands, never by the model asked about; takes a minute",
    )  # fmt: skip
    parser.add_argument("--toml", action="store_true", help="print the file, to copy and edit")


def run(args: argparse.Namespace, console: Console) -> None:
    from dielet.devices import built_in
    from dielet.simulator.calibrated import named_device

    if args.calibrate:
        if args.name not in (None, "host"):
            raise UsageError(f"only the host can be measured, not {args.name}")
        _calibrate(console)
    elif args.name is None:
        devices = [named_device(name) for name in built_in()]
        console.result({"devices": [_summary(device) for device in devices]})
        console.out(table({device.name: _line(device) for device in devices}))
    else:
        _show(named_device(args.name), args.toml, console)


def _summary(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "about": device.about,
        "devices": device.devices,
        "chiplets": device.chiplets,
        "partition": device.partition,
        "figures": len(device.figures),
        "assumed": sum(figure.assumed for figure in device.figures),
    }


def _line(device: Device) -> str:
    facts = _summary(device)
    return (
        f"{device.about}; {device.chiplets} chiplets, partition {device.partition}, "
        f"{facts['figures']} figures of which {facts['assumed']} assumed"
    )


def _show(device: Device, toml: bool, console: Console) -> None:
    engines = {name: list(engine.commands) for name, engine in device.engine.items()}
    figures = [
        {"path": f.path, "value": str(f), "source": f.source, "line": f.line}
        for f in device.figures
    ]
    console.result({**_summary(device), "engines": engines, "values": figures})
    if toml:
        console.out(device.text, end="")
        return
    console.out(f"{device.name}: {_line(device)}")
    for name, commands in engines.items():
        console.out(f"  {device.engine[name].title}: {', '.join(commands)}")
    console.out(table({f"  {f.path}": f"{f!s:>14}  {f.source}" for f in device.figures}))


def _calibrate(console: Console) -> None:
    from time import perf_counter

    from dielet.devices import read_device
    from dielet.files import write_whole
    from dielet.simulator.calibrate import calibrate, host_toml
    from dielet.simulator.calibrated import calibrated_path, named_device

    begin = perf_counter()
    console.note("measuring this machine by single commands; it should have nothing else to do")
    text = host_toml(calibrate(console.detail))
    path = calibrated_path()
    read_device(text, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    console.note(f"measured in {duration(perf_counter() - begin)}; kept in {path}")
    _show(named_device("host"), False, console)
