"""Records of packed weights, and their product with activations: the heart of linear.

A panel of 32 outputs is a stream of records. A record is 32 k of bfloat16, or one group of codes
with its float16 scales (and minima); within it, 32-bit words stand side by side for the 32 outputs:
two bfloat16, four bytes, or eight nibbles (low ones first).

Integer groups: y += xs * (ws * d), d = sum (u - Z) x  with Z = 128, 8, or 0 if there is a minimum;
the minimum adds wm * (xs * sum x). d is exact, so only the fold is in floating point. With zeros,
wm is ws times the number in the record, minus the group's zero point: exact in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from dielet.codegen.function import Cells, Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import I16, I32, Value

STEPS = 8  # words of x that the loop of a tile of several rows unrolls


@dataclass(frozen=True)
class Weights:
    """A packed weight matrix of K inputs."""

    K: int
    format: str
    group: int
    minimum: bool
    zeros: bool = False

    @property
    def integer(self) -> bool:
        return self.format != "bf16"

    @property
    def step(self) -> int:
        """k per record of the weight stream: a group with its scales, or 32 of bf16."""
        return self.group if self.integer else 32

    @property
    def words(self) -> int:
        """32-bit words of activations per record."""
        return self.step // (4 if self.integer else 2)

    @property
    def per_word(self) -> int:
        """32-bit words of activations that one word of codes is multiplied with."""
        return 2 if self.format == "int4" else 1

    @property
    def quants(self) -> int:
        """Bytes of codes in a record."""
        return self.step * PANEL * {"bf16": 4, "int8": 2, "int4": 1}[self.format] // 2

    @property
    def record(self) -> int:
        """Bytes of a record."""
        scales = 0 if not self.integer else 2 * PANEL * (2 if self.minimum else 1)
        return self.quants + scales

    @property
    def records(self) -> int:
        return self.K // self.step

    @property
    def zero(self) -> int:
        return 0 if self.minimum else {"int8": 128, "int4": 8, "bf16": 0}[self.format]

    def correction(self, t: Target) -> int:
        """What the target's dot of a group lacks, in multiples of the sum of its activations."""
        return (0 if self.format == "int4" else t.dot4_zero) - self.zero if self.integer else 0


@dataclass(frozen=True)
class Column:
    """One vector of outputs: `c` counts vectors within the panel of the record at hand."""

    record: Pointer  # i8
    c: int

    def after(self, steps: Value) -> Column:
        """As many words of each output further on."""
        return Column(self.record.at(steps * (4 * PANEL)), self.c)

    def codes(self, t: Target, j: int) -> Value:
        """Step j: four bytes (two bf16) of each output in a word."""
        return self.record.cast(I32).load(j * PANEL + self.c * t.lanes, t.lanes)

    def half(self, k: Kernel, t: Target, byte: int) -> Value:
        """float16 numbers, one an output, from the record's tail."""
        bits = self.record.cast(I16).load(byte // 2 + self.c * t.lanes, t.lanes)
        return t.from_f16(k, bits)

    def low(self, k: Kernel, t: Target, s: Weights, scale: Value) -> Value:
        """The minima of a group that has these scales."""
        low = self.half(k, t, s.quants + 2 * PANEL)
        return low * scale if s.zeros else low


Number = Callable[[], Value]  # read when it is needed: registers are scarce


@dataclass(frozen=True)
class Row:
    """One row of x at the record at hand: its words, and its group's numbers in every lane."""

    words: Pointer  # i32
    scale: Number | None = None
    start: Number | None = None  # what the integer dots start from
    shift: Number | None = None  # xs * sum x, for the minimum


def multiply(
    k: Kernel,
    t: Target,
    s: Weights,
    acc: Cells,
    rows: list[Row],
    cols: list[Column],
    streaming: bool,
) -> None:
    """acc[row, col] += x . w over one record, which comes from memory if it is `streaming`."""
    if s.integer:
        fold(k, t, s, acc, rows, cols, streaming)
        return
    for j in range(s.words):
        w = [col.codes(t, j) for col in cols]
        for r, row in enumerate(rows):
            pair = t.broadcast(row.words[j])
            for c in range(len(cols)):
                acc[r, c] = t.dot2(k, acc[r, c], w[c], pair)


def fold(
    k: Kernel,
    t: Target,
    s: Weights,
    acc: Cells,
    rows: list[Row],
    cols: list[Column],
    streaming: bool,
) -> None:
    """One group: exact integer dots, then both scales."""
    dots = k.cells(len(rows), len(cols), of=I32.x(t.lanes))
    for r, row in enumerate(rows):
        start = row.start() if row.start else k.const(I32.x(t.lanes), 0)
        for c in range(len(cols)):
            dots[r, c] = start
    # Without a loop, the processor sees further ahead in a stream.
    steps = s.words if streaming else math.gcd(s.words, STEPS)
    with k.loop(0, s.words, steps) if steps < s.words else nullcontext(k.i64(0)) as j:
        words = [row.words.at(j) for row in rows]
        add(k, t, s, dots, words, [col.after(j // s.per_word) for col in cols], steps)

    scale = [col.half(k, t, s.quants) for col in cols]
    low = [col.low(k, t, s, of) for col, of in zip(cols, scale, strict=True)] if s.minimum else None
    for r, row in enumerate(rows):
        assert row.scale is not None
        factor, shift = row.scale(), row.shift() if row.shift else None
        for c in range(len(cols)):
            acc[r, c] = k.fma(dots[r, c].to_float() * scale[c], factor, acc[r, c])
            if low is not None and shift is not None:
                acc[r, c] = k.fma(low[c], shift, acc[r, c])


def add(
    k: Kernel,
    t: Target,
    s: Weights,
    dots: Cells,
    rows: list[Pointer],
    cols: list[Column],
    steps: int,
) -> None:
    """dots[row, col] += x . w over some words of x."""
    small = s.format == "int4"
    dot = t.dot4_small if small else t.dot4
    nibbles = 0x0F0F0F0F
    for j in range(steps):
        if not small:
            w = [col.codes(t, j) for col in cols]
        elif j % 2 == 0:
            codes = [col.codes(t, j // 2) for col in cols]
            w = [v & nibbles for v in codes]
        else:
            w = [(v >> 4) & nibbles for v in codes]
        for r, words in enumerate(rows):
            four = t.broadcast(words[j])
            for c in range(len(cols)):
                dots[r, c] = dot(k, dots[r, c], w[c], four)
