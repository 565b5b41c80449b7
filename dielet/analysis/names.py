"""What slice names, track names and operations say, each different one looked at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.table import COMPUTE, DMA, HOST, SYNC, Lane
from dielet.profiler.names import parse
from dielet.profiler.tracks import ENGINES, WORKLOAD
from dielet.profiler.tracks import HOST as HOST_TRACK

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_CHIPLET = re.compile(r"Chiplet (\d+)")
_LAYER = re.compile(r"(?<=\.)(\d+)(?=\.)")
_PREFIX = re.compile(r"(?:i(\d+)_)?(\d+)_(.+)", re.DOTALL)
_ONE = "0_"  # stands before what follows the sequence, to make a name of it again
NO_INSTANCE = -1
COMMAND, RUN, WORK, OTHER = range(4)
"""What a slice can be: a command of an engine, a run of a program, host work, none of these."""


@dataclass(frozen=True)
class Names:
    """Of every text, as a slice's name.

    step: place in `steps`, -1 for what is no name.  rest: place in what follows the sequence.
    Of each rest: workload (-1: none), operation (a place in `operations`) and index.
    """

    step: I32
    rest: I32
    steps: list[tuple[int | None, int]]
    workload: I32
    operation: I32
    index: I32
    operations: list[str]


def read_names(texts: list[str], used: I32) -> Names:
    """Take the names apart that slices have; `used`: their numbers."""
    step = np.full(len(texts) + 1, -1, np.int32)  # the last one is for slices without a name
    rest = np.full(len(texts) + 1, -1, np.int32)
    steps: dict[tuple[int, int], int] = {}
    rests: dict[str, int] = {}
    parts: list[tuple[int, int, int]] = []
    operations: dict[str, int] = {}
    prefixes: dict[str, int] = {}
    for number in used.tolist():
        head, _, tail = texts[number].partition("_")
        if head[:1] == "i":
            middle, _, tail = tail.partition("_")
            head = f"{head}_{middle}"
        place = rests.get(tail)
        if place is None:
            found = parse(_ONE + tail)
            if found is None:
                continue
            place = rests[tail] = len(rests)
            operation = operations.setdefault(found.layer or "", len(operations))
            workload = -1 if found.workload is None else found.workload
            parts.append((workload, operation, found.command or 0))
        known = prefixes.get(head)
        if known is None:
            instance = _PREFIX.fullmatch(head + "_x")
            if instance is None:
                continue
            key = int(instance[1] or NO_INSTANCE), int(instance[2])
            known = prefixes[head] = steps.setdefault(key, len(steps))
        step[number], rest[number] = known, place
    columns = np.array(parts, np.int64).reshape(-1, 3)
    return Names(
        step=step,
        rest=rest,
        steps=[(None if i == NO_INSTANCE else i, s) for i, s in steps],
        workload=columns[:, 0].astype(np.int32),
        operation=columns[:, 1].astype(np.int32),
        index=columns[:, 2].astype(np.int32),
        operations=list(operations),
    )


def class_of(engine: str) -> str:
    """compute, dma or sync, by the engine's title."""
    if "DMA" in engine:
        return DMA
    return SYNC if "Sync" in engine else COMPUTE


def lane_of(path: tuple[str, ...], category: str) -> tuple[int, Lane]:
    """What a track is, by the names of the tracks above it and by what its slices call theirs."""
    device = next((name for name in path if name.startswith("Device ") and name != WORKLOAD), "")
    if path and WORKLOAD in (path[-1], category):
        return RUN, Lane(device, None, WORKLOAD, HOST, WORKLOAD)
    if HOST_TRACK in (*path[-2:], category):
        return WORK, Lane(device, None, HOST_TRACK, HOST, path[-1] if path else HOST_TRACK)
    chiplet = next((int(m[1]) for name in path if (m := _CHIPLET.fullmatch(name))), None)
    known = next((name for name in (*path, category) if name in ENGINES), None)
    engine = known or category or (path[-1] if path else "")
    if known is None and chiplet is None and not engine:
        return OTHER, Lane(device, chiplet, engine, COMPUTE, "")
    return COMMAND, Lane(device, chiplet, engine, class_of(engine), path[-1] if path else engine)


def layer_of(operation: str) -> int:
    """The layer's number in an operation's path, or -1."""
    found = _LAYER.search(operation)
    return int(found[1]) if found else -1


def group_of(operation: str) -> str:
    """The operation with `*` for every layer's number."""
    return _LAYER.sub("*", operation)
