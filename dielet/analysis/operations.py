"""Operations by time, by wasted time, by shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dielet.analysis.schema import Operation, Shape
from dielet.analysis.table import F64, I64, Kind, Table

UNKNOWN = "unknown"

Key = tuple[str, str, str, str]
"""Operation, phase, program, kind."""


@dataclass(frozen=True)
class Sums:
    """Sums over all runs of a kind, by piece; f64 [pieces].

    known: the time of those commands whose share of the peak is known; used: that time x share.
    bound: [bounds + 1, pieces], time by what bounded it, the last one for not known.
    """

    kind: Kind
    time: F64
    nbytes: F64
    ops: F64
    known: F64
    used: F64
    bound: F64


def sums_of(kind: Kind, bounds: int) -> Sums:
    pieces = len(kind.pieces)
    time, nbytes, ops, known, used = (np.zeros(pieces) for _ in range(5))
    bound = np.zeros((bounds + 1) * pieces)
    for rows in kind.blocks():
        duration, percent = kind.end[rows] - kind.start[rows], kind.percent[rows]
        said = duration * (percent >= 0)
        time += duration.sum(axis=0)
        nbytes += np.maximum(kind.nbytes[rows], 0).sum(axis=0)
        ops += np.maximum(kind.ops[rows], 0).sum(axis=0)
        known += said.sum(axis=0)
        used += (said * np.minimum(percent, 100)).sum(axis=0) / 100
        code = (kind.bound[rows].astype(np.int64) + 1) * pieces + np.arange(pieces)
        bound += np.bincount(code.ravel(), duration.ravel(), len(bound))
    # What is not known, whose number is -1, comes last.
    by_bound = np.roll(bound.reshape(bounds + 1, pieces), -1, axis=0)
    return Sums(kind, time, nbytes, ops, known, used, by_bound)


@dataclass
class Total:
    """What commands that belong together add up to."""

    commands: int = 0
    time: float = 0.0
    nbytes: float = 0.0
    ops: float = 0.0
    known: float = 0.0
    used: float = 0.0
    bound: Counter[str] = field(default_factory=Counter)
    words: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def share(self) -> float | None:
        return self.used / self.known if self.known else None

    @property
    def wasted(self) -> float | None:
        return self.known - self.used if self.known else None


def totals(
    table: Table, sums: list[Sums], key: Callable[[Kind, int], tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], Total]]:
    """Sums of the commands with equal keys, of pieces of kinds."""
    found: dict[tuple[str, ...], Total] = {}
    names = (*table.bounds, UNKNOWN)
    for each in sums:
        pieces, runs = each.kind.pieces, len(each.kind.runs)
        words = {
            name: [table.text(n) for n in getattr(pieces, name).tolist()]
            for name in ("shape", "format", "route")
        }
        columns = (each.time, each.nbytes, each.ops, each.known, each.used)
        rows = zip(*(column.tolist() for column in columns), each.bound.T.tolist(), strict=True)
        for piece, (time, nbytes, ops, known, used, bound) in enumerate(rows):
            chosen = key(each.kind, piece)
            total = found.get(chosen)
            if total is None:
                total = found[chosen] = Total()
            total.commands += runs
            total.time += time
            total.nbytes += nbytes
            total.ops += ops
            total.known += known
            total.used += used
            for name, ns in zip(names, bound, strict=True):
                if ns:
                    total.bound[name] += ns
            for name, texts in words.items():
                total.words[name][texts[piece]] += 1
    yield from found.items()


def find_operations(
    table: Table,
    sums: list[Sums],
    imbalance: Mapping[Key, float],
    path: Mapping[Key, float],
) -> tuple[Operation, ...]:
    """imbalance and path (ns on the critical path per run): by operation, phase, program, kind."""
    whole = sum(float(each.time.sum()) for each in sums)
    steps: dict[tuple[str, str], int] = defaultdict(int)
    for kind in table.kinds:
        steps[kind.phase, kind.program] += len(kind.runs)

    def key(kind: Kind, piece: int) -> tuple[str, ...]:
        pieces = kind.pieces
        return (
            table.group[int(pieces.operation[piece])],
            kind.phase,
            kind.program,
            table.text(int(pieces.kind[piece])),
            table.lanes[int(pieces.lane[piece])].engine,
        )

    found = []
    for (operation, phase, program, kind_name, engine), total in totals(table, sums, key):
        seconds = total.time * 1e-9
        found.append(
            Operation(
                operation=operation,
                phase=phase,
                program=program,
                kind=kind_name,
                engine=engine,
                shape=total.words["shape"].most_common(1)[0][0],
                format=total.words["format"].most_common(1)[0][0],
                route=total.words["route"].most_common(1)[0][0],
                commands=total.commands,
                steps=steps[phase, program],
                time_ns=round(total.time),
                time_share=total.time / whole if whole else 0.0,
                mean_ns=total.time / total.commands,
                bytes=round(total.nbytes),
                ops=round(total.ops),
                bytes_per_s=total.nbytes / seconds if seconds else 0.0,
                ops_per_s=total.ops / seconds if seconds else 0.0,
                share=total.share,
                wasted_ns=total.wasted,
                bound={name: ns / total.time for name, ns in total.bound.most_common()},
                imbalance=imbalance.get((operation, phase, program, kind_name)),
                path_ns=path.get((operation, phase, program, kind_name)),
            )
        )
    return tuple(sorted(found, key=lambda o: -o.time_ns))


def find_shapes(table: Table, sums: list[Sums]) -> tuple[Shape, ...]:
    def key(kind: Kind, piece: int) -> tuple[str, ...]:
        pieces = kind.pieces
        words = (table.text(int(c[piece])) for c in (pieces.kind, pieces.shape, pieces.format))
        return (*words, kind.phase)

    found = [
        Shape(
            kind=kind,
            shape=shape,
            format=form,
            phase=phase,
            commands=total.commands,
            time_ns=round(total.time),
            mean_ns=total.time / total.commands,
            bytes=round(total.nbytes),
            ops=round(total.ops),
            share=total.share,
            wasted_ns=total.wasted,
        )
        for (kind, shape, form, phase), total in totals(table, sums, key)
    ]
    return tuple(sorted(found, key=lambda s: -s.time_ns))


def imbalance_of(kind: Kind, group: I64, chiplet: I64) -> F64:
    """Per group of pieces: the slowest chiplet's time over the mean, less one, mean over runs.

    group, chiplet: of each piece.  Groups on one chiplet have 0.
    """
    order = np.lexsort((chiplet, group))
    sorted_group, sorted_chiplet = group[order], chiplet[order]
    parts = np.flatnonzero(
        (np.diff(sorted_group, prepend=-1) != 0) | (np.diff(sorted_chiplet, prepend=-1) != 0)
    )
    of_part = sorted_group[parts]
    first = np.flatnonzero(np.diff(of_part, prepend=-1) != 0)
    count = np.diff(np.append(first, len(of_part)))
    excess = np.zeros(len(first))
    for rows in kind.blocks():
        duration = (kind.end[rows] - kind.start[rows])[:, order]
        times = np.add.reduceat(duration, parts, axis=1).astype(np.float64)
        largest = np.maximum.reduceat(times, first, axis=1)
        mean = np.add.reduceat(times, first, axis=1) / count
        share = np.divide(largest, mean, out=np.ones_like(mean), where=mean > 0)
        excess += (share - 1).sum(axis=0)
    out = np.zeros(int(group.max()) + 1)
    out[of_part[first]] = excess / len(kind.runs)
    return out
