"""linear: y[T, N] = (residual) + (bias) + x[T, K] . w[N, K]^T with packed weights.

The order of additions is the same for every row, tile and share: the sum starts at residual + bias
and takes k (bf16) or the groups (int8, int4) one after the other. One row reads the weights as one
stream, at the speed of memory. Several rows go through register tiles of `rows` x `cols` vectors,
over blocks of K that keep a panel's weights in L1 while all rows pass over them; between blocks the
sums rest in y itself.

Integer groups: y += xs * (ws * d), d = sum (u - Z) x  with Z = 128, 8, or 0 if there is a minimum;
the minimum adds wm * (xs * sum x). d is exact, so only the fold is in floating point.
"""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.function import Cells, Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I16, I32, Value

L1_BLOCK = 16384  # bytes of one panel's weights that stay in L1 beside the activations
LINE = 64
AHEAD = 4096  # bytes between a weight and its prefetch, for the single row


@dataclass(frozen=True)
class Linear:
    """The static part of a linear."""

    K: int
    format: str
    group: int
    minimum: bool
    T: int
    residual: bool
    bias: bool

    @property
    def record(self) -> int:
        """Bytes of one step of the weight stream: a group with its scales, or 32 k of bf16."""
        if self.format == "bf16":
            return 32 * PANEL * 2
        quants = self.group * PANEL // (1 if self.format == "int8" else 2)
        return quants + 2 * PANEL * (2 if self.minimum else 1)

    @property
    def step(self) -> int:
        """k per record."""
        return 32 if self.format == "bf16" else self.group

    @property
    def records(self) -> int:
        return self.K // self.step

    @property
    def zero(self) -> int:
        return 0 if self.minimum else {"int8": 128, "int4": 8, "bf16": 0}[self.format]


@dataclass
class Rows:
    """Where a tile finds its activations: the first row, and how far apart rows are."""

    x: Pointer  # i32: four s8 or two bf16
    x_stride: Value
    scale: Pointer | None
    sum: Pointer | None
    g_stride: Value | None


