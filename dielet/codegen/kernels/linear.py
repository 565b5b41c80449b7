"""linear: y[T, N] = (residual) + (bias) + x[T, K] . w[N, K]^T with packed weights.

The order of additions is the same for every row, tile and share: the sum starts at residual + bias
and takes k (bf16) or the groups (int8, int4) one after the other.

One row reads the weights at the speed of memory, as a few streams far apart. Several rows go
through register tiles of `height` rows by `cols` vectors, block by block of K: the rows' part of x
is copied to scratch, with a stride that spreads it over the sets of the cache; sums rest in y
between blocks; each tile asks for a share of the next panel's weights, and for what the next tile
reads and writes of y. The rows that are left go through lower tiles, of which the last may
overhang: what lies there is neither read nor written.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from dielet.codegen.function import Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.kernels.records import Column, Number, Row, Weights, multiply
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I32, Value

LINE = 64
STREAMS = {"bf16": 4, "int8": 4, "int4": 2}  # of weights for a single row, registers permitting
AHEAD = 8192  # bytes from weights to the ones that a lone tile asks for
ROW_BLOCK = 128  # rows whose block of x is in scratch at a time
X_BLOCK = 512  # .. and bytes of each: a block of weights stays in L1 while the rows pass it


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
    zeros: bool = False

    @property
    def weights(self) -> Weights:
        return Weights(self.K, self.format, self.group, self.minimum, self.zeros)


def linear(k: Kernel, t: Target, shape: Linear) -> None:
    s = shape.weights
    x = k.operand(I32)
    scale, total = (k.operand(F32), k.operand(I32)) if s.integer else (None, None)
    w = k.operand(I8)
    residual = k.operand(F32) if shape.residual else None
    bias = k.operand(F32) if shape.bias else None
    y = k.operand(F32)
    panels, x_stride, g_stride, y_stride, r_stride = (k.param() for _ in range(5))
    source = Source(k, t, s, x, x_stride // (4 if s.integer else 2), scale, total, g_stride)
    task = Task(k, t, s, source, w, residual, r_stride, bias, y, y_stride)
    first, last = k.share(panels)
    if shape.T > 1:
        task.several_rows(shape.T, first, last)
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
    s: Weights
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
            multiply(k, t, s, acc, [self.x.row(g)], cols, streaming=True)
        for at, column in zip(acc, columns, strict=True):
            self.y.store(column, acc[at])

    def record(self, panel: Value, g: Value | int) -> Pointer:
        return self.w.at(panel * (self.s.records * self.s.record) + g * self.s.record)

    def several_rows(self, T: int, first: Value, last: Value) -> None:
        """Up to T rows: as one tile a panel if they are few, else block by block."""
        k, t, s = self.k, self.t, self.s
        most = t.int_rows if s.integer else t.bf16_rows
        zeros = k.scratch(F32, PANEL)
        for c in range(0, PANEL, t.lanes):
            zeros.store(c, k.const(F32.x(t.lanes), 0.0))
        done = 0
        for few in t.few_rows or (most,):
            if done < T:
                with k.when((k.valid > done) & (k.valid <= few)):
                    self.few_rows(few, zeros, first, last)
                done = few
        if done < T:
            with k.when(k.valid > done):
                self.many_rows(T, most, zeros, first, last)

    def few_rows(self, height: int, zeros: Pointer, first: Value, last: Value) -> None:
        """One tile a panel, all of K at once: weights come from memory, one after the other."""
        k, s, zero = self.k, self.s, self.k.i64(0)
        self.x.reserve(height, s.records)
        self.x.fill(zero, k.valid, zero, k.i64(s.records))
        with k.loop(first, last) as panel:
            block = self.block(zeros, zero, k.valid, panel, zero, k.i64(s.records), True)
            lines = k.i64(-(-s.record // LINE))
            block.tile(height, zero, k.valid, block.weights.at(AHEAD), lines)

    def many_rows(self, T: int, height: int, zeros: Pointer, first: Value, last: Value) -> None:
        """Blocks of rows, blocks of K, panels, tiles: from the outside in."""
        k, s = self.k, self.s
        tail = T % height or height
        block = min(s.records, X_BLOCK // (4 * s.words))
        row_block = -(-min(T, ROW_BLOCK) // height) * height
        self.x.reserve(row_block + tail, block)
        with (
            k.loop(0, k.valid, row_block) as row0,
            k.loop(0, s.records, block) as g0,
        ):
            rows = k.minimum(k.valid - row0, k.i64(row_block))
            records = k.minimum(k.i64(block), k.i64(s.records) - g0)
            whole = rows // height
            tiles = whole + (rows - whole * height + (tail - 1)) // tail
            lines = (k.i64(-(-s.record // LINE)) + (tiles - 1)) // tiles
            self.x.fill(row0, rows, g0, records)
            with k.loop(first, last) as panel:
                part = self.block(zeros, row0, rows, panel, g0, records, False)
                # Tiles share out the weights to ask for: this block of the next panel, or the next
                # block of the first.
                next_panel, next_block = (
                    self.record(panel + 1, g0),
                    self.record(first, g0 + records),
                )
                following = k.either(panel + 1 < last, next_panel, next_block)
                with k.loop(whole) as number:
                    asked = following.at(number * lines * LINE)
                    part.tile(height, number * height, None, asked, lines)
                with k.loop(whole, tiles) as number:
                    row = whole * height + (number - whole) * tail
                    asked = following.at(number * lines * LINE)
                    part.tile(tail, row, rows, asked, lines)

    def block(
        self,
        zeros: Pointer,
        row0: Value,
        rows: Value,
        panel: Value,
        g0: Value,
        records: Value,
        streaming: bool,
    ) -> Block:
        """`records` of a panel from g0 on, for `rows` rows."""
        y = Place(self.y.at(row0 * self.y_stride + panel * PANEL), self.y_stride)
        before = self.before(zeros, y, row0, rows, panel * PANEL, g0)
        weights = self.record(panel, g0)
        return Block(self.k, self.t, self.s, self.x, before, y, weights, records, streaming)

    def before(
        self, zeros: Pointer, y: Place, row0: Value, rows: Value, column: Value, g0: Value
    ) -> Place:
        """Where a panel's sums are found: in y after the first block of K, else the start."""
        k, t = self.k, self.t
        initial = Place(zeros, k.i64(0))
        if self.residual is not None and self.bias is not None:
            with k.when(g0.eq(0)), k.loop(rows) as r:
                for c in range(0, PANEL, t.lanes):
                    y.at(r).pointer.store(c, self.start(row0 + r, column + c))
            return y
        if self.residual is not None:
            initial = Place(self.residual.at(row0 * self.r_stride + column), self.r_stride)
        if self.bias is not None:
            initial = Place(self.bias.at(column), k.i64(0))
        at_first = g0.eq(0)
        stride = at_first.choose(initial.stride, y.stride)
        return Place(k.either(at_first, initial.pointer, y.pointer), stride)


