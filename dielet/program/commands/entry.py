"""One entry per command: its engine, operands, meaning, cost and kernel all in one place.

`explain`, the command reference, the conformance test, the simulator's cost and the host's kernels
are derived from the entry.  Adding a command is adding one entry (and a kernel family).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dielet.errors import InternalError
from dielet.program.types import Attr, Command, Cost, Operand

Array = NDArray[Any]
Values = Mapping[str, Array]
"""Operand views by role: [rows, columns] of the operand's dtype; packed weights as bytes."""


@dataclass(frozen=True)
class Run:
    """What is bound at run time: tokens already in the cache, and real rows of this chunk."""

    past: int
    valid: int
    pasts: tuple[int, ...] = ()  # of a batch: tokens already in each row's own cache

    def positions(self, batch: bool) -> NDArray[np.int64]:
        """Where each real row stands in its sequence."""
        if batch:
            return np.array(self.pasts[: self.valid], np.int64)
        return np.arange(self.past, self.past + self.valid)


class Entry:
    """Base of all entries; subclasses fill in the parts."""

    kind: ClassVar[str]
    engine: ClassVar[str]  # neural, general, or dma: the class of engine, for devices to map
    reads: ClassVar[str]  # roles in order; `?` marks those that an attribute may leave out
    writes: ClassVar[str]
    updates: ClassVar[str] = ""  # roles both read and written
    static: ClassVar[tuple[str, ...]]  # attrs that select the kernel
    options: ClassVar[tuple[str, ...]] = ()  # .. those too, where a command has them
    others: ClassVar[tuple[str, ...]] = ()  # attrs that do not
    packed: ClassVar[str] = ""  # roles whose rows the kernel takes to lie without gaps
    tolerance: ClassVar[float] = 2e-5  # of a kernel, as a share of the result's largest magnitude

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        """Compute in numpy, writing the views of the written operands: the specification."""
        raise InternalError(f"command {self.kind} has no meaning")

    def params(self, c: Command) -> tuple[int, ...]:
        """The kernel's run-time parameters, in the order of its ABI."""
        raise InternalError(f"command {self.kind} has no kernel parameters")

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        """Operations by number format, of the full shape or of what `run` makes real."""
        return {}

    def variant(self, c: Command) -> str:
        """One word for what decides a kernel's speed beside its sizes, for tables of rates."""
        return "f32"

    def depth(self, c: Command, run: Run | None = None) -> int:
        """The inner size that a kernel's speed depends on beside its rows; 0 if there is none."""
        return 0

    def units(self, c: Command, run: Run | None = None) -> int:
        """How many indivisible parts the command has, for workers to share."""
        return max(self.rows(c, run), 1)

    def shape(self, c: Command, run: Run | None = None) -> tuple[int, int, int] | None:
        """Rows, columns and depth of a matrix product, for engines that work in tiles."""
        return None

    def rows(self, c: Command, run: Run | None = None, role: str = "y") -> int:
        """Rows of an operand: all, or those that `run` makes real."""
        rows = c.operand(role).region.rows
        if run is None:
            return rows
        return min(rows, max(run.valid - int(c.attrs.get("row0", 0)), 0))

    def moved(self, c: Command, operand: Operand, run: Run | None) -> int:
        """Bytes of an operand that the command reads or writes."""
        return self.rows(c, run, operand.role) * operand.region.width

    def widths(self, c: Command) -> dict[str, int]:
        """Bytes per row that operands must have by the attributes: kernels take it for granted."""
        return {}

    def dtypes(self, c: Command) -> dict[str, str]:
        """The dtype that operands must have by the attributes; f32 where this says nothing."""
        return {}

    def roles(self, c: Command) -> set[str]:
        """The operands that the attributes ask for: those without `?`, and which of the others."""
        order = f"{self.reads} {self.updates} {self.writes}".split()
        return {role for role in order if role[-1] != "?"} | self.asked(c)

    def asked(self, c: Command) -> set[str]:
        """The operands marked `?` that the attributes ask for."""
        return set()

    def attributes(self, c: Command) -> tuple[str, ...]:
        """The attributes that the command must have; `options` beside them it may have."""
        return (*self.static, *self.others)

    def complaint(self, c: Command) -> str:
        """What attributes and operands, each as it should be, say against each other."""
        return ""

    def operand_order(self) -> tuple[str, ...]:
        """All roles, in the order in which the kernel takes them."""
        return tuple((self.reads + " " + self.updates + " " + self.writes).replace("?", "").split())

    def read_roles(self) -> set[str]:
        """The operands that the command reads, if it has them."""
        return set((self.reads + " " + self.updates).replace("?", "").split())

    def written_roles(self) -> set[str]:
        """The operands that the command writes, if it has them."""
        return set((self.writes + " " + self.updates).replace("?", "").split())

    def kernel(self, c: Command) -> tuple[str, tuple[tuple[str, Attr], ...]]:
        """The kernel's family and static parameters."""
        names = [*self.static, *(name for name in self.options if name in c.attrs)]
        return self.kind, tuple(sorted((name, c.attrs[name]) for name in names))

    def cost(self, c: Command, run: Run | None = None) -> Cost:
        """What the command computes and moves: its full shape, or what `run` makes real of it."""
        reads, writes = self.read_roles(), self.written_roles()
        return Cost(
            ops=self.ops(c, run),
            reads={o.role: self.moved(c, o, run) for o in c.operands if o.role in reads},
            writes={o.role: self.moved(c, o, run) for o in c.operands if o.role in writes},
            shape=self.shape(c, run),
        )


