"""linear: y[T, N] = (residual) + (bias) + x[T, K] . w[N, K]^T with packed weights.

The order of additions is the same for every row, tile and share: the sum starts at residual + bias
and takes k (bf16) or the groups (int8, int4) one after the other.

One row reads the weights at the speed of memory, as a few streams far apart. Several rows go
through register tiles of `height` rows by `cols` vectors, block by block of K: the rows' part of x
is copied to scratch, with a stride that spreads it over the sets of the cache; a panel's sums rest
in scratch; and each tile asks for a share of the next panel's weights.

Integer groups: y += xs * (ws * d), d = sum (u - Z) x  with Z = 128, 8, or 0 if there is a minimum;
the minimum adds wm * (xs * sum x). d is exact, so only the fold is in floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dielet.codegen.function import Cells, Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I16, I32, Value

LINE = 64
STREAMS = {"bf16": 4, "int8": 4, "int4": 2}  # of weights for a single row, registers permitting
AHEAD = 8192  # bytes from weights to the ones that a lone tile asks for
ROW_BLOCK = 128  # rows whose block of x is in scratch at a time
X_BLOCK = 4096  # .. and bytes of each


@dataclass(frozen=True)
class Linear:
    """The static part."""

    K: int
    format: str
    group: int
    minimum: bool
    T: int
    residual: bool
    bias: bool

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

    def codes(self, t: Target, j: int) -> Value:
        """Step j: four bytes (two bf16) of each output in a word."""
        return self.record.cast(I32).load(j * PANEL + self.c * t.lanes, t.lanes)

    def half(self, k: Kernel, t: Target, byte: int) -> Value:
        """float16 numbers, one an output, from the record's tail."""
        bits = self.record.cast(I16).load(byte // 2 + self.c * t.lanes, t.lanes)
        return t.from_f16(k, bits)


@dataclass(frozen=True)
class Row:
    """One row of x at the record at hand: its words, and its group's numbers in every lane."""

    words: Pointer  # i32
    scale: Value | None = None
    start: Value | None = None  # what the integer dots start from
    shift: Value | None = None  # xs * sum x, for the minimum


def linear(k: Kernel, t: Target, s: Linear) -> None:
    x = k.operand(I32)
    scale, total = (k.operand(F32), k.operand(I32)) if s.integer else (None, None)
    w = k.operand(I8)
    residual = k.operand(F32) if s.residual else None
    bias = k.operand(F32) if s.bias else None
    y = k.operand(F32)
    panels, x_stride, g_stride, y_stride, r_stride = (k.param() for _ in range(5))
    source = Source(k, t, s, x, x_stride // (4 if s.integer else 2), scale, total, g_stride)
    task = Task(k, t, s, source, w, residual, r_stride, bias, y, y_stride)
    first, last = k.share(panels)
    if s.T > 1:
        task.many_rows(first, last)
        return
    sums = t.vectors * (2 if s.integer else 1)  # registers that a stream's sums take
    streams = max(1, min(STREAMS[s.format], t.registers * 3 // 4 // sums))
    apart = (last - first) // streams
    with k.loop(apart) as i:
        task.one_row([first + i + apart * n for n in range(streams)])
    with k.loop(first + apart * streams, last) as panel:
        task.one_row([panel])


@dataclass
class Task:
    """One kernel under construction: what it reads, what it writes, and the two ways there."""

    k: Kernel
    t: Target
    s: Linear
    x: Source
    w: Pointer
    residual: Pointer | None
    r_stride: Value
    bias: Pointer | None
    y: Pointer
    y_stride: Value

    def start(self, row: Value | int, column: Value) -> Value:
        """residual + bias at one vector of outputs."""
        terms = []
        if self.residual is not None:
            terms.append(self.residual.load(self.r_stride * row + column, self.t.lanes))
        if self.bias is not None:
            terms.append(self.bias.load(column, self.t.lanes))
        zero = self.k.const(F32.x(self.t.lanes), 0.0)
        return sum(terms[1:], terms[0]) if terms else zero

    def one_row(self, panels: list[Value]) -> None:
        """The outputs of some panels for a single row, their weights read side by side."""
        k, t, s = self.k, self.t, self.s
        places = [(panel, c) for panel in panels for c in range(t.vectors)]
        columns = [panel * PANEL + c * t.lanes for panel, c in places]
        acc = k.cells(1, len(places), of=F32.x(t.lanes))
        for at, column in zip(acc, columns, strict=True):
            acc[at] = self.start(0, column)
        with k.loop(s.records) as g:
            cols = [Column(self.record(panel, g), c) for panel, c in places]
            multiply(k, t, s, acc, [self.x.row(g)], cols)
        for at, column in zip(acc, columns, strict=True):
            self.y.store(column, acc[at])

    def record(self, panel: Value, g: Value | int) -> Pointer:
        return self.w.at(panel * (self.s.records * self.s.record) + g * self.s.record)

    def many_rows(self, first: Value, last: Value) -> None:
        """Blocks of rows, blocks of K, panels, tiles: from the outside in."""
        k, t, s = self.k, self.t, self.s
        height, cols = (t.int_rows, t.int_cols) if s.integer else (t.bf16_rows, t.bf16_cols)
        block = min(s.records, X_BLOCK // (4 * s.words))
        row_block = min(-(-s.T // height) * height, ROW_BLOCK)
        self.x.reserve(row_block, block)
        sums = k.scratch(F32, row_block * PANEL)
        with (
            k.loop(0, k.valid, row_block) as row0,
            k.loop(0, s.records, block) as g0,
        ):
            rows = k.minimum(k.valid - row0, k.i64(row_block))
            records = k.minimum(k.i64(block), k.i64(s.records) - g0)
            tiles = (rows + (height - 1)) // height
            self.x.fill(row0, rows, g0, records)
            with k.loop(first, last) as panel:
                column = panel * PANEL
                self.fetch(sums, row0, rows, column, g0)
                weights = self.record(panel, g0)
                # A lone tile asks for its own weights, somewhat ahead; several share out the next:
                # this block of the next panel, or the next block of the first.
                more = panel + 1 < last
                following = k.either(
                    more, self.record(panel + 1, g0), self.record(first, g0 + records)
                )
                following = k.either(rows > height, following, weights.at(AHEAD))
                lines = (k.i64(-(-s.record // LINE)) + (tiles - 1)) // tiles
                for c in range(0, t.vectors, cols):
                    with k.loop(0, rows, height) as row:
                        part = sums.at(row * PANEL + c * t.lanes)
                        asked = following.at(row // height * lines * LINE)
                        places = [c + i for i in range(cols)]
                        wanted = (asked, lines) if c == 0 else None
                        self.tile(part, height, row, places, weights, records, wanted)
                with k.loop(rows) as r:
                    for c in range(0, PANEL, t.lanes):
                        into = (row0 + r) * self.y_stride + column + c
                        self.y.store(into, sums.load(r * PANEL + c, t.lanes))

    def fetch(self, sums: Pointer, row0: Value, rows: Value, column: Value, g0: Value) -> None:
        """A panel's sums: what they start from, or where the last block of K left them."""
        k, t = self.k, self.t
        with k.when(g0.eq(0)), k.loop(rows) as r:
            for c in range(0, PANEL, t.lanes):
                sums.store(r * PANEL + c, self.start(row0 + r, column + c))
        with k.when(g0 > 0), k.loop(rows) as r:
            for c in range(0, PANEL, t.lanes):
                before = self.y.load((row0 + r) * self.y_stride + column + c, t.lanes)
                sums.store(r * PANEL + c, before)

    def tile(
        self,
        part: Pointer,
        height: int,
        row: Value,
        places: list[int],
        weights: Pointer,
        records: Value,
        wanted: tuple[Pointer, Value] | None,
    ) -> None:
        """part[height, cols] += x . w over a block of K, in registers.

        `wanted`: weights to ask for, so many lines a record.
        """
        k, t, s = self.k, self.t, self.s
        acc = k.cells(height, len(places), of=F32.x(t.lanes))
        for r, c in acc:
            acc[r, c] = part.load(r * PANEL + c * t.lanes, t.lanes)
        with k.loop(records) as g:
            if wanted is not None:
                with k.loop(wanted[1]) as line:
                    wanted[0].prefetch(g * s.record + line * LINE)
            cols = [Column(weights.at(g * s.record), c) for c in places]
            multiply(k, t, s, acc, self.x.tile(row, height, g), cols)
        for r, c in acc:
            part.store(r * PANEL + c * t.lanes, acc[r, c])


@dataclass
class Source:
    """The activations where the command has them, and a block of them in scratch."""

    k: Kernel
    t: Target
    s: Linear
    x: Pointer
    x_stride: Value
    scale: Pointer | None
    sums: Pointer | None
    g_stride: Value

    def row(self, g: Value) -> Row:
        """The first row at record g."""
        words = self.x.at(g * self.s.words)
        if self.scale is None or self.sums is None:
            return Row(words)
        scale = self.t.broadcast(self.scale[g])
        return Row(words, scale, *self._numbers(scale, self.t.broadcast(self.sums[g])))

    def _numbers(self, scale: Value, total: Value) -> tuple[Value | None, Value | None]:
        """A group's start and shift."""
        correction = self.s.correction(self.t)
        start = total * correction if correction else None
        return start, scale * total.to_float() if self.s.minimum else None

    def reserve(self, rows: int, records: int) -> None:
        """Scratch for a block of so many rows and records."""
        self.rows, self.records = rows, records
        self.stride = records * self.s.words + LINE // 4
        self.copy = self.k.scratch(I32, rows * self.stride)
        if self.s.integer:
            self.scales, self.shifts = (self.k.scratch(F32, rows * records) for _ in range(2))
            self.starts = self.k.scratch(I32, rows * records)

    def fill(self, row0: Value, rows: Value, record0: Value, records: Value) -> None:
        """Copy the block that begins at (row0, record0)."""
        k, s = self.k, self.s
        width = math.gcd(self.t.lanes, s.words)
        with k.loop(rows) as r:
            words = self.x.at((row0 + r) * self.x_stride + record0 * s.words)
            into = self.copy.at(r * self.stride)
            with k.loop(0, records * s.words, width) as i:
                into.store(i, words.load(i, width))
            if self.scale is None or self.sums is None:
                return
            numbers = (row0 + r) * self.g_stride + record0
            with k.loop(records) as g:
                scale, total = self.scale[numbers + g], self.sums[numbers + g]
                start, shift = self._numbers(scale, total)
                at = r * self.records + g
                self.scales.store(at, scale)
                if start is not None:
                    self.starts.store(at, start)
                if shift is not None:
                    self.shifts.store(at, shift)

    def tile(self, row0: Value, height: int, g: Value) -> list[Row]:
        """Rows of the block at its record g."""
        words = self.copy.at(row0 * self.stride + g * self.s.words)
        if not self.s.integer:
            return [Row(words.at(r * self.stride)) for r in range(height)]

        def number(of: Pointer, r: int, needed: bool) -> Value | None:
            at = row0 * self.records + g
            return self.t.broadcast(of.at(at)[r * self.records]) if needed else None

        correction = self.s.correction(self.t) != 0
        return [
            Row(
                words.at(r * self.stride),
                number(self.scales, r, True),
                number(self.starts, r, correction),
                number(self.shifts, r, self.s.minimum),
            )
            for r in range(height)
        ]


def multiply(
    k: Kernel, t: Target, s: Linear, acc: Cells, rows: list[Row], cols: list[Column]
) -> None:
    """acc[row, col] += x . w over one record."""
    if s.integer:
        fold(k, t, s, acc, rows, cols)
        return
    for j in range(s.words):
        w = [col.codes(t, j) for col in cols]
        for r, row in enumerate(rows):
            pair = t.broadcast(row.words[j])
            for c in range(len(cols)):
                acc[r, c] = t.dot2(k, acc[r, c], w[c], pair)


def fold(k: Kernel, t: Target, s: Linear, acc: Cells, rows: list[Row], cols: list[Column]) -> None:
    """One group: exact integer dots, then both scales."""
    zero = k.const(I32.x(t.lanes), 0)
    dots = {(r, c): rows[r].start or zero for r, c in acc}
    small = s.format == "int4"
    dot = t.dot4_small if small else t.dot4
    nibbles = 0x0F0F0F0F
    for j in range(s.words):
        if not small:
            w = [col.codes(t, j) for col in cols]
        elif j % 2 == 0:
            codes = [col.codes(t, j // 2) for col in cols]
            w = [v & nibbles for v in codes]
        else:
            w = [(v >> 4) & nibbles for v in codes]
        for r, row in enumerate(rows):
            four = t.broadcast(row.words[j])
            for c in range(len(cols)):
                dots[r, c] = dot(k, dots[r, c], w[c], four)

    scale = [col.half(k, t, s.quants) for col in cols]
    low = [col.half(k, t, s.quants + 2 * PANEL) for col in cols] if s.minimum else None
    for r, row in enumerate(rows):
        assert row.scale is not None
        for c in range(len(cols)):
            acc[r, c] = k.fma(dots[r, c].to_float() * scale[c], row.scale, acc[r, c])
            if low is not None and row.shift is not None:
                acc[r, c] = k.fma(low[c], row.shift, acc[r, c])
