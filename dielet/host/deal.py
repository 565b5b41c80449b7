"""Deal a program's commands over workers: any number of chiplets on any number of cores.

The chiplets' parts of one operation lie side by side; each worker takes an equal stretch of them,
so that a chiplet may be split over workers and a worker may serve several chiplets.  A worker runs
its pieces in the program's order, which is an order in which all dependencies point back: nothing
can deadlock, and a piece waits only for what other workers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from dielet.program import Program


@dataclass(frozen=True)
class Piece:
    """The part [lo/den, hi/den) of a command; `waits` are (worker, pieces it must have done)."""

    command: int
    lo: int
    hi: int
    den: int
    waits: tuple[tuple[int, int], ...]


def deal(program: Program, workers: int) -> tuple[tuple[Piece, ...], ...]:
    """Each worker's pieces, in order, with the fewest waits that keep all dependencies."""
    dealt: list[list[Piece]] = [[] for _ in range(workers)]
    parts: list[list[tuple[int, int]]] = []  # per command: (worker, its count after the part)
    clocks: list[list[list[int]]] = [[] for _ in range(workers)]  # known progress after each piece
    for _, group in groupby(range(len(program.commands)), key=program.groups.__getitem__):
        members = list(group)
        for place, number in enumerate(members):
            deps = [part for dep in program.commands[number].deps for part in parts[dep]]
            parts.append([])
            for worker, lo, hi in stretches(place, len(members), workers):
                waits, clock = _needed(deps, clocks, worker, len(dealt[worker]))
                dealt[worker].append(Piece(number, lo, hi, workers, waits))
                clocks[worker].append(clock)
                parts[number].append((worker, len(dealt[worker])))
    return tuple(tuple(pieces) for pieces in dealt)


def stretches(place: int, members: int, workers: int) -> list[tuple[int, int, int]]:
    """(worker, lo, hi): who runs which part, in 1/workers, of member `place` of `members`."""
    found = []
    for worker in range(workers):
        lo = max(worker * members - place * workers, 0)
        hi = min((worker + 1) * members - place * workers, workers)
        if lo < hi:
            found.append((worker, lo, hi))
    return found


def _needed(
    deps: list[tuple[int, int]], clocks: list[list[list[int]]], worker: int, done: int
) -> tuple[tuple[tuple[int, int], ...], list[int]]:
    """Waits not implied by the worker's own past or by each other, and the clock after them."""
    clock = list(clocks[worker][-1]) if done else [0] * len(clocks)
    waits = []
    for other, count in sorted(set(deps), key=lambda dep: dep[1], reverse=True):
        if count > clock[other]:
            waits.append((other, count))
            clock = [max(a, b) for a, b in zip(clock, clocks[other][count - 1], strict=True)]
    clock[worker] = done + 1
    return tuple(waits), clock
