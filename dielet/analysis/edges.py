"""Dependencies between the commands of a run: its arrows, and causes that are given in words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dielet.analysis.table import I32, I64, Lane, Pieces

_WAIT = re.compile(r"(.+)_(\d{1,9}) \(chiplet (\d{1,9})\)(?: and \d+ more)?", re.DOTALL)

Command = tuple[int, int, int]
"""Operation, index, and the chiplet's number over all devices of its model."""


@dataclass(frozen=True)
class Edges:
    """pairs: int32 [n, 2], from piece to piece, in order of the second.

    waits, resolved: causes given in words, and how many of them were found.  backward: edges that
    were left out because their source did not begin before their target.
    """

    pairs: I32
    waits: int
    resolved: int
    backward: int


def chiplet_numbers(lanes: Sequence[Lane], models: Mapping[str, int]) -> list[int]:
    """Per lane: its chiplet's number, counted over the devices of its model as causes count it.

    models: by device with commands its model's number.
    """
    places = sorted({(lane.device, lane.chiplet or 0) for lane in lanes if lane.device in models})
    number = {
        place: sum(models[device] == models[place[0]] for device, _ in places[:n])
        for n, place in enumerate(places)
    }
    return [number.get((lane.device, lane.chiplet or 0), 0) for lane in lanes]


def find_edges(
    pieces: Pieces,
    chiplets: Sequence[int],
    operations: Sequence[str],
    waits: Sequence[str],
    arrows: I32,
    start: I64,
    end: I64,
) -> Edges:
    """Edges between `pieces`.

    chiplets: by lane, as `chiplet_numbers` gives them; waits: what each piece waited for, in words;
    start and end: of one run.

    A command that was divided over workers is several pieces: all of them depend on all pieces of
    what one of them depends on.
    """
    command: list[Command] = [
        (operation, index, chiplets[lane])
        for operation, index, lane in zip(
            pieces.operation.tolist(), pieces.index.tolist(), pieces.lane.tolist(), strict=True
        )
    ]
    parts: dict[Command, list[int]] = defaultdict(list)
    for piece, key in enumerate(command):
        parts[key].append(piece)
    numbers = {name: number for number, name in enumerate(operations)}
    found = {(command[a], command[b]) for a, b in arrows.tolist()}
    total = resolved = 0
    for piece, words in enumerate(waits):
        for name, index, chiplet in _causes(words):
            source = numbers.get(name, -1), index, chiplet
            total += 1
            if source in parts:
                resolved += 1
                found.add((source, command[piece]))
    pairs = np.array(
        [(a, b) for source, target in found for a in parts[source] for b in parts[target]],
        np.int32,
    ).reshape(-1, 2)
    rank = np.empty(len(start), np.int64)
    rank[np.lexsort((end, start))] = np.arange(len(start))
    forward = rank[pairs[:, 0]] < rank[pairs[:, 1]]
    kept = pairs[forward]
    order = np.lexsort((kept[:, 0], kept[:, 1]))
    return Edges(kept[order], total, resolved, int((~forward).sum()))


def _causes(words: str) -> Iterator[tuple[str, int, int]]:
    """`a_0 (chiplet 1), b_2 (chiplet 0) and 3 more`, apart."""
    for part in words.split(", ") if words else ():
        if match := _WAIT.fullmatch(part):
            yield match[1], int(match[2]), int(match[3])