def linear(k: Kernel, t: Target, s: Linear) -> None:
    integer = s.format != "bf16"
    x = k.operand(I32)
    scale, sums = (k.operand(F32), k.operand(I32)) if integer else (None, None)
    w = k.operand(I8)
    residual = k.operand(F32) if s.residual else None
    bias = k.operand(F32) if s.bias else None
    y = k.operand(F32)
    panels, x_stride, g_stride, y_stride, r_stride = (k.param() for _ in range(5))
    x_stride = x_stride // (4 if integer else 2)  # in words of 32 bits
    rows = Rows(x, x_stride, scale, sums, g_stride)
    first, last = k.share(panels)
    panel_bytes = s.records * s.record

    def start(row: Value | int, col: Value) -> Value:
        """residual + bias at one vector of outputs."""
        total = k.const(F32.x(t.lanes), 0.0)
        if residual is not None:
            total = residual.load(row * r_stride + col, t.lanes)
        if bias is not None:
            term = bias.load(col, t.lanes)
            total = total + term if residual is not None else term
        return total

    if s.T == 1:
        cols = t.vectors
        with k.loop(first, last) as p:
            acc = k.cells(1, cols, of=F32.x(t.lanes))
            for _, c in acc:
                acc[0, c] = start(k.i64(0), p * PANEL + c * t.lanes)
            stream = w.at(p * panel_bytes)
            accumulate(k, t, s, acc, rows, stream, range(cols), s.records, AHEAD)
            for _, c in acc:
                y.store(p * PANEL + c * t.lanes, acc[0, c])
        return

    unit, cols = (t.int_unit, t.int_cols) if integer else (t.bf16_unit, t.bf16_cols)
    tall, low = k.split_rows(k.valid, unit)
    block = max(1, L1_BLOCK // s.record)  # records per block of K
    with (
        k.loop(first, last) as p,
        k.loop(0, s.records, block) as r0,
    ):
        count = k.minimum(k.i64(block), k.i64(s.records) - r0)
        stream = w.at(p * panel_bytes + r0 * s.record)
        for c0 in range(0, t.vectors, cols):
            tile_cols = range(c0, c0 + cols)

            def tile(row: Value, height: int, tile_cols: range = tile_cols) -> None:
                acc = k.cells(height, cols, of=F32.x(t.lanes))
                out = y.at(row * y_stride + p * PANEL)
                for r, c in acc:
                    acc[r, c] = out.load(y_stride * r + tile_cols[c] * t.lanes, t.lanes)
                with k.when(r0.eq(0)):
                    for r, c in acc:
                        acc[r, c] = start(row + r, p * PANEL + tile_cols[c] * t.lanes)
                here = Rows(
                    x.at(row * x_stride + r0 * (s.step // (4 if integer else 2))),
                    x_stride,
                    scale and scale.at(row * g_stride + r0),
                    sums and sums.at(row * g_stride + r0),
                    g_stride,
                )
                accumulate(k, t, s, acc, here, stream, tile_cols, count, 0)
                for r, c in acc:
                    out.store(y_stride * r + tile_cols[c] * t.lanes, acc[r, c])

            with k.loop(tall) as i:
                tile(i * (3 * unit), 3 * unit)
            with k.loop(low) as i:
                tile(tall * (3 * unit) + i * (2 * unit), 2 * unit)


def accumulate(
    k: Kernel,
    t: Target,
    s: Linear,
    acc: Cells,
    rows: Rows,
    stream: Pointer,
    cols: range,
    records: Value | int,
    ahead: int,
) -> None:
    """acc[row, col] += x . w over `records` records of one panel's weight stream."""
    height = 1 + max(r for r, _ in acc)
    record = {"bf16": bf16_record, "int8": int_record, "int4": int_record}[s.format]
    with k.loop(records) as g:
        weights = stream.at(g * s.record)
        if ahead:
            for line in range(0, s.record, LINE):
                weights.prefetch(ahead + line)
        record(k, t, s, acc, rows, weights, cols, height, g)


def bf16_record(
    k: Kernel,
    t: Target,
    s: Linear,
    acc: Cells,
    rows: Rows,
    weights: Pointer,
    cols: range,
    height: int,
    g: Value,
) -> None:
    """32 k: 16 steps of two."""
    x = [rows.x.at(rows.x_stride * r + g * 16) for r in range(height)]
    for j in range(16):
        w = [weights.cast(I32).load(j * PANEL + c * t.lanes, t.lanes) for c in cols]
        for r in range(height):
            pair = t.broadcast(x[r][j])
            for c in range(len(cols)):
                acc[r, c] = t.dot2(k, acc[r, c], w[c], pair)


def int_record(
    k: Kernel,
    t: Target,
    s: Linear,
    acc: Cells,
    rows: Rows,
    weights: Pointer,
    cols: range,
    height: int,
    g: Value,
) -> None:
    """One group: exact integer dots, then the fold with both scales."""
    assert rows.scale is not None and rows.sum is not None and rows.g_stride is not None
    small = s.format == "int4"
    x = [rows.x.at(rows.x_stride * r + g * (s.group // 4)) for r in range(height)]
    places = [(r, c) for r in range(height) for c in range(len(cols))]
    zero = s.zero - (0 if small else t.dot4_zero)
    sums = [t.broadcast(rows.sum[rows.g_stride * r + g]) for r in range(height)]
    dots: dict[tuple[int, int], Value] = {}
    for r, c in places:
        dots[r, c] = sums[r] * (-zero) if zero else k.const(I32.x(t.lanes), 0)

    quants = weights.cast(I32)
    for j in range(s.group // (8 if small else 4)):
        packed = [quants.load(j * PANEL + c * t.lanes, t.lanes) for c in cols]
        if small:
            steps = [[v & 0x0F0F0F0F for v in packed], [(v >> 4) & 0x0F0F0F0F for v in packed]]
        else:
            steps = [packed]
        for half, w in enumerate(steps):
            for r in range(height):
                four = t.broadcast(x[r][j * len(steps) + half])
                for c in range(len(cols)):
                    dot = t.dot4_small if small else t.dot4
                    dots[r, c] = dot(k, dots[r, c], w[c], four)

    after = s.group * PANEL // (2 if small else 1) // 2  # i16 index of the scales
    halves = weights.cast(I16)
    ws = [t.from_f16(k, halves.load(after + c * t.lanes, t.lanes)) for c in cols]
    for r in range(height):
        xs = t.broadcast(rows.scale[rows.g_stride * r + g])
        for c in range(len(cols)):
            acc[r, c] = k.fma(dots[r, c].to_float() * ws[c], xs, acc[r, c])
        if s.minimum:
            shift = xs * sums[r].to_float()
            for c, col in enumerate(cols):
                wm = t.from_f16(k, halves.load(after + PANEL + col * t.lanes, t.lanes))
                acc[r, c] = k.fma(wm, shift, acc[r, c])


__all__ = ["Linear", "linear"]
