"""Turn a divided graph into a program, by the kind of machine that it is for."""

from __future__ import annotations

from dielet.devices import Device
from dielet.partition import Division
from dielet.program.chiplets import ChipletLowering
from dielet.program.lowering import Lowering, Placement, Shape
from dielet.program.types import Program


def lower(division: Division, shape: Shape, device: Device, placement: Placement) -> Program:
    """The program of `shape`: commands in a runnable order, before waits and signals are set."""
    kind = ChipletLowering if device.local_memory else Lowering
    return kind(division, shape, device, placement).program()
