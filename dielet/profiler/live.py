"""Which bytes of activations are in use during each command: those that are read again later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import gcd
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.program.commands import ENTRIES
from dielet.program.types import Command, Program, Region

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


def live_bytes(program: Program) -> dict[int, I64]:
    """By chiplet, per command: bytes of shared memory that are in use while it runs.

    A byte is in use from the command that writes it to the last one that reads it before it is
    written again, however many values share it; commands count in program order.  It belongs to
    the chiplet whose memory it is in, or where all share one, to that of the command that wrote it.
    """
    accesses = [_accesses(command) for command in program.commands]
    by_space: dict[str, list[Region]] = defaultdict(list)
    for reads, writes in accesses:
        for region in (*reads, *writes):
            by_space[region.space].append(region)
    chiplets = sorted({queue.chiplet for queue in program.queues})
    live = {chiplet: np.zeros(len(accesses), np.int64) for chiplet in chiplets}
    for space, regions in by_space.items():
        sizes, atoms = _atoms(regions)
        read, written = (
            np.array([_touched(each[side], space, atoms, len(sizes)) for each in accesses])
            for side in (0, 1)
        )
        during = _live(read, written)
        _, _, own = space.partition(".")
        if own:
            live.setdefault(int(own), np.zeros(len(accesses), np.int64))
            live[int(own)] += during @ sizes
            continue
        writer = np.full(len(sizes), -1)
        for number, command in enumerate(program.commands):
            writer[written[number]] = program.queues[command.queue].chiplet
            for chiplet in chiplets:
                live[chiplet][number] += sizes[during[number] & (writer == chiplet)].sum()
    return live


def _accesses(command: Command) -> tuple[list[Region], list[Region]]:
    """The activations that a command reads, and those that it writes."""
    entry = ENTRIES[command.kind]
    reads, writes = (
        [o.region for o in command.operands if o.role in roles and _shared(o.region.space)]
        for roles in (entry.read_roles(), entry.written_roles())
    )
    return reads, writes


def _shared(space: str) -> bool:
    return space.split(".")[0] == "shared"


def _atoms(regions: Iterable[Region]) -> tuple[I64, dict[Region, I64]]:
    """(bytes of each atom, the atoms of each region): bytes that are in the same regions are one.

    Programs use few different regions, over and over; so all further work is on a few atoms.
    """
    different = list(dict.fromkeys(regions))
    grain = gcd(*(n for r in different for n in (r.offset, r.width, r.stride * (r.rows > 1))))
    end = max(region.end for region in different) // grain
    cells = np.zeros(end, np.uint64)
    draw = Random(0).getrandbits  # numpy's generator is not loaded else
    marks = [np.uint64(draw(64)) for _ in different]
    for mark, region in zip(marks, different, strict=True):
        found = _cells(cells, region, grain)
        np.bitwise_xor(found, mark, out=found)  # who shares a cell, in one number
    firsts = np.flatnonzero(np.r_[True, cells[1:] != cells[:-1]])
    atom_of = np.unique(cells[firsts], return_inverse=True)[1]
    lengths = np.diff(np.r_[firsts, end])
    sizes = np.bincount(atom_of, lengths).astype(np.int64) * grain
    numbers = np.repeat(atom_of.astype(np.int32), lengths)
    count = len(sizes)
    return sizes, {
        region: np.flatnonzero(np.bincount(_cells(numbers, region, grain).ravel(), minlength=count))
        for region in different
    }


def _touched(found: list[Region], space: str, atoms: dict[Region, I64], count: int) -> Mask:
    """bool [atoms]: those of one space that regions consist of."""
    mask = np.zeros(count, bool)
    for region in found:
        if region.space == space:
            mask[atoms[region]] = True
    return mask


def _cells(cells: NDArray[Any], region: Region, grain: int) -> NDArray[Any]:
    """[rows, cells]: those of a region, a view."""
    shape = region.rows, region.width // grain
    strides = region.stride // grain * cells.itemsize if region.rows > 1 else 0, cells.itemsize
    start = cells[region.offset // grain :]
    return np.lib.stride_tricks.as_strided(start, shape, strides)


def _live(reads: Mask, writes: Mask) -> Mask:
    """bool [commands, atoms]: what is in use during each command."""
    later = np.zeros(reads.shape[1], bool)  # what is read after the command, before it is written
    during = np.zeros_like(reads)
    for number in range(len(reads) - 1, -1, -1):
        before = later & ~writes[number] | reads[number]
        during[number] = later | before | writes[number]
        later = before
    # What was never written, as rows of padding, holds nothing.
    return during & np.logical_or.accumulate(writes, axis=0)
