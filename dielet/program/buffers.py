"""The buffers that carry a graph's values between commands."""

from __future__ import annotations

from dataclasses import dataclass

from dielet.formats.packed import PANEL
from dielet.graph import activation_group
from dielet.program.commands.entry import ITEM_SIZE
from dielet.program.memory import LINE, Arena, aligned
from dielet.program.types import Operand, Region

ROW_TILE = 16
ALIAS = 2048  # rows this many bytes apart, or a multiple, compete for few sets of the cache


@dataclass(frozen=True)
class Part:
    """One array of a buffer: rows of `stride` bytes; `per` columns of the value make one item."""

    offset: int
    stride: int
    dtype: str
    per: int


@dataclass(frozen=True)
class Buffer:
    """A value [rows, columns]: one array, or codes, scales and sums when it is int8."""

    space: str
    rows: int
    columns: int
    parts: dict[str, Part]  # by role suffix: '', '_scale', '_sum'

    def operands(self, role: str, rows: tuple[int, int], columns: tuple[int, int]) -> list[Operand]:
        """Operands for a rectangle of the value; the last panel is always whole."""
        lo, hi = columns
        hi = aligned(hi, PANEL) if hi >= self.columns else hi
        return [
            Operand(role + suffix, self._region(part, rows, lo, hi), part.dtype)
            for suffix, part in self.parts.items()
        ]

    def _region(self, part: Part, rows: tuple[int, int], lo: int, hi: int) -> Region:
        size = ITEM_SIZE[part.dtype]
        offset = part.offset + rows[0] * part.stride + lo // part.per * size
        width = (hi - lo) // part.per * size
        return Region(self.space, offset, rows[1] - rows[0], part.stride, width)


def make_buffer(space: str, arena: Arena, rows: int, columns: int, fmt: str) -> Buffer:
    """Take room for a value in number format `fmt`: f32, bf16 or int8g<group>."""
    width = aligned(columns, PANEL)
    group = activation_group(fmt)
    room = 1 if rows == 1 else aligned(rows, ROW_TILE)  # kernels work on tiles of rows
    spread = space != "io"  # what the host fills and reads stays one plain array
    if not group:
        return Buffer(space, rows, columns, {"": _part(arena, room, width, fmt, 1, spread)})
    parts = {
        "": _part(arena, room, width, "s8", 1, spread),
        "_scale": _part(arena, room, width, "f32", group),
        "_sum": _part(arena, room, width, "i32", group),
    }
    return Buffer(space, rows, columns, parts)


def _part(arena: Arena, rows: int, width: int, dtype: str, per: int, spread: bool = False) -> Part:
    """An array of `rows`; `spread` keeps the same columns of its rows out of one cache set."""
    stride = width // per * ITEM_SIZE[dtype]
    if spread and rows > 1 and stride % ALIAS == 0:
        stride += 2 * LINE
    return Part(arena.take(rows * stride), stride, dtype, per)
