"""attention: softmax(q . K^T) . V over the cache, one kv head with its G query heads at a time.

The cache is walked in blocks of 128 positions, cut at multiples of 128 from position 0 whatever the
chunk, and every row keeps a running maximum m, a vector of partial sums l and its output o:

    s = q . k            m' = max(m, s)       a = exp2(m - m')
    p = exp2(s - m')     l = l a + p          o = o a + p . v

Positions a row may not see get s = -inf, so p = 0; a block of which a row sees nothing leaves m, l
and o as they were, bit for bit (a = exp2(0) = 1). So neither the rows beside it nor the shape of
the tile show in a row's result. Keys are only read in panels that hold a position to be seen,
values only in pairs that do: what lies beyond may be anything.

With a window a row sees only the last `window` positions up to its own. Blocks before those of the
first row are left out; of a block that begins before them, the panels. A row that has seen nothing
yet has m = -inf and takes part with m' = 0, which leaves l and o at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.function import Cells, Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.math import EXP2_COARSE, exp2
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I16, I32, Value
from dielet.formats.cache import position_bytes

BLOCK = 128  # positions between two rescalings
LINE = 64
AHEAD = 8192  # bytes between what a lone row reads and what it asks for
ROWS = 16  # rows of a chunk that pass over the cache together (with each of the G heads)


@dataclass(frozen=True)
class Attention:
    """q bf16 [T, kv_heads * G * D], already times log2(e) / sqrt(D), to y of the same shape."""

    D: int
    G: int
    T: int
    out: str
    batch: bool = False  # rows are the next tokens of as many sequences
    window: int = 0  # positions up to its own that a row sees; 0: all
    kv: str = "bf16"  # the number format of the cache

    @property
    def alone(self) -> bool:
        """Every row walks over a cache of its own: only its G heads share what is read."""
        return self.T == 1 or self.batch


def attend(k: Kernel, t: Target, s: Attention, walk: Walk) -> None:
    """Write the kernel, whose rows pass over the cache as `walk` says."""
    q, k_cache, v_cache = k.operand(I16), k.operand(I8), k.operand(I8)
    y = k.operand(F32 if s.out == "f32" else I16)
    kv_heads, q_stride, y_stride, head_bytes = (k.param() for _ in range(4))
    valid = k.valid
    if s.alone:
        row_blocks = valid if s.batch else k.i64(1)
        step = 1
    else:
        row_blocks, step = (valid + (ROWS - 1)) // ROWS, ROWS
    first, last = k.share(kv_heads * row_blocks)
    with k.loop(first, last) as unit:
        head, t0 = unit // row_blocks, unit % row_blocks * step
        count = k.i64(1) if s.alone else k.minimum(valid - t0, k.i64(ROWS))
        each = k.i64(s.G) if s.alone else count  # rows of a line

        def place(line: Value, row: Value, stride: Value) -> Value:
            """Element index in q or y of a row of a line."""
            if s.alone:
                return t0 * stride + head * (s.G * s.D) + row * s.D
            return (t0 + row) * stride + (head * s.G + line) * s.D

        with k.loop(walk.lines) as line, k.loop(each) as row:
            walk.open(line * walk.line_rows + row, q.at(place(line, row, q_stride)))
        keys = k.cache(k_cache, t0, s.batch).at(head * head_bytes)
        values = k.cache(v_cache, t0, s.batch).at(head * head_bytes)
        walk.blocks(keys, values, k.position(t0, s.batch), count)
        with k.loop(walk.lines) as line, k.loop(each) as row:
            into = place(line, row, y_stride)
            for i, result in enumerate(walk.close(line * walk.line_rows + row)):
                number = result if s.out == "f32" else t.to_bf16(k, result)
                y.store(into + i * t.lanes, number)


def divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    return max(d for d in range(1, max(1, most) + 1) if number % d == 0)


class Walk:
    """Some rows on their way over the cache, and what they have seen.

    A line is a run of rows that tiles of `height` divide: the G heads of a row that stands alone,
    or ROWS rows of one head.
    """

    sums = 1  # registers that a vector of scores is summed in

    def __init__(self, k: Kernel, t: Target, s: Attention) -> None:
        self.k, self.t, self.s = k, t, s
        self.lines, self.line_rows = (1, s.G) if s.alone else (s.G, ROWS)
        self.panel_words = PANEL * position_bytes(s.kv, s.D) // 4
        self.height = divisor(self.line_rows, t.registers // 2 // t.vectors // self.sums)
        rows = self.lines * self.line_rows
        self.q = k.scratch(I32, rows * s.D // 2)
        self.m = k.scratch(F32, rows)
        self.l = k.scratch(F32, rows * t.lanes)
        self.o = k.scratch(F32, rows * s.D)
        # Of the tile at hand: scores, probabilities, and what the old sums are worth.
        self.scores = k.scratch(F32, self.height * BLOCK)
        self.p = k.scratch(I16, self.height * BLOCK)
        self.a = k.scratch(F32, self.height)

    def open(self, row: Value, q: Pointer) -> None:
        """Begin a row with its query."""
        k, t, D = self.k, self.t, self.s.D
        self.take(row, q)
        zero = k.const(F32.x(t.lanes), 0.0)
        self.m.store(row, k.const(F32, float("-inf")))
        self.l.store(row * t.lanes, zero)
        for i in range(0, D, t.lanes):
            self.o.store(row * D + i, zero)

    def take(self, row: Value, q: Pointer) -> None:
        """Keep a row's query for `score`."""
        for i in range(0, self.s.D, 16):
            self.q.cast(I16).store(row * self.s.D + i, q.load(i, 16))

    def close(self, row: Value) -> list[Value]:
        """o / l of a row."""
        t, D = self.t, self.s.D
        factor = 1.0 / self.k.sum(self.l.load(row * t.lanes, t.lanes))
        return [self.o.load(row * D + i, t.lanes) * factor for i in range(0, D, t.lanes)]

    def blocks(self, keys: Pointer, values: Pointer, start: Value, count: Value) -> None:
        """All rows over all blocks; `count` rows of the sequence, the first at `start`."""
        k, alone = self.k, self.s.alone
        tiles = (
            k.i64(self.line_rows // self.height)
            if alone
            else (count + (self.height - 1)) // self.height
        )
        first = self.unseen(start) // BLOCK * BLOCK if self.s.window else 0
        with (
            k.loop(first, start + count, BLOCK) as b0,
            k.loop(self.lines) as line,
            k.loop(tiles) as tile,
        ):
            row = line * self.line_rows + tile * self.height
            # The position of the tile's first row, and how much of the block its last row sees.
            position = start if alone else start + tile * self.height
            end = k.minimum(position + (1 if alone else self.height), start + count)
            seen = k.minimum(end - b0, k.i64(BLOCK))
            before = self.unseen(position - b0) if self.s.window else 0
            with k.when(seen > before):
                block = b0 // PANEL * self.panel_words
                block_k, block_v = keys.cast(I32).at(block), values.cast(I32).at(block)
                panel = before // PANEL  # the first that holds a position to be seen
                self.score(row, block_k, panel, seen, position - b0)
                self.weigh(row, panel, seen)
                self.mix(row, block_v, panel, seen)

    def unseen(self, position: Value) -> Value:
        """How many positions lie before the window of a row at `position`."""
        before = position - (self.s.window - 1)
        return (before > 0).choose(before, 0)

    def ask(self, stream: Pointer, nbytes: int) -> None:
        """A row that stands alone reads its cache once: ask for what comes AHEAD of here."""
        if self.s.alone:
            with self.k.loop(0, nbytes // 4, LINE // 4) as i:
                stream.at(AHEAD // 4).prefetch(i)

    def score(
        self, row: Value, keys: Pointer, first: Value | int, seen: Value, position: Value
    ) -> None:
        """scores = q . k for a tile's rows, from panel `first` on; -inf where a row may not look.

        `position`: of the first row, from the beginning of the block.
        """
        with self.k.loop(first, (seen + (PANEL - 1)) // PANEL) as panel:
            self.score_panel(row, keys.at(panel * self.panel_words), panel, position)

    def score_panel(self, row: Value, keys: Pointer, panel: Value, position: Value) -> None:
        k, t, half = self.k, self.t, self.s.D // 2
        q = self.q.at(row * half)
        acc = k.cells(self.height, t.vectors, of=F32.x(t.lanes))
        for at in acc:
            acc[at] = 0.0
        with k.loop(0, half, 8) as j:
            self.ask(keys.at(j * PANEL), 8 * PANEL * 4)
            for u in range(8):
                key = [keys.load((j + u) * PANEL + c * t.lanes, t.lanes) for c in range(t.vectors)]
                for r in range(self.height):
                    pair = t.broadcast(q[j + (r * half + u)])
                    for c in range(t.vectors):
                        acc[r, c] = t.dot2(k, acc[r, c], key[c], pair)
        self.hide(acc, panel, position)

    def hide(self, acc: Cells, panel: Value, position: Value) -> None:
        """Store a tile's scores of one panel, -inf where a row may not look."""
        k, t = self.k, self.t
        step = 0 if self.s.alone else 1  # the next row of a tile stands one position later
        lane = k.vector(I32, list(range(t.lanes)))
        hidden = k.const(F32.x(t.lanes), float("-inf"))
        for r, c in acc:
            ahead = (position - panel * PANEL).trunc(I32) + (r * step - c * t.lanes)
            masked = (lane <= ahead).choose(acc[r, c], hidden)
            if self.s.window:
                masked = (lane > ahead - self.s.window).choose(masked, hidden)
            self.scores.store(panel * PANEL + (r * BLOCK + c * t.lanes), masked)

    def weigh(self, row: Value, first: Value | int, seen: Value) -> None:
        """p = exp2(s - m') in bfloat16, and the running maximum, sums and rescaling factors."""
        k, t = self.k, self.t
        columns = (seen + (PANEL - 1)) // PANEL * PANEL
        with k.loop(self.height) as r:
            s = self.scores.at(r * BLOCK)
            old = self.m[row + r]
            top = k.var(old.splat(t.lanes))
            with k.loop(first * PANEL, columns, t.lanes) as i:
                top.value = k.larger(s.load(i, t.lanes), top.value)
            best = k.max(top.value)
            new = best.eq(float("-inf")).choose(best.like(0.0), best) if self.s.window else best
            factor = exp2(k, old - new, EXP2_COARSE)
            total = k.var(self.l.load((row + r) * t.lanes, t.lanes) * factor)
            with k.loop(first * PANEL, columns, PANEL) as i:
                for c in range(0, PANEL, t.lanes):
                    share = exp2(k, s.load(i + c, t.lanes) - new, EXP2_COARSE)
                    total.value = total.value + share
                    self.keep(r * BLOCK + i + c, share)
            self.m.store(row + r, best)
            self.l.store((row + r) * t.lanes, total.value)
            self.a.store(r, factor)

    def keep(self, at: Value, share: Value) -> None:
        """Keep a vector of probabilities for `mix`."""
        self.p.store(at, self.t.to_bf16(self.k, share))

    def mix(self, row: Value, values: Pointer, first: Value | int, seen: Value) -> None:
        """o = o a + p . v over the pairs of positions that the tile sees."""
        k, t, D = self.k, self.t, self.s.D
        wide = D // t.lanes
        height = divisor(self.height, 4)
        cols = divisor(wide, t.registers * 3 // 4 // height)
        for r0 in range(0, self.height, height):
            for c0 in range(0, wide, cols):
                acc = k.cells(height, cols, of=F32.x(t.lanes))
                out = self.o.at((row + r0) * D + c0 * t.lanes)
                for r, c in acc:
                    acc[r, c] = out.load(r * D + c * t.lanes, t.lanes) * self.a[r0 + r]
                with k.loop(first * (PANEL // 2), (seen + 1) // 2) as j:
                    if r0 == 0 and c0 == 0:
                        self.ask(values.at(j * D), 4 * D)
                    line = values.at(j * D + c0 * t.lanes)
                    v = [line.load(c * t.lanes, t.lanes) for c in range(cols)]
                    for r in range(height):
                        pair = t.broadcast(self.p.cast(I32)[j + (r0 + r) * (BLOCK // 2)])
                        for c in range(cols):
                            acc[r, c] = t.dot2(k, acc[r, c], v[c], pair)
                for r, c in acc:
                    out.store(r * D + c * t.lanes, acc[r, c])
