"""attention: softmax(q . K^T) . V over the cache, one kv head with its G query heads at a time.

The cache is walked in blocks of 128 positions, cut at multiples of 128 from position 0 whatever the
chunk, and every row keeps a running maximum m, a vector of partial sums l and its output o:

    s = q . k            m' = max(m, s)       a = exp2(m - m')
    p = exp2(s - m')     l = l a + p          o = o a + p . v

Positions a row may not see get s = -inf, so p = 0; a block of which a row sees nothing leaves m, l
and o as they were, bit for bit (a = exp2(0) = 1). So neither the rows beside it nor the shape of
the tile show in a row's result. Keys are only read in panels that hold a position to be seen,
values only in pairs that do: what lies beyond may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.function import Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.math import EXP2_COARSE, exp2
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I16, I32, Value

BLOCK = 128  # positions between two rescalings
ROWS = 16  # rows of a chunk that pass over the cache together (with each of the G heads)


@dataclass(frozen=True)
class Attention:
    """q bf16 [T, kv_heads * G * D], already times log2(e) / sqrt(D), to y of the same shape."""

    D: int
    G: int
    T: int
    out: str
    batch: bool = False  # rows are the next tokens of as many sequences


@dataclass
class State:
    """The rows under way: `height` rows a tile, their queries, and what they have seen."""

    height: int
    q: Pointer  # i32 [rows, D/2]
    m: Pointer  # f32 [rows]
    sums: Pointer  # f32 [rows, lanes]
    o: Pointer  # f32 [rows, D]
    a: Pointer  # f32 [height]
    s: Pointer  # f32 [height, BLOCK]
    p: Pointer  # i16 [height, BLOCK]


def attention(k: Kernel, t: Target, s: Attention) -> None:
    q, k_cache, v_cache = k.operand(I16), k.operand(I8), k.operand(I8)
    y = k.operand(F32 if s.out == "f32" else I16)
    kv_heads, q_stride, y_stride, head_bytes = (k.param() for _ in range(4))
    valid = k.valid

    # A line is a run of rows that tiles divide: the G heads of a single row, or rows of one head.
    single = s.T == 1 or s.batch
    lines, line_rows = (1, s.G) if single else (s.G, ROWS)
    most = max(1, t.registers // 2 // t.vectors)
    height = divisor(line_rows, most)
    rows = lines * line_rows
    state = State(
        height,
        k.scratch(I32, rows * s.D // 2),
        k.scratch(F32, rows),
        k.scratch(F32, rows * t.lanes),
        k.scratch(F32, rows * s.D),
        k.scratch(F32, height),
        k.scratch(F32, height * BLOCK),
        k.scratch(I16, height * BLOCK),
    )
    row_blocks = valid if s.batch else k.i64(1) if single else (valid + (ROWS - 1)) // ROWS
    first, last = k.share(kv_heads * row_blocks)
    with k.loop(first, last) as unit:
        head, t0 = unit // row_blocks, unit % row_blocks * (1 if single else ROWS)
        start = k.position(t0, s.batch)
        count = k.i64(1) if single else k.minimum(valid - t0, k.i64(ROWS))

        def place(line: Value, row: Value, stride: Value) -> Value:
            """Element index in q or y of a row of a line."""
            if single:
                return t0 * stride + head * (s.G * s.D) + row * s.D
            return (t0 + row) * stride + (head * s.G + line) * s.D

        with k.loop(lines) as line, k.loop(k.i64(s.G) if single else count) as row:
            at = line * line_rows + row
            for i in range(0, s.D, 16):
                piece = q.load(place(line, row, q_stride) + i, 16)
                state.q.cast(I16).store(at * s.D + i, piece)
            state.m.store(at, k.const(F32, float("-inf")))
            zero = k.const(F32.x(t.lanes), 0.0)
            state.sums.store(at * t.lanes, zero)
            for i in range(0, s.D, t.lanes):
                state.o.store(at * s.D + i, zero)

        keys = k.cache(k_cache, t0, s.batch).at(head * head_bytes)
        values = k.cache(v_cache, t0, s.batch).at(head * head_bytes)
        tiles = k.i64(line_rows // height) if single else (count + (height - 1)) // height
        with (
            k.loop(0, start + count, BLOCK) as b0,
            k.loop(lines) as line,
            k.loop(tiles) as tile,
        ):
            at = line * line_rows + tile * height
            # The position of the tile's first row, and how much of the block its last row sees.
            position = start if single else start + tile * height
            end = k.minimum(position + (1 if single else height), start + count)
            seen = k.minimum(end - b0, k.i64(BLOCK))
            with k.when(seen > 0):
                scores(k, t, s, state, at, keys, b0, seen, position)
                probabilities(k, t, state, at, seen)
                mix(k, t, s, state, at, values, b0, seen)

        with k.loop(lines) as line, k.loop(k.i64(s.G) if single else count) as row:
            at = line * line_rows + row
            factor = 1.0 / k.sum(state.sums.load(at * t.lanes, t.lanes))
            into = place(line, row, y_stride)
            for i in range(0, s.D, t.lanes):
                result = state.o.load(at * s.D + i, t.lanes) * factor
                y.store(into + i, result if s.out == "f32" else t.to_bf16(k, result))


def divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    return max(d for d in range(1, most + 1) if number % d == 0)


def scores(
    k: Kernel,
    t: Target,
    s: Attention,
    state: State,
    at: Value,
    keys: Pointer,
    b0: Value,
    seen: Value,
    position: Value,
) -> None:
    """state.s = q . k for a tile's rows, panel by panel; -inf where a row may not look."""
    q = state.q.at(at * (s.D // 2))
    lane = k.vector(I32, list(range(t.lanes)))
    step = (
        0 if s.T == 1 or s.batch else 1
    )  # the next row of a tile stands this many positions later
    with k.loop((seen + (PANEL - 1)) // PANEL) as panel:
        base = keys.cast(I32).at((b0 + panel * PANEL) * (s.D // 2))
        acc = k.cells(state.height, t.vectors, of=F32.x(t.lanes))
        for r, c in acc:
            acc[r, c] = 0.0
        with k.loop(0, s.D // 2, 8) as j:
            for u in range(8):
                key = [base.load((j + u) * PANEL + c * t.lanes, t.lanes) for c in range(t.vectors)]
                for r in range(state.height):
                    pair = t.broadcast(q[j + (r * (s.D // 2) + u)])
                    for c in range(t.vectors):
                        acc[r, c] = t.dot2(k, acc[r, c], key[c], pair)
        for r, c in acc:
            ahead = (position - b0 - panel * PANEL).trunc(I32) + (r * step - c * t.lanes)
            visible = lane <= ahead
            hidden = k.const(F32.x(t.lanes), float("-inf"))
            masked = visible.choose(acc[r, c], hidden)
            state.s.store(panel * PANEL + (r * BLOCK + c * t.lanes), masked)


def probabilities(k: Kernel, t: Target, state: State, at: Value, seen: Value) -> None:
    """state.p = exp2(s - m') in bfloat16, and the running maximum, sums and rescaling factors."""
    panels = (seen + (PANEL - 1)) // PANEL
    with k.loop(state.height) as r:
        s, p = state.s.at(r * BLOCK), state.p.at(r * BLOCK)
        old = state.m[at + r]
        top = k.var(old.splat(t.lanes))
        with k.loop(0, panels * PANEL, t.lanes) as i:
            top.value = k.larger(s.load(i, t.lanes), top.value)
        new = k.max(top.value)
        factor = exp2(k, old - new, EXP2_COARSE)
        total = k.var(state.sums.load((at + r) * t.lanes, t.lanes) * factor)
        with k.loop(0, panels * PANEL, PANEL) as i:
            for c in range(0, PANEL, t.lanes):
                share = exp2(k, s.load(i + c, t.lanes) - new, EXP2_COARSE)
                total.value = total.value + share
                p.store(i + c, t.to_bf16(k, share))
        state.m.store(at + r, new)
        state.sums.store((at + r) * t.lanes, total.value)
        state.a.store(r, factor)


def mix(
    k: Kernel,
    t: Target,
    s: Attention,
    state: State,
    at: Value,
    values: Pointer,
    b0: Value,
    seen: Value,
) -> None:
    """state.o = o a + p . v over the pairs of positions that the tile sees."""
    wide = s.D // t.lanes
    height = divisor(state.height, 4)
    cols = divisor(wide, t.registers * 3 // 4 // height)
    base = values.cast(I32).at(b0 // 2 * s.D)
    for r0 in range(0, state.height, height):
        for c0 in range(0, wide, cols):
            acc = k.cells(height, cols, of=F32.x(t.lanes))
            out = state.o.at((at + r0) * s.D + c0 * t.lanes)
            for r, c in acc:
                acc[r, c] = out.load(r * s.D + c * t.lanes, t.lanes) * state.a[r0 + r]
            with k.loop((seen + 1) // 2) as j:
                line = base.at(j * s.D + c0 * t.lanes)
                v = [line.load(c * t.lanes, t.lanes) for c in range(cols)]
                for r in range(height):
                    pair = t.broadcast(state.p.cast(I32)[j + (r0 + r) * (BLOCK // 2)])
                    for c in range(cols):
                        acc[r, c] = t.dot2(k, acc[r, c], v[c], pair)
            for r, c in acc:
                out.store(r * s.D + c * t.lanes, acc[r, c])
