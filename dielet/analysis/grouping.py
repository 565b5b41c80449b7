"""Runs of one kind found together: those with the same commands on the same lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.table import I32, I64, STRETCH, Bool, Runs

NONE = -1


@dataclass(frozen=True)
class Group:
    """Runs of one kind: their numbers, and [runs, pieces] where their commands stand."""

    runs: I64
    places: I32


def groups_of(rest: I32, lane: NDArray[np.integer], run: I32, runs: Runs) -> Iterator[Group]:
    """Runs with the same commands on the same lanes, and the same phase and program.

    Commands are in order of run; `rest` is used up.
    """
    lanes = int(lane.max()) + 1
    small = int(rest.max() + 1) * lanes < 1 << 31
    code: NDArray[np.integer] = rest if small else rest.astype(np.int64)
    code *= lanes
    code += lane
    del rest
    piece, count = _dense(code)
    del code
    first = firsts(run)
    length = np.diff(np.append(first, len(run)))
    if _repeats(piece, count, first):
        piece, count = _told_apart(piece, count, first, length)
    marks = np.random.default_rng(0).integers(0, 1 << 62, count, np.int64)
    sums = np.empty(len(first), np.int64)
    for low, high in stretches(first, len(run)):
        mine = marks[piece[first[low] : first[high] if high < len(first) else len(run)]]
        sums[low:high] = np.add.reduceat(mine, first[low:high] - first[low])
    by_kind: dict[tuple[int, int, str, str], list[int]] = {}
    for n, number in enumerate(run[first].tolist()):
        key = int(sums[n]), int(length[n]), runs.phase[number], runs.program[number]
        by_kind.setdefault(key, []).append(n)
    for members in by_kind.values():
        chosen = np.array(members)
        columns = int(length[chosen[0]])
        sample = first[chosen[0]] + np.arange(columns)
        rank = np.full(count, NONE, np.int32)
        # Lane by lane, each in order of start: as executors take them, mostly.
        rank[piece[sample][np.argsort(lane[sample], kind="stable")]] = np.arange(columns)
        places = np.empty((len(chosen), columns), np.int32)
        for row, begin in enumerate(first[chosen].tolist()):
            places[row, rank[piece[begin : begin + columns]]] = np.arange(begin, begin + columns)
        yield Group(run[first[chosen]].astype(np.int64), places)


def _dense(key: NDArray[np.integer]) -> tuple[I32, int]:
    """Keys as numbers without gaps, in the same order, and how many there are."""
    there = np.zeros(int(key.max()) + 1, bool)
    there[key] = True
    number = np.cumsum(there, dtype=np.int32) - np.int32(1)
    return number[key], int(number[-1]) + 1


def firsts(values: NDArray[np.integer]) -> I64:
    """Where a value begins that the place before does not have."""
    return np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)


def stretches(first: I64, total: int) -> Iterator[tuple[int, int]]:
    """Ranges of runs that have about STRETCH commands together, or one run each."""
    low = 0
    while low < len(first):
        high = max(int(np.searchsorted(first, first[low] + STRETCH, side="right")) - 1, low + 1)
        if first[low] + STRETCH >= total:
            high = len(first)
        yield low, high
        low = high


def _repeats(piece: I32, count: int, first: I64) -> bool:
    """Whether a run has a piece twice."""
    for low, high in stretches(first, len(piece)):
        end = int(first[high]) if high < len(first) else len(piece)
        mine = piece[first[low] : end]
        length = np.diff(np.append(first[low:high], end))
        seen = np.bincount(mine, minlength=count) if high - low == 1 else None
        if seen is not None:
            if (seen > 1).any():
                return True
            continue
        key = np.repeat(np.arange(high - low), length) * np.int64(count) + mine
        there = np.zeros((high - low) * count, bool)
        there[key] = True
        if int(there.sum()) != len(key):
            return True
    return False


def _told_apart(piece: I32, count: int, first: I64, length: I64) -> tuple[I32, int]:
    """Pieces that a run has several of, as different pieces: the first, the second, and so on."""
    key = np.repeat(np.arange(len(first)), length) * np.int64(count) + piece
    order = np.argsort(key, kind="stable")
    begins = np.diff(key[order], prepend=NONE) != 0
    places = np.arange(len(key))
    number = np.empty(len(key), np.int64)
    number[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return _dense(number * count + piece)


def places_where(there: Bool) -> I32:
    """Where something is so."""
    parts = [
        (np.flatnonzero(there[low : low + STRETCH]) + low).astype(np.int32)
        for low in range(0, len(there), STRETCH)
    ]
    return np.concatenate(parts)


def distinct(track: NDArray[np.integer]) -> tuple[I64, I64, NDArray[np.integer]]:
    """Different values, where each is first, and per element which it is."""
    if track.dtype != np.int16:
        values, first, place = np.unique(track, return_index=True, return_inverse=True)
        return values, first, place.astype(np.int32)
    first = np.full(int(track.max()) + 1, NONE, np.int64)
    for low in range(0, len(track), STRETCH):
        found, at = np.unique(track[low : low + STRETCH], return_index=True)
        fresh = first[found] < 0
        first[found[fresh]] = low + at[fresh]
    values = np.flatnonzero(first >= 0)
    number = np.zeros(len(first), np.int16)
    number[values] = np.arange(len(values))
    return values, first[values], number[track]