def value_widths(role: str, columns: int, out: str, group: int) -> dict[str, int]:
    """`widths` of a value that is f32, bf16, or int8 with scales and sums."""
    if out != "int8":
        return {role: columns * (4 if out == "f32" else 2)}
    scales = columns // group * 4
    return {role: columns, f"{role}_scale": scales, f"{role}_sum": scales}


def value_dtypes(role: str, out: str) -> dict[str, str]:
    """`dtypes` of such a value."""
    if out != "int8":
        return {role: out}
    return {role: "s8", f"{role}_scale": "f32", f"{role}_sum": "i32"}


def value_roles(role: str, out: str) -> set[str]:
    """The operands beside the first that such a value has."""
    return {f"{role}_scale", f"{role}_sum"} if out == "int8" else set()


def group_complaint(columns: int, out: str, group: int) -> str:
    """What is wrong with the group of such a value."""
    if out != "int8":
        return "" if group == 0 else f"a group of {group} in {out}"
    whole = group > 0 and columns % group == 0
    return "" if whole else f"{columns} columns in groups of {group}"


ENTRIES: dict[str, Entry] = {}


def command(cls: type[Entry]) -> type[Entry]:
    """Class decorator: put the entry in the table."""
    ENTRIES[cls.kind] = cls()
    return cls


def by_kind(kind: str) -> Entry:
    entry = ENTRIES.get(kind)
    if entry is None:
        raise InternalError(f"no command is called '{kind}'; known: {', '.join(sorted(ENTRIES))}")
    return entry


def columns(c: Command, role: str) -> int:
    """Elements per row of an operand."""
    operand = c.operand(role)
    return operand.region.width // ITEM_SIZE[operand.dtype]


def stride(c: Command, role: str) -> int:
    """Distance of an operand's rows, in elements; 0 when the command has no such operand."""
    if not c.has(role):
        return 0
    operand = c.operand(role)
    return operand.region.stride // ITEM_SIZE[operand.dtype]


ITEM_SIZE = {"f32": 4, "i32": 4, "bf16": 2, "s8": 1, "u8": 1, "packed": 1}


def rows_of(c: Command, run: Run) -> int:
    """Real rows of a command that owns rows [row0, row0 + rows) of the chunk."""
    return int(np.clip(run.valid - int(c.attrs["row0"]), 0, c.operand("x").region.rows))
