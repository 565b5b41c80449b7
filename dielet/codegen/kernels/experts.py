"""Mixtures of experts: route chooses, experts_gated and experts_sum read the chosen experts alone.

A row's routes are f32: the numbers of its chosen experts, the largest score first, then the weight
of each.  An expert's matrices are packed like any linear's, one expert after the other.  What
experts_gated gives lies chiplet after chiplet, within that choice after choice: `pieces` are the
chiplets' shares of an expert's inner size.
"""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.function import Cells, Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.kernels.records import Column, Weights
from dielet.codegen.kernels.rowwise import ACTIVATIONS
from dielet.codegen.math import LOG2_E, Sink, exp2, nearest
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I32, I64, Value


@dataclass(frozen=True)
class Route:
    """The `chosen` largest of a row's scores, and their shares of a softmax over them or all."""

    experts: int
    chosen: int
    normed: bool


def route(k: Kernel, t: Target, s: Route) -> None:
    x, y = k.operand(F32), k.operand(F32)
    x_stride, y_stride = k.param(), k.param()
    left = k.scratch(F32, s.experts)
    lowest = k.const(F32, float("-inf"))
    first, last = k.share(k.own_rows())
    with k.loop(first, last) as row:
        scores, numbers = x.at(row * x_stride), y.at(row * y_stride)
        shares = numbers.at(s.chosen)
        with k.loop(s.experts) as i:
            left.store(i, scores[i])
        with k.loop(s.chosen) as j:
            best, at = k.var(lowest), k.var(k.i64(0))
            with k.loop(s.experts) as i:
                better = left[i] > best.value
                best.value = better.choose(left[i], best.value)
                at.value = better.choose(i, at.value)
            numbers.store(j, at.value.trunc(I32).to_float())
            shares.store(j, best.value)
            left.store(at.value, lowest)
        top, total = shares[0], k.var(k.const(F32, 0.0))
        with k.loop(s.chosen if s.normed else s.experts) as i:
            score = shares[i] if s.normed else scores[i]
            total.value = total.value + exp2(k, (score - top) * LOG2_E)
        with k.loop(s.chosen) as j:
            shares.store(j, exp2(k, (shares[j] - top) * LOG2_E) / total.value)


@dataclass(frozen=True)
class ExpertsGated:
    """y = activation(gate x) * (up x) of each chosen expert."""

    K: int
    format: str
    group: int
    minimum: bool
    chosen: int
    activation: str
    out: str
    out_group: int
    zeros: bool = False

    @property
    def weights(self) -> Weights:
        return Weights(self.K, self.format, self.group, self.minimum, self.zeros)


def experts_gated(k: Kernel, t: Target, s: ExpertsGated) -> None:
    x = Activations.open(k, t, s.weights)
    routes, gate, up = k.operand(F32), k.operand(I8), k.operand(I8)
    sink = Sink.open(k, t, s.out, s.out_group)
    panels, x_stride, g_stride, r_stride, y_stride, yg_stride = (k.param() for _ in range(6))
    per_run = sink.width // PANEL
    runs = panels // per_run
    first, last = k.share(runs)
    with k.loop(first, last) as run, k.loop(k.valid) as row, k.loop(s.chosen) as slot:
        expert = number(k, routes[row * r_stride + slot]) * panels
        here = x.row(row, x_stride, g_stride)
        vectors: list[Value] = []
        for p in range(per_run):
            panel = expert + run * per_run + p
            sums = [zeros(k, t), zeros(k, t)]
            for acc, matrix in zip(sums, (gate, up), strict=True):
                here.product(acc, matrix, panel, k.i64(0), s.weights.records)
            a, b = ([acc[0, c] for c in range(t.vectors)] for acc in sums)
            vectors += [ACTIVATIONS[s.activation](k, u) * v for u, v in zip(a, b, strict=True)]
        at = slot * runs + run
        sink.put(row * y_stride + at * sink.width, row * yg_stride + at, vectors)


@dataclass(frozen=True)
class ExpertsSum:
    """y = residual + sum over the choices, in their order, of weight * (down x)."""

    K: int
    format: str
    group: int
    minimum: bool
    chosen: int
    pieces: str
    zeros: bool = False

    @property
    def weights(self) -> Weights:
        return Weights(self.K, self.format, self.group, self.minimum, self.zeros)