@dataclass(frozen=True)
class Place:
    """Rows of one panel's columns: the first, and how far apart they are."""

    pointer: Pointer  # f32
    stride: Value

    def at(self, row: Value | int) -> Place:
        return Place(self.pointer.at(self.stride * row), self.stride)


@dataclass(frozen=True)
class Block:
    """A block of K of one panel, that passes over the rows of x tile by tile."""

    k: Kernel
    t: Target
    s: Weights
    x: Source
    before: Place
    y: Place
    weights: Pointer
    records: Value
    streaming: bool  # weights come from memory, not from L1

    def tile(
        self, height: int, row: Value, rows: Value | None, asked: Pointer, lines: Value
    ) -> None:
        """y = before + x . w for `height` rows from `row` on, in registers.

        It may overhang if it is told how many `rows` mean something. Asks for `lines` of memory
        a record, from `asked` on.
        """
        t, s = self.t, self.s
        cols = t.int_cols if s.integer else t.bf16_cols
        for c in range(0, t.vectors, cols):
            self._tile(
                height, list(range(c, c + cols)), row, rows, asked, lines if c == 0 else None
            )

    def _tile(
        self,
        height: int,
        places: list[int],
        row: Value,
        rows: Value | None,
        asked: Pointer,
        lines: Value | None,
    ) -> None:
        """The same for some vectors of the panel."""
        k, t, s, lanes = self.k, self.t, self.s, self.t.lanes
        acc = k.cells(height, len(places), of=F32.x(lanes))
        for r in range(height):
            at = row + r if rows is None else k.minimum(row + r, rows - 1)
            source = self.before.at(at).pointer
            for c, place in enumerate(places):
                acc[r, c] = source.load(place * lanes, lanes)
        for below in range(height, 2 * height):
            read, written = (p.at(row + below).pointer for p in (self.before, self.y))
            for c in range(places[0] * lanes, (places[-1] + 1) * lanes, LINE // 4):
                read.prefetch(c)
                written.prefetch(c, write=True)
        with k.loop(self.records) as g:
            if lines is not None:
                with k.loop(lines) as line:
                    asked.prefetch(g * s.record + line * LINE)
            cols = [Column(self.weights.at(g * s.record), c) for c in places]
            multiply(k, t, s, acc, self.x.tile(row, height, g), cols, self.streaming)
        for r in range(height):
            target = self.y.at(row + r).pointer
            with k.when(row + r < rows) if rows is not None else nullcontext():
                for c, place in enumerate(places):
                    target.store(place * lanes, acc[r, c])


@dataclass
class Source:
    """The activations where the command has them, and a block of them in scratch."""

    k: Kernel
    t: Target
    s: Weights
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
        start, shift = self._numbers(scale, self.t.broadcast(self.sums[g]))
        return Row(words, known(scale), known(start), known(shift))

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

        first = row0 * self.records + g

        def number(of: Pointer, r: int) -> Value:
            return self.t.broadcast(of.at(first)[r * self.records])

        return [
            Row(
                words.at(r * self.stride),
                partial(number, self.scales, r),
                partial(number, self.starts, r) if self.s.correction(self.t) else None,
                partial(number, self.shifts, r) if self.s.minimum else None,
            )
            for r in range(height)
        ]


def known(value: Value | None) -> Number | None:
    """A number that is in a register already."""
    return None if value is None else lambda: value
