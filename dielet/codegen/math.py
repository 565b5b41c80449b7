"""Functions of vectors that have no instruction: exp2, sigmoid, and the leaving of float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dielet.codegen.function import Function, Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.targets.base import Target
from dielet.codegen.values import F32, I8, I16, I32, Value
from dielet.formats.cache import LARGEST, SMALLEST_SCALE

# 2**f - 1 over f in [-1/2, 1/2], f times these: relative error 2e-9 and 3e-6.
EXP2_FINE = (
    0.6931472028563633,
    0.2402264791344782,
    0.05550332468658612,
    0.009618437369532828,
    0.0013398875257486335,
    0.00015353360652070776,
)
EXP2_COARSE = (0.693124192380967, 0.24024098704497512, 0.05590643162073987, 0.009582850756742974)
LOG2_E = 1.4426950408889634
ROUND = 12582912.0  # 1.5 * 2**23: added to a small float32, it leaves the nearest integer


def exp2(k: Function, x: Value, coefficients: tuple[float, ...] = EXP2_FINE) -> Value:
    """2**x; exactly 1 at 0, exactly 0 below -126, 2**127 above 127, NaN for a NaN."""
    bounded = k.smaller(x.like(127.0), k.larger(x.like(-126.0), x))
    # The magic number leaves n + 127, the exponent field of 2**n, in the low bits.
    shifted = bounded + (ROUND + 127)
    power = (shifted.bits(x.type.of(I32)) << 23).bits(x.type)
    f = bounded - (shifted - (ROUND + 127))
    polynomial = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        polynomial = k.fma(polynomial, f, c)
    polynomial = k.fma(polynomial, f, 1.0)
    return (x < -126.0).choose(x.like(0.0), polynomial * power)


def silu(k: Function, x: Value) -> Value:
    """x / (1 + e**-x)"""
    return x / (exp2(k, x * -LOG2_E) + 1.0)


def gelu_tanh(k: Function, x: Value) -> Value:
    """x / 2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x / (1 + e**-2(...))"""
    slope = 2 * math.sqrt(2 / math.pi)
    inner = k.fma(x * x, x.like(0.044715 * slope), x.like(slope))
    return x / (exp2(k, x * inner * -LOG2_E) + 1.0)


def root_mean_square(k: Function, vectors: list[Value], count: int, eps: float) -> Value:
    """1 / sqrt(mean of the squares + eps) as a scalar; the vectors hold `count` numbers."""
    total = vectors[0] * vectors[0]
    for v in vectors[1:]:
        total = k.fma(v, v, total)
    return inverse_root(k, k.sum(total), count, eps)


def inverse_root(k: Function, squares: Value, count: int, eps: float) -> Value:
    return 1.0 / k.unary("sqrt", squares / float(count) + eps)


def nearest(k: Function, x: Value) -> Value:
    """|x| < 2**22 to the nearest integer (i32), ties to even; anything for other x."""
    bits = (x + ROUND).bits(x.type.of(I32))
    return bits - 0x4B400000


@dataclass
class Sink:
    """Where a row-wise kernel leaves its result: as float32, bfloat16, or quantised by groups.

    Results come in runs of `width` columns: the group, or 32.
    """

    k: Kernel
    t: Target
    out: str
    width: int
    y: Pointer
    scale: Pointer | None = None
    sum: Pointer | None = None

    @staticmethod
    def open(k: Kernel, t: Target, out: str, group: int) -> Sink:
        """Take the output operands: y, and scale and sum when quantising."""
        if out != "int8":
            return Sink(k, t, out, 32, k.operand(F32 if out == "f32" else I16))
        return Sink(k, t, out, group, k.operand(I8), k.operand(F32), k.operand(I32))

    def put(self, index: Value, group_index: Value, vectors: list[Value]) -> None:
        """Store one run at element `index` of y; its scale and sum at `group_index`."""
        k, t, lanes = self.k, self.t, vectors[0].type.lanes
        if self.out == "f32":
            for i, v in enumerate(vectors):
                self.y.store(index + i * lanes, v)
        elif self.out == "bf16":
            for i, v in enumerate(vectors):
                self.y.store(index + i * lanes, t.to_bf16(k, v))
        else:
            assert self.scale is not None and self.sum is not None
            quants, scale, total = quantised(k, vectors)
            for i, q in enumerate(quants):
                self.y.store(index + i * lanes, q)
            self.scale.store(group_index, scale)
            self.sum.store(group_index, total)


def quantised(k: Function, vectors: list[Value]) -> tuple[list[Value], Value, Value]:
    """One group as s8 with its scale max|x| / 127 and the sum of its integers.

    A NaN or infinity in the group makes the scale one, so that it cannot vanish.
    """
    scale = largest_magnitude(k, vectors) / 127.0
    inverse = (scale > 0.0).choose(1.0 / scale, 0.0)
    integers = [nearest(k, v * inverse) for v in vectors]
    total = integers[0]
    for i in integers[1:]:
        total = total + i
    return [i.trunc(I8) for i in integers], scale, k.sum(total)


def rounded(k: Function, t: Target, vectors: list[Value]) -> tuple[list[Value], Value]:
    """Numbers that share a scale as codes -127 ... 127 (i32), and the scale as bfloat16 (i16).

    As `rounded` in dielet/formats/cache.py; a NaN makes the scale one.
    """
    scale = largest_magnitude(k, vectors) * (1 / LARGEST)
    scale = (scale < SMALLEST_SCALE).choose(k.const(F32, SMALLEST_SCALE), scale)
    short = t.to_bf16(k, scale)
    inverse = 1.0 / t.from_bf16(k, short)
    return [nearest(k, v * inverse) for v in vectors], short


def largest_magnitude(k: Function, vectors: list[Value]) -> Value:
    """The largest |x|; a NaN is larger than all."""
    of_bits = vectors[0].type.of(I32)
    # The bits of |x| order as integers do, and put NaN on top.
    largest = vectors[0].bits(of_bits) & 0x7FFFFFFF
    for v in vectors[1:]:
        largest = k.larger(v.bits(of_bits) & 0x7FFFFFFF, largest)
    return k.max(largest).bits(F32)


def spread(k: Function, vectors: list[Value], block: int) -> list[Value]:
    """The Walsh-Hadamard transform of dielet/formats/cache.py, in the same order of sums."""
    lanes = vectors[0].type.lanes
    step = 1
    while step < block:
        if step < lanes:
            sign = k.vector(F32, [-1.0 if lane & step else 1.0 for lane in range(lanes)])
            swap = [lane ^ step for lane in range(lanes)]
            vectors = [k.fma(v, sign, v.shuffle(swap)) for v in vectors]
        else:
            away = step // lanes
            vectors = [
                vectors[i - away] - v if i & away else v + vectors[i + away]
                for i, v in enumerate(vectors)
            ]
        step *= 2
    return vectors
