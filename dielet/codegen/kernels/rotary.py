"""rotary and kv_append: heads are normalised, turned by their position, and stored or cached.

The turn pairs element i with element i + D/2. Half a head need not fill whole registers (D = 80),
so these kernels use the widest vector that divides it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dielet.codegen.function import Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.math import root_mean_square, rounded, spread
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I16, I32, Value
from dielet.formats.cache import spread_block


@dataclass(frozen=True)
class Rotary:
    """y = scale * turn(norm(x)) in bfloat16, per head."""

    D: int
    norm: bool
    eps: float
    scale: float
    batch: bool = False


def rotary(k: Kernel, t: Target, s: Rotary) -> None:
    x = k.operand(F32)
    weight = k.operand(F32) if s.norm else None
    cos, sin = k.operand(F32), k.operand(F32)
    y = k.operand(I16)
    heads, x_stride, y_stride = (k.param() for _ in range(3))
    with k.runs(k.valid, heads, 1) as (row, head):
        position = k.position(row, s.batch)
        vectors = turned(k, t, s, x.at(row * x_stride + head * s.D), weight, cos, sin, position)
        out = y.at(row * y_stride + head * s.D)
        lanes = vectors[0].type.lanes
        for i, v in enumerate(vectors):
            out.store(i * lanes, t.to_bf16(k, v * s.scale if s.scale != 1.0 else v))


@dataclass(frozen=True)
class KvAppend:
    """K (normalised and turned) and V of new tokens into the cache, per head."""

    D: int
    norm: bool
    eps: float
    batch: bool = False
    kv: str = "bf16"  # the number format of the cache


def kv_append(k: Kernel, t: Target, s: KvAppend) -> None:
    new_k, new_v = k.operand(F32), k.operand(F32)
    weight = k.operand(F32) if s.norm else None
    cos, sin = k.operand(F32), k.operand(F32)
    k_cache, v_cache = k.operand(I8), k.operand(I8)
    heads, k_stride, v_stride, head_bytes = (k.param() for _ in range(4))
    line = k.scratch(I16, s.D)
    append = _append_int8 if s.kv == "int8" else _append_bf16
    first, last = k.share(heads)
    with k.loop(first, last) as head, k.loop(k.valid) as row:
        position = k.position(row, s.batch)
        key = turned(k, t, s, new_k.at(row * k_stride + head * s.D), weight, cos, sin, position)
        lanes = key[0].type.lanes
        source = new_v.at(row * v_stride + head * s.D)
        value = [source.load(i, lanes) for i in range(0, s.D, lanes)]
        keys = k.cache(k_cache, row, s.batch).at(head * head_bytes)
        values = k.cache(v_cache, row, s.batch).at(head * head_bytes)
        append(k, t, line, key, value, keys, values, position)


def _append_bf16(
    k: Kernel,
    t: Target,
    line: Pointer,
    key: list[Value],
    value: list[Value],
    keys: Pointer,
    values: Pointer,
    position: Value,
) -> None:
    lanes = key[0].type.lanes
    D = len(key) * lanes
    # K: pairs of elements, 32 positions side by side.
    for i, v in enumerate(key):
        line.store(i * lanes, t.to_bf16(k, v))
    panel = keys.cast(I32).at((position // PANEL) * (D // 2 * PANEL))
    with k.loop(D // 2) as j:
        panel.store(j * PANEL + position % PANEL, line.cast(I32)[j])
    # V: pairs of positions. The even one clears its partner; the odd one joins it.
    pair = values.cast(I32).at((position // 2) * D)
    shift = ((position & 1) * 16).trunc(I32)
    keep = k.const(I32, 0) - (position & 1).trunc(I32) & 0xFFFF
    for i, v in enumerate(value):
        old = pair.load(i * lanes, lanes)
        new = t.to_bf16(k, v).zext(I32) << shift.splat(lanes)
        pair.store(i * lanes, (old & keep) | new)


def _append_int8(
    k: Kernel,
    t: Target,
    line: Pointer,
    key: list[Value],
    value: list[Value],
    keys: Pointer,
    values: Pointer,
    position: Value,
) -> None:
    lanes = key[0].type.lanes
    D = len(key) * lanes
    panel = (position // PANEL) * (PANEL * (D + 2))
    place = position % PANEL
    # K: four elements, 32 positions side by side; then their scales.
    codes, scale = rounded(k, t, spread(k, key, spread_block(D)))
    for i, code in enumerate(codes):
        line.cast(I8).store(i * lanes, (code + 128).trunc(I8))
    keys, values = keys.at(panel), values.at(panel)
    with k.loop(D // 4) as j:
        keys.cast(I32).store(j * PANEL + place, line.cast(I32)[j])
    keys.cast(I16).store(place + PANEL * D // 2, scale)
    # V: four positions of an element in a word; then the scales of 32.
    codes, scale = rounded(k, t, value)
    fours = values.cast(I32).at(place // 4 * D)
    shift = ((place & 3) * 8).trunc(I32)
    others = (k.const(I32, 0xFF) << shift) ^ -1
    for i, code in enumerate(codes):
        old = fours.load(i * lanes, lanes)
        new = (code & 0xFF) << shift.splat(lanes)
        fours.store(i * lanes, (old & others) | new)
    values.cast(I16).store(place + PANEL * D // 2, scale)


def turned(
    k: Kernel,
    t: Target,
    s: Rotary | KvAppend,
    x: Pointer,
    weight: Pointer | None,
    cos: Pointer,
    sin: Pointer,
    position: Value,
) -> list[Value]:
    """One head, normalised if it has a weight, turned by `position`: the vectors in order."""
    lanes = math.gcd(s.D // 2, t.lanes)
    count = s.D // lanes
    v = [x.load(i * lanes, lanes) for i in range(count)]
    if weight is not None:
        factor = root_mean_square(k, v, s.D, s.eps)
        v = [a * factor * weight.load(i * lanes, lanes) for i, a in enumerate(v)]
    half = count // 2
    low, high = [], []
    for i in range(half):
        at = position * (s.D // 2) + i * lanes
        c, sn = cos.load(at, lanes), sin.load(at, lanes)
        a, b = v[i], v[half + i]
        low.append(a * c - b * sn)
        high.append(b * c + a * sn)
    return low + high
