"""Between tokens and numbers: embed looks rows up in a packed table, select finds the best."""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.function import Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.kernels.records import Weights
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I16, I32, I64, Value


@dataclass(frozen=True)
class Embed:
    """y[t] = row ids[t] of a packed table, exactly the number that the format stands for."""

    K: int
    format: str
    group: int = 0
    minimum: bool = False
    zeros: bool = False
    scale: float = 1.0  # what every number is multiplied by


def embed(k: Kernel, t: Target, s: Embed) -> None:
    table, ids, y = k.operand(I8), k.operand(I32), k.operand(F32)
    y_stride = k.param()
    shape = Weights(s.K, s.format, s.group, s.minimum, s.zeros)
    first, last = k.share(k.valid)
    with k.loop(first, last) as row:
        token = ids[row].zext(I64)
        panel = table.at(token // PANEL * (shape.records * shape.record))
        lane = token % PANEL
        out = y.at(row * y_stride)
        with k.loop(shape.records) as g:
            record = panel.at(g * shape.record)
            into = out.at(g * shape.step)
            if s.format == "bf16":
                _bf16_record(k, t, record, lane, into)
            else:
                _int_record(k, t, shape, record, lane, into)
        if s.scale != 1.0:
            with k.loop(0, s.K, 32) as i:
                out.store(i, out.load(i, 32) * s.scale)


def _bf16_record(k: Kernel, t: Target, record: Pointer, lane: Value, into: Pointer) -> None:
    with k.loop(16) as j:
        pair = record.cast(I32)[j * PANEL + lane].bits(I16.x(2))
        into.store(j * 2, t.from_bf16(k, pair))


def _int_record(
    k: Kernel, t: Target, shape: Weights, record: Pointer, lane: Value, into: Pointer
) -> None:
    small = shape.format == "int4"
    scales = shape.group * PANEL // (2 if small else 1) // 2
    scale = t.from_f16(k, record.cast(I16)[lane + scales])
    low = t.from_f16(k, record.cast(I16)[lane + scales + PANEL]) if shape.minimum else None
    if low is not None and shape.zeros:
        low = low * scale

    def put(at: Value, word: Value) -> None:
        numbers = (word.bits(I8.x(4)).zext(I32) - shape.zero).to_float() * scale
        into.store(at, numbers if low is None else numbers + low)

    with k.loop(shape.group // (8 if small else 4)) as j:
        word = record.cast(I32)[j * PANEL + lane]
        if small:
            put(j * 8, word & 0x0F0F0F0F)
            put(j * 8 + 4, (word >> 4) & 0x0F0F0F0F)
        else:
            put(j * 4, word)


@dataclass(frozen=True)
class Select:
    """Per row {largest logit, its lowest index, how many are not finite, 0}."""


def select(k: Kernel, t: Target, s: Select) -> None:
    logits, out = k.operand(F32), k.operand(I32)
    columns, x_stride, y_stride = (k.param() for _ in range(3))
    first, last = k.share(k.valid)
    with k.loop(first, last) as row:
        _select(k, t, logits.at(row * x_stride), out.at(row * y_stride), columns)


def _select(k: Kernel, t: Target, logits: Pointer, out: Pointer, columns: Value) -> None:
    of = F32.x(t.lanes)
    lowest = float("-inf")
    best, where = k.var(k.const(of, lowest)), k.var(k.const(of.of(I32), 0))
    broken = k.var(k.const(of.of(I32), 0))
    lane = k.vector(I32, list(range(t.lanes)))
    whole = columns // t.lanes * t.lanes
    # Each lane keeps its first largest; a lane without any stays at -inf and index 0.
    with k.loop(0, whole, t.lanes) as c:
        v = logits.load(c, t.lanes)
        better = v > best.value
        best.value = better.choose(v, best.value)
        where.value = better.choose(lane + c.trunc(I32), where.value)
        finite = k.unary("fabs", v) < float("inf")
        broken.value = broken.value + finite.choose(k.const(of.of(I32), 0), 1)
    values, places = k.scratch(F32, t.lanes), k.scratch(I32, t.lanes)
    values.store(0, best.value)
    places.store(0, where.value)
    top, index = k.var(k.const(F32, lowest)), k.var(k.const(I32, 0))
    count = k.var(k.sum(broken.value))

    def consider(v: Value, at: Value) -> None:
        wins = (v > top.value) | (v.eq(top.value) & (at < index.value))
        top.value = wins.choose(v, top.value)
        index.value = wins.choose(at, index.value)

    with k.loop(t.lanes) as i:
        consider(values[i], places[i])
    with k.loop(whole, columns) as c:
        v = logits[c]
        consider(v, c.trunc(I32))
        finite = k.unary("fabs", v) < float("inf")
        count.value = count.value + finite.choose(k.const(I32, 0), 1)
    out[0] = top.value.bits(I32)
    out[1] = index.value
    out[2] = count.value
    out[3] = k.const(I32, 0)
