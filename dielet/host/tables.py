"""A program as native tables: what the generated loop of each worker walks, without Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dielet.codegen import KernelKey
from dielet.codegen.worker import PIECE_WORDS
from dielet.host.deal import Piece, deal
from dielet.host.memory import address
from dielet.program import Program
from dielet.program.commands import ENTRIES
from dielet.program.types import Command, Phase, Region, space_number

I64 = NDArray[np.int64]


def kernel_key(command: Command) -> KernelKey:
    return KernelKey(*ENTRIES[command.kind].kernel(command))


@dataclass(frozen=True)
class Tables:
    """Native tables of one program on some workers, and where its time stamps go.

    stamps[w] is int64 [pieces of w, 2]: start and end in ticks of the clock, of the last run.
    """

    name: str
    phase: Phase
    tokens: int
    io: dict[str, Region]
    read: Callable[[], Program]
    pieces: tuple[tuple[Piece, ...], ...]
    piece_tables: tuple[I64, ...]
    stamps: tuple[I64, ...]
    piece_pointers: I64
    piece_counts: I64
    stamp_pointers: I64
    _alive: tuple[I64, ...]

    @cached_property
    def program(self) -> Program:
        """Read again when first asked for: running needs no commands, which are megabytes."""
        return self.read()


def build_tables(
    program: Program,
    workers: int,
    kernel: Callable[[KernelKey], int],
    read: Callable[[], Program],
) -> Tables:
    """Deal `program` over `workers` and lay its pieces out; `kernel` gives a key's address.

    `read` gives the same program, later and if at all.
    """
    pieces = deal(program, workers)
    operands, params, counts = _operands_and_params(program)
    entries = [kernel(kernel_key(c)) for c in program.commands]
    alive: list[I64] = [operands.flat, params.flat]
    tables = []
    for mine in pieces:
        waits = _flat([wait for piece in mine for pair in piece.waits for wait in pair])
        alive.append(waits)
        tables.append(_piece_table(mine, entries, operands, params, counts, waits))
    stamps = tuple(np.zeros((max(len(mine), 1), 2), np.int64) for mine in pieces)
    return Tables(
        name=program.name,
        phase=program.phase,
        tokens=program.tokens,
        io=program.io,
        read=read,
        pieces=pieces,
        piece_tables=tuple(tables),
        stamps=stamps,
        piece_pointers=_flat(address(t) for t in tables),
        piece_counts=_flat(len(mine) for mine in pieces),
        stamp_pointers=_flat(address(s) for s in stamps),
        _alive=tuple(alive),
    )


@dataclass(frozen=True)
class _Ragged:
    """Rows of different lengths in one array; `starts` in words."""

    flat: I64
    starts: tuple[int, ...]

    def at(self, row: int) -> int:
        return address(self.flat) + 8 * self.starts[row]


def _ragged(rows: Iterable[list[int]]) -> _Ragged:
    flat: list[int] = []
    starts = []
    for row in rows:
        starts.append(len(flat))
        flat += row
    return _Ragged(_flat(flat), tuple(starts))


def _flat(values: Iterable[int]) -> I64:
    """At least one word, so that there is always an address."""
    return np.array([*values] or [0], np.int64)


def _operands_and_params(program: Program) -> tuple[_Ragged, _Ragged, list[int]]:
    names = {o.region.space for c in program.commands for o in c.operands}
    space = {name: space_number(name) for name in names}
    operands = _ragged(
        [word for o in c.operands for word in (space[o.region.space], o.region.offset)]
        for c in program.commands
    )
    params = _ragged([*ENTRIES[c.kind].params(c)] for c in program.commands)
    return operands, params, [len(c.operands) for c in program.commands]


def _piece_table(
    pieces: tuple[Piece, ...],
    entries: list[int],
    operands: _Ragged,
    params: _Ragged,
    counts: list[int],
    waits: I64,
) -> I64:
    table = np.zeros((max(len(pieces), 1), PIECE_WORDS), np.int64)
    wait = address(waits)
    for row, piece in zip(table, pieces, strict=False):
        n = piece.command
        row[:9] = (
            entries[n],
            operands.at(n),
            counts[n],
            params.at(n),
            piece.lo,
            piece.hi,
            piece.den,
            len(piece.waits),
            wait,
        )
        wait += 16 * len(piece.waits)
    return table
