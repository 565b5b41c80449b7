"""What DMA engines do, done by cores: copy rectangles of bytes, add up partial sums, agree."""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.function import Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I32, Value

BLOCK = 256  # words that are one unit of work


@dataclass(frozen=True)
class Copy:
    """y = x for `parts` pairs of rectangles of 32-bit words.

    extent: 'all' of each, the 'rows' that are real, or of each row the 'positions' in the cache.
    """

    parts: int
    extent: str


def copy(k: Kernel, t: Target, s: Copy) -> None:
    sources = [k.operand(I32) for _ in range(s.parts)]
    targets = [k.operand(I32) for _ in range(s.parts)]
    for x, y in zip(sources, targets, strict=True):
        rows, words, x_stride, y_stride = (k.param() for _ in range(4))
        if s.extent == "rows":
            rows = k.minimum(rows, k.valid)
        if s.extent == "positions":
            panels = (k.past + k.valid + (PANEL - 1)) // PANEL
            words = k.minimum(words, panels * k.param())
        blocks = (words + (BLOCK - 1)) // BLOCK
        first, last = k.share(rows * blocks)
        with k.loop(first, last) as unit:
            row, begin = unit // blocks, unit % blocks * BLOCK
            length = k.minimum(words - begin, k.i64(BLOCK))
            _copy_words(k, t, x.at(row * x_stride + begin), y.at(row * y_stride + begin), length)


def _copy_words(k: Kernel, t: Target, x: Pointer, y: Pointer, words: Value) -> None:
    whole = words // t.lanes * t.lanes
    with k.loop(0, whole, t.lanes) as i:
        y.store(i, x.load(i, t.lanes))
    with k.loop(whole, words) as i:
        y[i] = x[i]


@dataclass(frozen=True)
class Reduce:
    """y = x0 + x1 + ... of `count` matrices, in this order, then the residual if there is one."""

    count: int
    residual: bool


def reduce(k: Kernel, t: Target, s: Reduce) -> None:
    terms = [k.operand(F32) for _ in range(s.count + s.residual)]
    y = k.operand(F32)
    columns, y_stride = k.param(), k.param()
    strides = [k.param() for _ in terms]
    with k.runs(k.valid, columns, PANEL) as (row, run):
        for i in range(0, PANEL, t.lanes):
            at = run * PANEL + i
            total = terms[0].load(row * strides[0] + at, t.lanes)
            for x, stride in zip(terms[1:], strides[1:], strict=True):
                total = total + x.load(row * stride + at, t.lanes)
            y.store(row * y_stride + at, total)


@dataclass(frozen=True)
class Nothing:
    """A command that only waits and signals."""


def nothing(k: Kernel, t: Target, s: Nothing) -> None:
    """The worker loop does the waiting."""
