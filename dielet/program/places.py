"""Where values are when every chiplet has a memory of its own: which columns each chiplet holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from dielet.errors import CapacityError, InternalError
from dielet.formats.packed import PANEL
from dielet.program.buffers import Buffer
from dielet.program.memory import aligned
from dielet.program.types import Operand

Interval = tuple[int, int]


@dataclass
class Local:
    """One chiplet's buffer for a value of so many `columns`; it begins at column `origin`."""

    buffer: Buffer
    columns: int
    origin: int
    present: list[Interval] = field(default_factory=list)

    def operands(self, role: str, rows: int, lo: int, hi: int) -> list[Operand]:
        """Operands for columns [lo, hi) of the value, all rows; its last panel is always whole."""
        hi = aligned(hi, PANEL) if hi >= self.columns else hi
        return self.buffer.operands(role, (0, rows), (lo - self.origin, hi - self.origin))

    def add(self, lo: int, hi: int) -> None:
        self.present = united([*self.present, (lo, hi)])


@dataclass
class Value:
    """A value and its buffers by chiplet; `made` are the columns that a chiplet computed itself."""

    columns: int
    made: dict[int, list[Interval]] = field(default_factory=dict)
    local: dict[int, Local] = field(default_factory=dict)

    def make(self, chiplet: int, lo: int, hi: int) -> None:
        self.made[chiplet] = united([*self.made.get(chiplet, []), (lo, hi)])

    def source(self, at: int, end: int, near: range) -> tuple[int, int]:
        """(chiplet, hi): who can send the columns from `at` on, up to hi <= end.

        First whoever made them on the same device, then whoever has them there, then anybody.
        """
        makers = [(c, self.made[c]) for c in near if c in self.made]
        holders = [(c, self.local[c].present) for c in near if c in self.local]
        for chiplet, intervals in (*makers, *holders, *self.made.items()):
            for lo, hi in intervals:
                if lo <= at < hi:
                    return chiplet, min(hi, end)
        raise InternalError(f"no chiplet holds column {at}")


def united(intervals: list[Interval]) -> list[Interval]:
    """The same columns as disjoint intervals in order."""
    found: list[Interval] = []
    for lo, hi in sorted(intervals):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(hi, found[-1][1]))
        elif lo < hi:
            found.append((lo, hi))
    return found


def missing(present: list[Interval], lo: int, hi: int) -> list[Interval]:
    """What of [lo, hi) is not in `present`, which is disjoint and in order."""
    found = []
    for begin, end in present:
        if lo < min(begin, hi):
            found.append((lo, min(begin, hi)))
        lo = max(lo, end)
    if lo < hi:
        found.append((lo, hi))
    return found


class Ring:
    """A scratchpad that pieces of weights pass through, one behind the other."""

    def __init__(self, size: int, slots: int) -> None:
        self.size, self.piece = size, size // slots
        self._cursor = 0
        self.high_water = 0

    def take(self, nbytes: int) -> int:
        """Room for the next piece; what it overwrites is the oldest."""
        if nbytes > self.size:
            raise CapacityError(
                f"a piece of weights of {nbytes} bytes does not fit the scratchpad of {self.size}; "
                "give the device file a larger [memory.scratchpad]"
            )
        if self._cursor + nbytes > self.size:
            self._cursor = 0
        offset = self._cursor
        self._cursor = aligned(offset + nbytes)
        self.high_water = max(self.high_water, offset + nbytes)
        return offset
