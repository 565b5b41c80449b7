"""Traces of what a simulator predicts: the same files, on the device's modelled clock."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from dielet import __version__
from dielet.devices import Device
from dielet.errors import DieletError, UsageError
from dielet.profiler.host import HostSlice
from dielet.profiler.tracks import Place
from dielet.profiler.work import Peaks
from dielet.profiler.writer import Attributes, Source, TraceWriter, Written, free_stem
from dielet.program.records import Execution


def launches(executions: Sequence[Execution], device: Device) -> list[HostSlice]:
    """The host's part: the time that the device file gives for starting a program."""
    found, free = [], 0
    for run in executions:
        begin = max(run.start - device.launch, free)
        found.append(HostSlice("launch", begin, run.start, run.instance, run.sequence))
        free = run.end
    return found


def attributes_of(
    model: str, devices: Sequence[Device], chiplets: int, last: int, dropped: int = 0
) -> Attributes:
    """What is said of the whole trace.

    last: when its last command ends, in ps.  dropped: commands that were forgotten before.
    """
    texts = "".join(device.text for device in devices)
    return {
        "dielet_version": __version__,
        "model": model,
        "device": ", ".join(device.name for device in devices),
        "device_sha256": hashlib.sha256(texts.encode()).hexdigest(),
        "device_clock": "modelled",
        "host": f"{platform.system()} {platform.machine()}",
        "dropped_command_count": dropped,
        "run_ns": last // 1000,
        **Peaks.of(devices[0]).attributes("chiplet", chiplets),
    }


def write_modelled(
    executions: Sequence[Execution],
    device: Device,
    output_dir: str | Path = ".",
    *,
    model: str = "",
    prefix: str = "dielet",
    single: bool = True,
    compress: bool | None = None,
) -> Written:
    """Write the traces of `executions`, in order of time, on `device`; see `TraceWriter`.

    model: its name, for the trace's attributes.  Raises UsageError when there is nothing to write,
    DieletError when the folder cannot be made.
    """
    if not executions:
        raise UsageError("there are no executions to write a trace of")
    folder = Path(os.path.expanduser(output_dir))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DieletError(f"{folder} cannot be made: {error.strerror}; choose another") from None
    chiplets = max(execution.program.chiplets for execution in executions)
    source = Source(Place(device, "modelled", chiplets), Peaks.of(device))
    last = max(execution.end for execution in executions)
    attributes = attributes_of(model, [device], chiplets, last)
    writer = TraceWriter(
        folder,
        free_stem(folder, prefix),
        {execution.instance: source for execution in executions},
        last,
        attributes,
        commands=sum(len(lane.commands) for run in executions for lane in run.lanes),
        single=single,
        compress=compress,
    )
    begin = time.perf_counter()
    return writer.write(
        executions,
        launches(executions, device),
        closing=lambda written: {"write_ns": round((time.perf_counter() - begin) * 1e9)},
    )
