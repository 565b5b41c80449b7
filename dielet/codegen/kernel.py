"""What every kernel has in common: its key, and the six arguments it is called with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dielet.codegen.function import Function, Module, Pointer
from dielet.codegen.values import I64, PTR, VOID, Type, Value

Static = int | float | str | bool


@dataclass(frozen=True)
class KernelKey:
    """Names one kernel: its family and what is fixed when it is generated, sorted by name."""

    family: str
    static: tuple[tuple[str, Static], ...]

    @staticmethod
    def of(family: str, **static: Static) -> KernelKey:
        return KernelKey(family, tuple(sorted(static.items())))

    def __str__(self) -> str:
        return f"{self.family}({', '.join(f'{n}={v}' for n, v in self.static)})"

    @property
    def symbol(self) -> str:
        """The name of the function in object code: the same for equal keys, in every process."""
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:16]
        return f"{self.family}_{digest}"


class Kernel(Function):
    """A function `void(operands, params, binding, lo_num, hi_num, den)`; see `dielet.codegen`."""

    def __init__(self, module: Module, name: str) -> None:
        super().__init__(module, name, [PTR, PTR, PTR, I64, I64, I64], VOID)
        module.functions.append(self)
        self._operands = Pointer(self.args[0], PTR)
        self._params = Pointer(self.args[1], I64)
        self._binding = Pointer(self.args[2], I64)
        self._taken = 0
        self._params_taken = 0

    def operand(self, elem: Type) -> Pointer:
        """The next operand, in the order of the family's table."""
        self._taken += 1
        return Pointer(self._operands[self._taken - 1], elem)

    def param(self) -> Value:
        """The next run-time parameter, in the order of the family's table."""
        self._params_taken += 1
        return self._params[self._params_taken - 1]

    @property
    def past(self) -> Value:
        """Tokens that were in the cache before this chunk."""
        return self._binding[0]

    @property
    def valid(self) -> Value:
        """Rows of this chunk that mean something."""
        return self._binding[1]

    def position(self, row: Value, batch: bool) -> Value:
        """Where in its sequence a row stands: rows of a chunk follow each other, those of a batch
        are each the next token of a sequence of their own."""
        return self._binding[row * 2 + 2] if batch else self.past + row

    def cache(self, operand: Pointer, row: Value, batch: bool) -> Pointer:
        """The cache that a row uses: a batch's operand is an offset into each sequence's own."""
        return operand.at(self._binding[row * 2 + 3]) if batch else operand

    def own_rows(self) -> Value:
        """How many real rows a command has that owns rows [row0, row0 + rows) of the chunk.

        Takes the next two parameters, row0 and rows; the operands begin at row0.
        """
        row0, rows = self.param(), self.param()
        left = self.valid - row0
        return self.minimum((left < 0).choose(self.i64(0), left), rows)

    def share(self, units: Value) -> tuple[Value, Value]:
        """The units [first, last) that this piece of the command covers."""
        lo_num, hi_num, den = self.args[3:]
        return units * lo_num // den, units * hi_num // den

    @contextmanager
    def runs(self, rows: Value, columns: Value, width: int) -> Iterator[tuple[Value, Value]]:
        """For this piece's share of rows * columns / width units: (row, run within the row)."""
        per_row = columns // width if width > 1 else columns
        first, last = self.share(rows * per_row)
        with self.loop(first // per_row, (last + per_row - 1) // per_row) as row:
            begin, end = first - row * per_row, last - row * per_row
            begin = (begin < 0).choose(self.i64(0), begin)
            with self.loop(begin, self.minimum(end, per_row)) as run:
                yield row, run
