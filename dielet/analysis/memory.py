"""Memory in use: the counters over time, and whose it is at the peak."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from dielet.analysis.schema import Memory, Owner, Series
from dielet.analysis.table import COMPUTE, F64, I64, Table
from dielet.analysis.traffic import weight_bytes

IN_USE = " bytes in use"
DRAM, SHARED = "DRAM", "shared-memory"
WEIGHTS, CACHE, ACTIVATIONS = "weights", "cache and parameters", "activations"
POINTS = 512
"""Values that a counter is drawn with, at most."""


def find_counters(table: Table) -> tuple[Series, ...]:
    found = []
    for (device, chiplet, name, unit), (times, values) in table.counters.items():
        times, values = thinned(times, values)
        found.append(
            Series(device, chiplet, name, unit, tuple(times.tolist()), tuple(values.tolist()))
        )
    return tuple(sorted(found, key=lambda s: (s.device, s.chiplet or 0, s.name)))


def thinned(times: I64, values: F64) -> tuple[I64, F64]:
    """At most POINTS of the values: of those that are drawn together the largest."""
    if len(times) <= POINTS:
        return times, values
    first = np.linspace(0, len(times), POINTS, endpoint=False).astype(np.int64)
    return times[first], np.maximum.reduceat(values, first)


def find_memory(table: Table) -> Memory:
    peaks: dict[str, int] = {}
    moments: dict[str, int] = {}
    owners: list[Owner] = []
    weights = _weights(table)
    for memory in (DRAM, SHARED):
        series = {
            (device, chiplet): found
            for (device, chiplet, name, _), found in table.counters.items()
            if name == memory + IN_USE and len(found[0])
        }
        if not series:
            continue
        moment, peaks[memory] = _peak(list(series.values()))
        moments[memory] = moment
        for (device, chiplet), (times, values) in series.items():
            place = int(np.searchsorted(times, moment, side="right")) - 1
            used = round(float(values[place])) if place >= 0 else 0
            if memory == DRAM:
                held = min(weights.get((device, chiplet), 0), used)
                owners.append(Owner(device, chiplet, memory, WEIGHTS, held))
                owners.append(Owner(device, chiplet, memory, CACHE, used - held))
            else:
                running = _running(table, device, chiplet, moment)
                owner = f"{ACTIVATIONS}, while {running} ran" if running else ACTIVATIONS
                owners.append(Owner(device, chiplet, memory, owner, used))
    return Memory(peaks, moments, tuple(owners))


def _peak(series: list[tuple[I64, F64]]) -> tuple[int, int]:
    """When the sum of some counters is largest, and how much it is then."""
    moments = np.unique(np.concatenate([times for times, _ in series]))
    total = np.zeros(len(moments))
    for times, values in series:
        place = np.searchsorted(times, moments, side="right") - 1
        total += np.where(place >= 0, values[np.maximum(place, 0)], 0.0)
    at = int(np.argmax(total))
    return int(moments[at]), round(float(total[at]))


def _weights(table: Table) -> dict[tuple[str, int | None], int]:
    """Bytes of weights by chiplet, each counted once however often it is read."""
    found: dict[tuple[str, int | None], dict[tuple[int, int], int]] = defaultdict(dict)
    for kind in table.kinds:
        pieces = kind.pieces
        for n in range(len(pieces)):
            name = table.text(int(pieces.kind[n]))
            nbytes = 0
            if name == "weight_copy":
                nbytes = max(int(kind.nbytes[0, n]), 0)
            elif name == "linear" and "dram" in table.text(int(pieces.route[n])):
                form = table.text(int(pieces.format[n]))
                nbytes = weight_bytes(table.text(int(pieces.shape[n])), form)
            if nbytes:
                lane = table.lanes[int(pieces.lane[n])]
                key = int(pieces.operation[n]), int(pieces.index[n])
                found[lane.device, lane.chiplet][key] = nbytes
    return {place: sum(parts.values()) for place, parts in found.items()}


def _running(table: Table, device: str, chiplet: int | None, moment: int) -> str:
    """An operation that ran on a chiplet at a moment, or had begun last before it."""
    best, found = -1, ""
    for kind in table.kinds:
        lanes = [
            number
            for number, lane in enumerate(table.lanes)
            if (lane.device, lane.chiplet, lane.kind) == (device, chiplet, COMPUTE)
        ]
        mine = np.flatnonzero(np.isin(kind.pieces.lane, lanes))
        runs = np.flatnonzero(table.runs.start[kind.runs] <= moment)
        if not len(mine) or not len(runs):
            continue
        starts = kind.start[runs[-1], mine]
        begun = np.flatnonzero(starts <= moment)
        if len(begun) and int(starts[begun].max()) > best:
            best = int(starts[begun].max())
            piece = int(mine[begun[int(np.argmax(starts[begun]))]])
            found = table.text(int(kind.pieces.operation[piece]))
    return found
