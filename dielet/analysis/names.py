"""What slice names, track names and operations say, each different one looked at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.table import COMPUTE, DMA, HOST, STRETCH, SYNC, Lane
from dielet.profiler.names import parse
from dielet.profiler.tracks import ENGINES, WORKLOAD
from dielet.profiler.tracks import HOST as HOST_TRACK

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_CHIPLET = re.compile(r"Chiplet (\d{1,9})")
_LAYER = re.compile(r"(?<=\.)(\d{1,9})(?=\.)")
_PREFIX = re.compile(r"(?:i(\d{1,9})_)?(\d{1,9})_(.+)", re.DOTALL)
_MOST = 999_999_999  # that a workload or a command is numbered with; larger ones are no names
_ONE = "0_"  # stands before what follows the sequence, to make a name of it again
COMMAND, RUN, WORK, OTHER = range(4)
"""What a slice can be: a command of an engine, a run of a program, host work, none of these."""


Step = tuple[int | None, int]
"""Instance, if it is known, and sequence."""


@dataclass(frozen=True)
class Names:
    """What names say: steps, and of everything that follows the sequence in a name (a rest) the
    workload (-1: none), the operation (a place in `operations`) and the index."""

    steps: list[Step]
    workload: I32
    operation: I32
    index: I32
    operations: list[str]


def read_rests(rests: Sequence[str], steps: list[Step]) -> tuple[Names, NDArray[np.bool_]]:
    """The names, and which of the rests are rests of names."""
    parts = np.full((len(rests), 3), -1, np.int32)
    operations: dict[str, int] = {}
    for row, rest in enumerate(rests):
        found = parse(_ONE + rest)
        if found is not None and max(found.workload or 0, found.command or 0) <= _MOST:
            operation = operations.setdefault(found.layer or "", len(operations))
            workload = -1 if found.workload is None else found.workload
            parts[row] = workload, operation, found.command or 0
    names = Names(steps, parts[:, 0], parts[:, 1], parts[:, 2], list(operations))
    return names, parts[:, 1] >= 0


def read_names(texts: Sequence[str], used: I32) -> tuple[I32, I32, list[str], list[Step]]:
    """By text: its step and its rest, -1 where it is no name; all rests, and steps.

    used: the texts that are looked at.  One more place is for slices without a name.
    """
    step = np.full(len(texts) + 1, -1, np.int32)
    rest = np.full(len(texts) + 1, -1, np.int32)
    steps: dict[Step, int] = {}
    rests: dict[str, int] = {}
    for number in used.tolist():
        found = _PREFIX.fullmatch(texts[number])
        if found is not None:
            key = None if found[1] is None else int(found[1]), int(found[2])
            step[number] = steps.setdefault(key, len(steps))
            rest[number] = rests.setdefault(found[3], len(rests))
    return step, rest, list(rests), list(steps)


def in_order(rest: I32, rests: Sequence[str]) -> list[str]:
    """Texts in the order in which slices have them; their numbers in `rest` are changed."""
    first = np.full(len(rests) + 1, len(rest), np.int64)
    for low in reversed(range(0, len(rest), STRETCH)):
        part = rest[low : low + STRETCH]
        first[part[::-1]] = np.arange(low, low + len(part))[::-1]
    order = np.argsort(first[:-1], kind="stable")
    number = np.empty(len(rests) + 1, np.int32)
    number[order] = np.arange(len(rests))
    number[-1] = -1
    for low in range(0, len(rest), STRETCH):
        rest[low : low + STRETCH] = number[rest[low : low + STRETCH]]
    return [rests[n] for n in order.tolist()]


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
