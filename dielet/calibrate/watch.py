"""Run a compiled model so that what enters each of its linears can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet.formats.bf16 import from_bf16
from dielet.host import Runtime
from dielet.host.memory import Bases
from dielet.host.tables import Tables, build_tables
from dielet.image import ModelFiles
from dielet.image.options import HEAD_ROWS
from dielet.program import Command, Program, Region, synchronise
from dielet.program.commands.values import dequantize_rows
from dielet.program.interpret import view

F32 = NDArray[np.float32]
See = Callable[[tuple[str, ...], F32], None]
"""Called with the parameters that read the same inputs, and those, f32 [rows, K]."""

_WEIGHTS = ("w", "w_gate", "w_up")


@dataclass(frozen=True)
class _Stop:
    """Commands of a program that run without a stop, then those about to read one `x`."""

    tables: Tables | None
    readers: tuple[Command, ...]


class WatchedRuntime(Runtime):
    """A runtime of programs for one chiplet on a host that halts before every linear."""

    def __init__(self, files: ModelFiles, threads: int | None = None) -> None:
        super().__init__(files, threads)
        self._see: See | None = None
        self._stops: dict[str, list[_Stop]] = {}
        shares = files.decoder.table.shares
        self._parameters = {share.offset: share.parameter for share in shares if share.K}

    def watch(self, tokens: NDArray[np.int32], see: See) -> Iterator[F32]:
        """Feed a text from its beginning: `see` gets the inputs of linears, a chunk of rows at a
        time; yields the hidden states of each chunk, f32 [rows, hidden], a copy."""
        state = self.new_state()
        for lo in range(0, len(tokens), self.chunk):
            self._see = see
            try:
                hidden = self._decode_chunk(state, tokens[lo : lo + self.chunk]).copy()
            finally:
                self._see = None
            yield hidden

    def logits(self, hidden: F32) -> Iterator[F32]:
        """The logits after each of some hidden states: f32 [vocab], overwritten by the next 16."""
        for lo in range(0, len(hidden), HEAD_ROWS):
            for found in self._head(hidden[lo : lo + HEAD_ROWS]):
                yield found.values

    def _run(self, tables: Tables, bases: Bases, past: int, valid: int) -> None:
        if self._see is None or tables.phase == "head":
            super()._run(tables, bases, past, valid)
            return
        if tables.name not in self._stops:
            self._stops[tables.name] = self._cut(self.files.program(tables.name))
        self._binding[:2] = past, valid
        for stop in self._stops[tables.name]:
            if stop.tables is not None:
                self._team.run(stop.tables, bases.table, self._binding)
            if stop.readers:
                names = [self._parameters[w.offset] for c in stop.readers for w in _weights(c)]
                self._see(tuple(names), _inputs(stop.readers[0], bases, valid))

    def _cut(self, program: Program) -> list[_Stop]:
        """The program in stretches that end before a linear whose inputs were not yet seen."""
        commands, end = program.commands, len(program.commands)
        firsts = [
            at
            for at, command in enumerate(commands)
            if _weights(command) and not (at and _same_inputs(commands[at - 1], command))
        ]
        stops = []
        for lo, hi in pairwise([0, *firsts, end]):
            run = takewhile(partial(_same_inputs, commands[hi]), commands[hi:]) if hi < end else ()
            stops.append(_Stop(self._stretch(program, lo, hi), tuple(run)))
        return stops

    def _stretch(self, program: Program, lo: int, hi: int) -> Tables | None:
        """Tables of commands [lo, hi), with waits among themselves alone."""
        if lo == hi:
            return None
        part = msgspec.structs.replace(
            program, commands=program.commands[lo:hi], groups=program.groups[lo:hi]
        )
        part = synchronise(part)
        return build_tables(part, self._team.workers, self._library.address, lambda: part)


def _weights(command: Command) -> list[Region]:
    """The regions of weights that a command multiplies its inputs by."""
    return [o.region for o in command.operands if o.role in _WEIGHTS and o.dtype == "packed"]


def _same_inputs(command: Command, other: Command) -> bool:
    if not (_weights(command) and _weights(other)):
        return False
    return command.kind == other.kind and command.operand("x") == other.operand("x")


def _inputs(command: Command, bases: Bases, valid: int) -> F32:
    """What enters a command, f32 [rows, K]; of a mixture's sum a row for each chosen expert."""
    operands = {o.role: o for o in command.operands if o.role in ("x", "x_scale")}
    memory = {o.region.space: bases[o.region.space].view(np.uint8) for o in operands.values()}
    x = view(operands["x"], memory)[:valid]
    if command.attrs["format"] == "bf16":
        values = from_bf16(x)  # type: ignore[arg-type]
    else:
        scale = view(operands["x_scale"], memory)[:valid]
        values = dequantize_rows(x, scale)  # type: ignore[arg-type]
    K = int(command.attrs["K"])
    return np.ascontiguousarray(values[:, : values.shape[1] // K * K]).reshape(-1, K)
