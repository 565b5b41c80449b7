"""The commands that the timeline can draw one by one, as packed arrays.

Runs of one kind share their commands' tracks and names, so a slice is two numbers: when it starts
after its run's start, and how long it takes.  Where a trace has more commands than a browser draws
with ease, whole steps are left out, evenly, and the page says how many; the bins of the timeline
still show all of them.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import msgspec
import numpy as np

from dielet.analysis.api import Analyzed
from dielet.analysis.table import I64, Kind, Table

MOST = 1_000_000
_END = 1 << 32  # of what a packed number can be


class Pieces(msgspec.Struct, frozen=True):
    """The commands of every run of a kind, in columns; lane, operation, kind: places in lists."""

    lane: list[int]
    operation: list[int]
    kind: list[int]


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A run that is drawn.  kind: place in `kinds`; at: where its commands begin in the arrays."""

    kind: int
    step: int
    start_ns: int
    duration_ns: int
    at: int


class Drawn(msgspec.Struct, frozen=True):
    """starts, durations: uint32, little-endian, deflated, base64; times `unit_ns` they are ns.

    lanes: device, chiplet and name of the tracks, in the order of the trace.  host: start, duration
    and name of what the host did.
    """

    lanes: list[tuple[str, int | None, str]]
    operations: list[str]
    command_kinds: list[str]
    kinds: list[Pieces]
    runs: list[Run]
    starts: str
    durations: str
    unit_ns: int
    host: list[tuple[int, int, str]]
    commands: int
    drawn: int


@dataclass(frozen=True)
class _Chosen:
    kind: int
    row: int
    number: int  # of the run, in order of start


def drawn_slices(done: Analyzed, most: int) -> Drawn:
    table = done.table
    chosen = _chosen(done, most)
    runs, starts, durations = [], [], []
    at = 0
    for one in chosen:
        kind, number = table.kinds[one.kind], one.number
        begin = int(table.runs.start[number])
        starts.append(kind.start[one.row] - begin)
        durations.append(kind.end[one.row] - kind.start[one.row])
        length = int(table.runs.end[number]) - begin
        runs.append(Run(one.kind, int(done.steps.of_run[number]), begin, length, at))
        at += len(kind.pieces)
    # 1 ns, unless a run takes longer than 4.3 s.
    unit = max((int(part.max(initial=0)) for part in (*starts, *durations)), default=0) // _END + 1
    operations = _places([kind.pieces.operation for kind in table.kinds])
    words = _places([kind.pieces.kind for kind in table.kinds])
    host = table.host
    spans = zip(host.start.tolist(), (host.end - host.start).tolist(), host.what, strict=True)
    return Drawn(
        lanes=[
            (x.device, x.chiplet, x.engine if x.name == x.engine else f"{x.engine}, {x.name}")
            for x in table.lanes
        ],
        operations=[table.text(text) for text in operations],
        command_kinds=[table.text(text) for text in words],
        kinds=[_pieces(kind, operations, words) for kind in table.kinds],
        runs=runs,
        starts=_packed(starts, unit),
        durations=_packed(durations, unit),
        unit_ns=unit,
        host=list(spans),
        commands=_commands(table),
        drawn=at,
    )


def _commands(table: Table) -> int:
    return sum(kind.start.size for kind in table.kinds)


def _chosen(done: Analyzed, most: int) -> list[_Chosen]:
    """All runs, or those of the steps that are drawn in full and of others in even distances."""
    table, steps = done.table, done.steps
    every = [
        _Chosen(kind, row, number)
        for kind, runs in enumerate(table.kinds)
        for row, number in enumerate(runs.runs.tolist())
    ]
    every.sort(key=lambda one: one.number)
    total = _commands(table)
    if total > most:
        count = max(int(len(steps.steps) * most / total), 1)
        kept = set(np.linspace(0, len(steps.steps) - 1, count).astype(int).tolist())
        kept |= {gantt.step for gantt in done.found.gantts}
        every = [one for one in every if int(steps.of_run[one.number]) in kept]
    return every


def _places(columns: list[np.ndarray]) -> dict[int, int]:
    """From places in the table's texts to places in a list of those that are used."""
    used = sorted({number for column in columns for number in np.unique(column).tolist()})
    return {text: place for place, text in enumerate(used)}


def _pieces(kind: Kind, operations: dict[int, int], words: dict[int, int]) -> Pieces:
    pieces = kind.pieces
    return Pieces(
        lane=pieces.lane.tolist(),
        operation=[operations[text] for text in pieces.operation.tolist()],
        kind=[words[text] for text in pieces.kind.tolist()],
    )


def _packed(parts: list[I64], unit: int) -> str:
    numbers = np.concatenate([np.zeros(0, np.int64), *parts]) // unit
    inside = np.clip(numbers, 0, _END - 1).astype("<u4")
    return base64.b64encode(zlib.compress(inside.tobytes(), 6)).decode()
