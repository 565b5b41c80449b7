"""Kernels that treat every row, or every run of columns, by itself: rmsnorm, quantize, convert,
silu_mul. Each ends in a `Sink`, which stores float32, bfloat16, or quantised groups."""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.kernel import Kernel
from dielet.codegen.math import Sink, gelu_tanh, inverse_root, silu
from dielet.codegen.targets.base import Target
from dielet.codegen.values import F32


@dataclass(frozen=True)
class RmsNorm:
    """y = (residual) + x / sqrt(mean(x^2) + eps) * weight over rows of K."""

    K: int
    eps: float
    out: str
    group: int = 0
    residual: bool = False


def rmsnorm(k: Kernel, t: Target, s: RmsNorm) -> None:
    x, weight = k.operand(F32), k.operand(F32)
    residual = k.operand(F32) if s.residual else None
    sink = Sink.open(k, t, s.out, s.group)
    x_stride, y_stride = k.param(), k.param()
    r_stride = k.param() if s.residual else None
    first, last = k.share(k.own_rows())
    vectors = 32 // t.lanes
    with k.loop(first, last) as row:
        base = x.at(row * x_stride)
        squares = k.cells(vectors, of=F32.x(t.lanes))
        for (i,) in squares:
            squares[i,] = 0.0
        with k.loop(0, s.K, 32) as c:
            for (i,) in squares:
                v = base.load(c + i * t.lanes, t.lanes)
                squares[i,] = k.fma(v, v, squares[i,])
        total = squares[0,]
        for i in range(1, vectors):
            total = total + squares[i,]
        factor = inverse_root(k, k.sum(total), s.K, s.eps)
        with k.loop(s.K // sink.width) as g:
            run = []
            for i in range(0, sink.width, t.lanes):
                column = g * sink.width + i
                y = base.load(column, t.lanes) * factor * weight.load(column, t.lanes)
                if residual is not None and r_stride is not None:
                    y = residual.load(row * r_stride + column, t.lanes) + y
                run.append(y)
            sink.put(row * y_stride + g * sink.width, row * (s.K // sink.width) + g, run)


@dataclass(frozen=True)
class Quantize:
    """Rows of float32 to s8 by groups."""

    group: int


def quantize(k: Kernel, t: Target, s: Quantize) -> None:
    x = k.operand(F32)
    sink = Sink.open(k, t, "int8", s.group)
    columns, x_stride, y_stride, g_stride = (k.param() for _ in range(4))
    with k.runs(k.own_rows(), columns, sink.width) as (row, run):
        at = run * sink.width
        vectors = [x.load(row * x_stride + at + i, t.lanes) for i in range(0, s.group, t.lanes)]
        sink.put(row * y_stride + at, row * g_stride + run, vectors)


@dataclass(frozen=True)
class Convert:
    """Rows of float32 to bfloat16."""


def convert(k: Kernel, t: Target, s: Convert) -> None:
    x = k.operand(F32)
    sink = Sink.open(k, t, "bf16", 0)
    columns, x_stride, y_stride = (k.param() for _ in range(3))
    with k.runs(k.own_rows(), columns, 32) as (row, run):
        at = run * 32
        vectors = [x.load(row * x_stride + at + i, t.lanes) for i in range(0, 32, t.lanes)]
        sink.put(row * y_stride + at, run, vectors)


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


@dataclass(frozen=True)
class SiluMul:
    """y = silu(gate) * up, or with another activation"""

    out: str
    group: int = 0
    activation: str = "silu"


def silu_mul(k: Kernel, t: Target, s: SiluMul) -> None:
    gate, up = k.operand(F32), k.operand(F32)
    sink = Sink.open(k, t, s.out, s.group)
    columns, gate_stride, up_stride, y_stride, g_stride = (k.param() for _ in range(5))
    with k.runs(k.valid, columns, sink.width) as (row, run):
        at = run * sink.width
        vectors = []
        for i in range(0, sink.width, t.lanes):
            a = gate.load(row * gate_stride + at + i, t.lanes)
            b = up.load(row * up_stride + at + i, t.lanes)
            vectors.append(ACTIVATIONS[s.activation](k, a) * b)
        sink.put(row * y_stride + at, row * g_stride + run, vectors)
