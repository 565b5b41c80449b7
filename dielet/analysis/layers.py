"""Layer by layer: time, engines, imbalance, and the heat map of operations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from dielet.analysis.operations import imbalance_of
from dielet.analysis.schema import Heat, Layer
from dielet.analysis.table import F64, I64, Kind, Table
from dielet.analysis.traffic import DramSums

_PATH = re.compile(r"[\w.]*?\.\d+\.")
"""Everything up to and including the layer's number."""


def layer_numbers(table: Table, kind: Kind) -> I64:
    return np.array([table.layer[n] for n in kind.pieces.operation.tolist()], np.int64)


def chiplet_numbers(table: Table, kind: Kind) -> I64:
    lanes = [table.lanes[n] for n in kind.pieces.lane.tolist()]
    places = {key: n for n, key in enumerate(sorted({(x.device, x.chiplet or 0) for x in lanes}))}
    return np.array([places[x.device, x.chiplet or 0] for x in lanes], np.int64)


def wall(start: I64, end: I64) -> I64:
    """int64 [runs]: the time that any of the commands [runs, n] covers."""
    order = np.argsort(start, axis=1, kind="stable")
    start = np.take_along_axis(start, order, axis=1)
    latest = np.maximum.accumulate(np.take_along_axis(end, order, axis=1), axis=1)
    before = np.concatenate([start[:, :1], latest[:, :-1]], axis=1)
    total: I64 = np.maximum(latest - np.maximum(start, before), 0).sum(axis=1)
    return total


def find_layers(
    table: Table, dram: Sequence[DramSums], path: Mapping[str, Mapping[str, float]]
) -> tuple[Layer, ...]:
    """dram: by kind; path: ns on the critical path by phase and layer, per run."""
    sums: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    busy: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kind, moved in zip(table.kinds, dram, strict=True):
        numbers = layer_numbers(table, kind)
        shifted = numbers + 1
        uneven = imbalance_of(kind, shifted, chiplet_numbers(table, kind))
        time = kind.time()
        columns = {
            "bytes": moved.by_piece,
            "ops": kind.computed(),
            "time": time,
        }
        engines = [table.lanes[n].engine for n in kind.pieces.lane.tolist()]
        for layer in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == layer)
            total = sums[kind.phase, layer]
            for name, column in columns.items():
                total[name] += float(column[mine].sum())
            for rows in kind.blocks():
                walls = wall(kind.start[rows][:, mine], kind.end[rows][:, mine])
                total["wall"] += float(walls.sum())
            total["commands"] += len(mine) * len(kind.runs)
            total["imbalance"] += float(uneven[layer + 1]) * len(kind.runs)
            total["runs"] += len(kind.runs)
            for n in mine.tolist():
                busy[kind.phase, layer][engines[n]] += float(time[n])
    found = []
    for (phase, layer), total in sums.items():
        runs = table.runs.phase.count(phase)  # those without this layer too
        name = f"layer {layer}" if layer >= 0 else "no layer"
        found.append(
            Layer(
                phase=phase,
                layer=layer,
                commands=int(total["commands"]),
                wall_ns=total["wall"] / runs,
                time_ns=total["time"] / runs,
                path_ns=path[phase].get(name, 0.0) if phase in path else None,
                bytes=total["bytes"] / runs,
                ops=total["ops"] / runs,
                busy_ns={e: ns / runs for e, ns in busy[phase, layer].items()},
                imbalance=total["imbalance"] / total["runs"],
            )
        )
    return tuple(sorted(found, key=lambda row: (table.phases().index(row.phase), row.layer)))


def short_name(operation: str) -> str:
    """An operation without the path to its layer: `mlp.up_proj`, `mlp.down_proj + mlp.add`."""
    inner = operation.removeprefix("fused(").removesuffix(")")
    return " + ".join(_PATH.sub("", part, count=1) for part in inner.split("+"))


def find_heat(table: Table) -> tuple[Heat, ...]:
    found = []
    for phase in table.phases():
        cells: dict[tuple[int, str], float] = defaultdict(float)
        begun: dict[str, int] = {}
        runs = table.runs.phase.count(phase)
        for kind in table.of_phase(phase):
            time: F64 = kind.time().astype(np.float64)
            starts = (kind.start[0] - kind.start[0].min()).tolist()
            numbers = kind.pieces.operation.tolist()
            for number, ns, start in zip(numbers, time.tolist(), starts, strict=True):
                name = short_name(table.text(number))
                cells[table.layer[number], name] += ns
                begun[name] = min(begun.get(name, start), start)
        layers = sorted({layer for layer, _ in cells if layer >= 0})
        names = sorted({name for layer, name in cells if layer >= 0}, key=lambda n: (begun[n], n))
        if layers:
            values = tuple(
                tuple(cells.get((layer, name), 0.0) / runs for name in names) for layer in layers
            )
            found.append(Heat(phase, tuple(layers), tuple(names), values))
    return tuple(found)


def operation_imbalance(table: Table) -> dict[tuple[str, str, str, str], float]:
    """By (operation, phase, program, kind): the chiplets' imbalance, mean over layers and runs."""
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kind in table.kinds:
        pieces = kind.pieces
        keys = list(zip(pieces.operation.tolist(), pieces.kind.tolist(), strict=True))
        number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        group = np.array([number[key] for key in keys], np.int64)
        uneven = imbalance_of(kind, group, chiplet_numbers(table, kind))
        for (operation, name), place in number.items():
            key = table.group[operation], kind.phase, kind.program, table.text(name)
            sums[key][0] += float(uneven[place]) * len(kind.runs)
            sums[key][1] += len(kind.runs)
    return {key: total / count for key, (total, count) in sums.items()}
