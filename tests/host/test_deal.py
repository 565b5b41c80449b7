"""Dealing over workers keeps every dependency, with waits alone."""

from __future__ import annotations

import pytest

from dielet.host.deal import deal, stretches
from dielet.program import Program
from tests.models import SPECS, plan


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("chiplets", [1, 3, 4])
@pytest.mark.parametrize("family", SPECS)
def test_pieces_wait_for_all_their_dependencies(family: str, chiplets: int, workers: int) -> None:
    for program in plan(SPECS[family], chiplets=chiplets).programs:
        check(program, workers)


def check(program: Program, workers: int) -> None:
    """Recompute, from the waits alone, what surely has completed before each piece starts."""
    dealt = deal(program, workers)
    clocks: list[list[list[int]]] = [[] for _ in dealt]
    where: dict[int, list[tuple[int, int]]] = {}
    cursor = [0] * workers
    while any(at < len(mine) for at, mine in zip(cursor, dealt, strict=True)):
        moved = False
        for worker, mine in enumerate(dealt):
            if cursor[worker] == len(mine):
                continue
            piece = mine[cursor[worker]]
            if any(cursor[other] < count for other, count in piece.waits):
                continue
            clock = list(clocks[worker][-1]) if clocks[worker] else [0] * workers
            for other, count in piece.waits:
                theirs = clocks[other][count - 1]
                clock = [max(a, b) for a, b in zip(clock, theirs, strict=True)]
            for dep in program.commands[piece.command].deps:
                for other, count in where[dep]:
                    assert clock[other] >= count, f"{program.name} {piece.command} after {dep}"
            cursor[worker] += 1
            clock[worker] = cursor[worker]
            clocks[worker].append(clock)
            where.setdefault(piece.command, []).append((worker, cursor[worker]))
            moved = True
        assert moved, f"{program.name}: all workers wait"


def test_stretches_are_even() -> None:
    for members in range(1, 9):
        for workers in range(1, 9):
            found = [s for place in range(members) for s in stretches(place, members, workers)]
            load = [0] * workers
            for worker, lo, hi in found:
                load[worker] += hi - lo
            assert set(load) == {members}
