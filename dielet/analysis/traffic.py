"""Bytes: by route, of the DRAM and the links, what is read again, what is small."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dielet.analysis.limits import Limits
from dielet.analysis.schema import Moved, Reread, Route, Traffic
from dielet.analysis.steps import PREFILL, Steps
from dielet.analysis.table import DMA, F64, I64, CounterKey, Kind, Table
from dielet.errors import UsageError
from dielet.formats.packed import WeightFormat
from dielet.profiler.names import Name

DRAM, CHIPLETS, HOST, DEVICES = "DRAM", "between chiplets", "to and from the host", "devices"
LINKS = "all links"
DRAM_COUNTER, LINK_COUNTER = "DRAM GB/s", "link GB/s"
WEIGHT = ".weight"
_PRODUCT = re.compile(r"\d+x(\d+) \. (\d+)x(\d+)")
_AGAIN = 1.01  # times that something is read, from which on it is said to be read again


def weight_bytes(shape: str, form: str) -> int:
    """Bytes of a linear's packed weights, by its shape (`1x576 . 576x128`); 0 if not known."""
    product = _PRODUCT.fullmatch(shape)
    if product is None:
        return 0
    try:
        return WeightFormat.parse(form).nbytes(int(product[3]), int(product[1]))
    except UsageError:
        return 0


@dataclass(frozen=True)
class DramSums:
    """Bytes of the DRAM that a kind's commands move: f64 [runs] and [pieces]."""

    by_run: F64
    by_piece: F64


def dram_bytes(table: Table, kind: Kind) -> DramSums:
    """What each command reads and writes in the DRAM, as far as is known, summed.

    Of a copy its bytes for each end that is in the DRAM, of a linear its weights, of attention
    all that it reads.  A command's parts share its weights by their bytes.
    """
    pieces = kind.pieces
    factor, weights = np.zeros(len(pieces)), np.zeros(len(pieces))
    for n in range(len(pieces)):
        route = table.text(int(pieces.route[n]))
        name = table.text(int(pieces.kind[n]))
        sides = route.split(" -> ")
        if table.lanes[int(pieces.lane[n])].kind == DMA:
            factor[n] = sum("dram" in side for side in sides)
        elif name == "linear" and "dram" in sides[0]:
            shape, form = table.text(int(pieces.shape[n])), table.text(int(pieces.format[n]))
            weights[n] = weight_bytes(shape, form)
        elif name == "attention" and "dram" in sides[0]:
            factor[n] = 1
    linears = np.flatnonzero(weights)
    command = _commands(table, kind)[linears]
    by_run, by_piece = np.zeros(len(kind.runs)), np.zeros(len(pieces))
    for rows in kind.blocks():
        known = np.maximum(kind.nbytes[rows], 0)
        moved = known * factor
        if len(linears):
            whole = np.zeros((len(known), int(command.max()) + 1))
            for column, place in zip(linears.tolist(), command.tolist(), strict=True):
                whole[:, place] += known[:, column]
            share = known[:, linears] / np.maximum(whole[:, command], 1)
            moved[:, linears] = share * weights[linears]
        by_run[rows] = moved.sum(axis=1)
        by_piece += moved.sum(axis=0)
    return DramSums(by_run, by_piece)