def experts_sum(k: Kernel, t: Target, s: ExpertsSum) -> None:
    w = s.weights
    x = Activations.open(k, t, w)
    routes, down, residual, y = k.operand(F32), k.operand(I8), k.operand(F32), k.operand(F32)
    panels, x_stride, g_stride, r_stride, residual_stride, y_stride = (k.param() for _ in range(6))
    first, last = k.share(panels)
    with k.loop(first, last) as panel, k.loop(k.valid) as row:
        total = zeros(k, t)
        for c in range(t.vectors):
            column = panel * PANEL + c * t.lanes
            total[0, c] = residual.load(row * residual_stride + column, t.lanes)
        with k.loop(s.chosen) as slot:
            at = row * r_stride + slot
            matrix = number(k, routes[at]) * panels + panel
            acc = zeros(k, t)
            done = 0
            for width in map(int, s.pieces.split()):
                records = width // w.step
                place = slot * records + done * s.chosen
                here = x.row(row, x_stride, g_stride, place)
                here.product(acc, down, matrix, k.i64(done), records)
                done += records
            share = t.broadcast(routes[at + s.chosen])
            for c in range(t.vectors):
                total[0, c] = k.fma(acc[0, c], share, total[0, c])
        for c in range(t.vectors):
            y.store(row * y_stride + panel * PANEL + c * t.lanes, total[0, c])


def number(k: Kernel, value: Value) -> Value:
    """The whole number that a float32 holds."""
    return nearest(k, value).zext(I64)


def zeros(k: Kernel, t: Target) -> Cells:
    """Sums of one panel."""
    acc = k.cells(1, t.vectors, of=F32.x(t.lanes))
    for at in acc:
        acc[at] = 0.0
    return acc


@dataclass(frozen=True)
class Activations:
    """What experts read, from some row and record on."""

    k: Kernel
    t: Target
    w: Weights
    x: Pointer
    scale: Pointer | None
    total: Pointer | None

    @staticmethod
    def open(k: Kernel, t: Target, w: Weights) -> Activations:
        """Take the operands x, and scale and sum when the weights are integers."""
        x = k.operand(I32)
        scale, total = (k.operand(F32), k.operand(I32)) if w.integer else (None, None)
        return Activations(k, t, w, x, scale, total)

    def row(
        self, row: Value, x_stride: Value, g_stride: Value, record: Value | int = 0
    ) -> Activations:
        """From `record` of a row on; strides in elements."""
        words = x_stride // (4 if self.w.integer else 2)
        x = self.x.at(row * words + self.k.i64(self.w.words) * record)
        if self.scale is None or self.total is None:
            return Activations(self.k, self.t, self.w, x, None, None)
        at = row * g_stride + record
        return Activations(self.k, self.t, self.w, x, self.scale.at(at), self.total.at(at))

    def product(
        self, acc: Cells, matrix: Pointer, panel: Value, first: Value, records: int
    ) -> None:
        """acc += x . w over `records` of the panel from record `first` on."""
        k, t, w = self.k, self.t, self.w
        weights = matrix.at((panel * w.records + first) * w.record)
        with k.loop(records) as g:
            cols = [Column(weights.at(g * w.record), c) for c in range(t.vectors)]
            words = self.x.at(g * w.words)
            if self.scale is None or self.total is None:
                for j in range(w.words):
                    pair = t.broadcast(words[j])
                    for c, col in enumerate(cols):
                        acc[0, c] = t.dot2(k, acc[0, c], col.codes(t, j), pair)
            else:
                self._fold(acc, cols, words, self.scale[g], self.total[g])

    def _fold(
        self, acc: Cells, cols: list[Column], words: Pointer, scale: Value, total: Value
    ) -> None:
        """One group: exact integer dots, then both scales, as in a linear."""
        k, t, w = self.k, self.t, self.w
        correction, factor = w.correction(t), t.broadcast(scale)
        start = t.broadcast(total) * correction if correction else k.const(I32.x(t.lanes), 0)
        dots = [start for _ in cols]
        small = w.format == "int4"
        for j in range(w.words):
            four = t.broadcast(words[j])
            for c, col in enumerate(cols):
                if small:
                    codes = col.codes(t, j // 2)
                    half = (codes >> 4 if j % 2 else codes) & 0x0F0F0F0F
                    dots[c] = t.dot4_small(k, dots[c], half, four)
                else:
                    dots[c] = t.dot4(k, dots[c], col.codes(t, j), four)
        for c, col in enumerate(cols):
            dot, scales = dots[c].to_float(), col.half(k, t, w.quants)
            acc[0, c] = k.fma(dot * scales, factor, acc[0, c])
            if w.minimum:
                low, shift = col.low(k, t, w, scales), total.to_float() * scale
                acc[0, c] = k.fma(low, t.broadcast(shift), acc[0, c])
