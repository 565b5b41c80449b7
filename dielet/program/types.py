"""What a program is made of.  Everything here is frozen, and is what the model directory stores."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

Attr = int | float | str | bool
Phase = Literal["prefill", "decode", "head"]

SPACES = ("weights", "head", "embedding", "cos", "sin", "kv", "shared", "io", "staging")
"""Address spaces, in the order of the host's table of base addresses.

weights    the decoder image, read-only              head      the head image, read-only
embedding  the table in token_embedding_weight.npy   cos, sin  the rotary tables [positions, D/2]
kv         the sequence's key and value cache        shared    the activations of this program
io         the program's inputs and outputs          staging   those on the device, in its DRAM

Chiplets with memories of their own have `shared.0`, `shared.1`, ... instead of one `shared`, and
`scratchpad.0`, ... for pieces of weights.
"""

LOCAL_SPACES = ("shared", "scratchpad")
MAX_CHIPLETS = 64
ALL_SPACES = len(SPACES) + len(LOCAL_SPACES) * MAX_CHIPLETS


@cache  # asked for every operand of every program, of a few names
def space_number(space: str) -> int:
    """An address space's place in the host's table; ValueError when there is no such space."""
    name, dot, chiplet = space.partition(".")
    if not dot:
        return SPACES.index(name)
    number = int(chiplet)
    if not 0 <= number < MAX_CHIPLETS or str(number) != chiplet:
        raise ValueError(f"no address space is called '{space}'")
    return len(SPACES) + LOCAL_SPACES.index(name) * MAX_CHIPLETS + number


class Region(msgspec.Struct, frozen=True, array_like=True):
    """A rectangle of bytes: `rows` runs of `width` bytes, `stride` bytes apart."""

    space: str
    offset: int
    rows: int
    stride: int
    width: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.width

    @property
    def end(self) -> int:
        return self.offset + (self.rows - 1) * self.stride + self.width

    def overlaps(self, other: Region) -> bool:
        """Whether the two share a byte; exact for equal strides, cautious otherwise."""
        if self.space != other.space or self.offset >= other.end or other.offset >= self.end:
            return False
        if self.rows == 1 and other.rows == 1:
            return True
        stride = self.stride if self.rows > 1 else other.stride  # one row has no stride of its own
        if (other.rows > 1 and other.stride != stride) or max(self.width, other.width) > stride:
            return True
        return _rows_overlap(self, other, stride)

    def covers(self, other: Region) -> bool:
        """Whether every byte of `other` is in this region; may say no where it is so."""
        if self.space != other.space:
            return False
        if self.rows == 1:
            return self.offset <= other.offset and other.end <= self.end
        if self.stride != other.stride and other.rows > 1:
            return False
        row, column = divmod(other.offset - self.offset, self.stride)
        return row >= 0 and row + other.rows <= self.rows and column + other.width <= self.width


def _rows_overlap(a: Region, b: Region, stride: int) -> bool:
    """With one stride, runs meet iff some row shift brings their columns together."""
    shift, column = divmod(b.offset - a.offset, stride)
    for row, start in ((shift, column), (shift + 1, column - stride)):
        in_columns = start < a.width and start + b.width > 0
        if in_columns and row < a.rows and row + b.rows > 0:
            return True
    return False


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """One argument of a command: its role in the entry, its bytes, how to read them."""

    role: str
    region: Region
    dtype: str  # f32, bf16, s8, i32, u8 (an int8 cache), packed (weights: bytes as the attrs say)


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """Hold the command until `queue` has signalled `count` times."""

    queue: int
    count: int


class Command(msgspec.Struct, frozen=True):
    """One unit of work of one engine of one chiplet.

    `attrs` are the entry's static parameters.  `deps` are the commands whose bytes this one needs
    or would overwrite, but for those that it follows by others; `waits` is the least that enforces
    them, given that queues are in order.
    `signals` says whether completion raises the queue's semaphore by one.
    """

    kind: str
    queue: int
    layer: str
    part: int
    operands: tuple[Operand, ...]
    attrs: dict[str, Attr]
    deps: tuple[int, ...] = ()
    waits: tuple[Wait, ...] = ()
    signals: bool = False

    def operand(self, role: str) -> Operand:
        return next(o for o in self.operands if o.role == role)

    def has(self, role: str) -> bool:
        return any(o.role == role for o in self.operands)


class Queue(msgspec.Struct, frozen=True, array_like=True):
    """An in-order engine of one chiplet; its number in the program is its semaphore's number."""

    chiplet: int
    engine: str


class Program(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fixed-shape run of commands: (phase, tokens T, KV capacity C) on some chiplets.

    `commands` stand in an order in which they can run one after the other; each queue takes its
    own in that order.  `groups[i]` numbers the operation that command i is one chiplet's part of.
    `sizes` is bytes by address space that the program touches; `io` names the regions through
    which the host gives and takes: hidden_in and hidden_out, or hidden_in, logits and one
    `select.<chiplet>` per chiplet that has a share of the logits.
    """

    name: str
    phase: Phase
    tokens: int
    capacity: int
    device: str
    chiplets: int
    queues: tuple[Queue, ...]
    commands: tuple[Command, ...]
    groups: tuple[int, ...]
    sizes: dict[str, int]
    io: dict[str, Region]
    devices: int = 1  # that the chiplets are spread over, equally


READ_ONLY = ("weights", "head", "embedding", "cos", "sin")


class Cost(msgspec.Struct, frozen=True):
    """What a command moves and computes."""

    ops: dict[str, int]  # by number format; a multiply and an add are two
    reads: dict[str, int]  # bytes by operand role
    writes: dict[str, int]
    shape: tuple[int, int, int] | None = None  # rows, columns, depth of a matrix product