def _commands(table: Table, kind: Kind) -> I64:
    """Per piece: the number of its command, of which it may be one of several parts."""
    lanes = [table.lanes[n] for n in kind.pieces.lane.tolist()]
    keys = [
        (operation, index, lane.device, lane.chiplet)
        for operation, index, lane in zip(
            kind.pieces.operation.tolist(), kind.pieces.index.tolist(), lanes, strict=True
        )
    ]
    numbers: dict[tuple[int, int, str, int | None], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


@dataclass(frozen=True)
class Bytes:
    """Bytes of every run: of the DRAM by commands and by counters (None: there are none), and all
    that commands move.  f64 [runs]."""

    by_commands: F64
    by_counters: F64 | None
    links: F64 | None
    moved: F64

    @property
    def dram(self) -> F64:
        return self.by_commands if self.by_counters is None else self.by_counters


def bytes_of(table: Table, dram: Sequence[DramSums]) -> Bytes:
    """dram: by kind, as `dram_bytes` gives it."""
    by_commands, moved = np.zeros(len(table.runs)), np.zeros(len(table.runs))
    for kind, part in zip(table.kinds, dram, strict=True):
        by_commands[kind.runs] = part.by_run
        for rows in kind.blocks():
            moved[kind.runs[rows]] = np.maximum(kind.nbytes[rows], 0).sum(axis=1)
    return Bytes(by_commands, _integral(table, DRAM_COUNTER), _integral(table, LINK_COUNTER), moved)


def _integral(table: Table, name: str) -> F64 | None:
    """Bytes of every run by a counter of GB/s, which holds each value until the next.

    Where several models ran, perhaps at once, a run has the bytes of its own model's devices only.
    """
    keys: list[CounterKey] = [key for key in table.counters if key[2] == name]
    if not keys:
        return None
    total = np.zeros(len(table.runs))
    several = len(set(table.models.values())) > 1
    for key in keys:
        times, values = table.counters[key]
        passed = np.append(0.0, np.cumsum(values[:-1] * np.diff(times)))
        moved = np.interp(table.runs.end, times, passed)
        moved -= np.interp(table.runs.start, times, passed)
        total += moved * (table.model == table.models.get(key[0], -1)) if several else moved
    return total


def find_traffic(table: Table, steps: Steps, moved: Bytes, limits: Limits, small: int) -> Traffic:
    return Traffic(
        routes=_routes(table, small),
        moved=_moved(table, moved, limits),
        rereads=(*_rereads(table), *_chunks(table, steps)),
        small_bytes=small,
    )


def _link(table: Table, kind: str, route: str) -> str:
    """The link that a route crosses, if its words tell."""
    if "host" in re.findall(r"\w+", route):
        return HOST
    if kind == "device_copy":
        return DEVICES
    return CHIPLETS if "of chiplet" in route else ""


def _routes(table: Table, small: int) -> tuple[Route, ...]:
    found: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    for kind in table.kinds:
        columns = np.zeros((4, len(kind.pieces)))
        for rows in kind.blocks():
            nbytes, duration = kind.nbytes[rows], kind.end[rows] - kind.start[rows]
            is_small = (nbytes >= 0) & (nbytes < small)
            columns[0] += np.maximum(nbytes, 0).sum(axis=0)
            columns[1] += duration.sum(axis=0)
            columns[2] += is_small.sum(axis=0)
            columns[3] += (duration * is_small).sum(axis=0)
        for n in range(len(kind.pieces)):
            route = re.sub(r" of chiplet \d+", " of chiplet n", table.text(kind.pieces.route[n]))
            name = table.text(kind.pieces.kind[n])
            if not route:
                continue
            total = found[kind.phase, route, name]
            is_dma = table.lanes[int(kind.pieces.lane[n])].kind == DMA
            total[0] += len(kind.runs)
            total[1] += float(columns[0][n])
            total[2] += float(columns[1][n])
            total[3] += float(columns[2][n]) * is_dma
            total[4] += float(columns[3][n]) * is_dma
    out = [
        Route(
            phase=phase,
            route=route,
            kind=name,
            link=_link(table, name, route),
            commands=int(commands),
            bytes=int(nbytes),
            bytes_per_s=nbytes / (ns * 1e-9) if ns else 0.0,
            small=int(few),
            small_ns=int(few_ns),
        )
        for (phase, route, name), (commands, nbytes, ns, few, few_ns) in found.items()
    ]
    return tuple(sorted(out, key=lambda r: -r.bytes))


def _moved(table: Table, moved: Bytes, limits: Limits) -> tuple[Moved, ...]:
    phases = np.array(table.runs.phase)
    spans = table.runs.end - table.runs.start
    places: list[tuple[str, F64, float | None, str]] = []
    if moved.by_counters is not None or moved.by_commands.any():
        source = "commands" if moved.by_counters is None else "counters"
        peak = limits.dram * limits.count if limits.dram else None
        places.append((DRAM, moved.dram, peak, source))
    if moved.links is not None:
        places.append((LINKS, moved.links, None, "counters"))
    found = []
    for phase in table.phases():
        mine = phases == phase
        seconds = float(spans[mine].sum()) * 1e-9
        for place, nbytes, peak, source in places:
            total = float(nbytes[mine].sum())
            rate = total / seconds if seconds else 0.0
            found.append(
                Moved(
                    phase=phase,
                    place=place,
                    bytes=round(total),
                    per_step=total / int(mine.sum()),
                    bytes_per_s=rate,
                    peak_bytes_per_s=peak,
                    share=rate / peak if peak else None,
                    source=source,
                )
            )
    return tuple(found)


def _rereads(table: Table) -> tuple[Reread, ...]:
    """Weights that Neural DMA brings more often in a run than the products' shapes need."""
    found: dict[tuple[str, str], list[float]] = {}
    for kind in table.kinds:
        pieces = kind.pieces
        need: dict[str, int] = defaultdict(int)
        have: dict[str, float] = defaultdict(float)
        mean = kind.moved() / len(kind.runs)
        for n in range(len(pieces)):
            operation = table.text(int(pieces.operation[n]))
            if table.text(int(pieces.kind[n])) == "linear":
                shape, form = table.text(int(pieces.shape[n])), table.text(int(pieces.format[n]))
                for part in Name(0, layer=operation).operations:
                    need[part] += weight_bytes(shape, form)
            elif table.text(int(pieces.kind[n])) == "weight_copy" and operation.endswith(WEIGHT):
                have[operation.removesuffix(WEIGHT)] += float(mean[n])
        for operation, nbytes in have.items():
            if need.get(operation) and nbytes > _AGAIN * need[operation]:
                total = found.setdefault((kind.phase, operation), [0.0, 0.0])
                total[0] += nbytes * len(kind.runs)
                total[1] += need[operation] * len(kind.runs)
    rows = [
        Reread(phase, operation, have / need, round(have), round(have - need))
        for (phase, operation), (have, need) in found.items()
    ]
    return tuple(sorted(rows, key=lambda r: -r.extra_bytes))


def _chunks(table: Table, steps: Steps) -> tuple[Reread, ...]:
    """What is read once per chunk of a prompt, beyond once per prompt."""
    weights = np.zeros(len(table.runs))
    for kind in table.kinds:
        names = [table.text(n) for n in kind.pieces.kind.tolist()]
        copies = np.array([name == "weight_copy" for name in names])
        for rows in kind.blocks() if copies.any() else ():
            moved = np.maximum(kind.nbytes[rows], 0)
            weights[kind.runs[rows]] = moved[:, copies].sum(axis=1)
    by_answer: dict[int, list[float]] = defaultdict(list)
    for run in range(len(table.runs)):
        if table.runs.phase[run] == PREFILL:
            by_answer[steps.steps[int(steps.of_run[run])].answer].append(float(weights[run]))
    total = sum(sum(chunks) for chunks in by_answer.values())
    once = sum(max(chunks) for chunks in by_answer.values())
    if not once or total <= _AGAIN * once:
        return ()
    what = "all weights, once per chunk of the prompt"
    return (Reread(PREFILL, what, total / once, round(total), round(total - once)),)
