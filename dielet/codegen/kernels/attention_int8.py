"""attention over an int8 cache: both products are integer dots, and exact.

A query is turned as the keys are and rounded to 15 bits with a scale; so are a block's
probabilities, times the scales of their positions, to 14. Each number is then two of 7 bits, high
and low, since the dots take bytes:

    s = q . k = qs ks (128 (qh . kc) + (ql . kc))

What is rounded is a row's own within one block: neither the rows beside it nor the tile show.
"""

from __future__ import annotations

from dielet.codegen.function import Cells, Pointer
from dielet.codegen.kernel import Kernel
from dielet.codegen.kernels.attention import BLOCK, Attention, Walk, attend, divisor
from dielet.codegen.math import largest_magnitude, nearest, spread
from dielet.codegen.targets.base import PANEL, Target
from dielet.codegen.values import F32, I8, I16, I32, Value
from dielet.formats.cache import SMALLEST_SCALE, spread_block

HALF = 7  # bits of each half of a number
QUERY = 127 << HALF  # the largest magnitude of a rounded query
SHARE = (128 << HALF) - 1  # .. and of a probability, which has no sign
FOURS = PANEL // 4  # runs of four positions in a panel


def attention(k: Kernel, t: Target, s: Attention) -> None:
    """The family: over a cache of either format."""
    attend(k, t, s, (Int8Walk if s.kv == "int8" else Walk)(k, t, s))


class Int8Walk(Walk):
    """Some rows on their way over an int8 cache."""

    sums = 2

    def __init__(self, k: Kernel, t: Target, s: Attention) -> None:
        super().__init__(k, t, s)
        rows = self.lines * self.line_rows
        # Halves in bytes, high ones first, and what a query's dots start from.
        self.scale = k.scratch(F32, rows)
        self.starts = k.scratch(I32, 2 * rows)
        self.shares = k.scratch(I8, 2 * self.height * BLOCK)
        self.worth = k.scratch(F32, self.height)

    def take(self, row: Value, q: Pointer) -> None:
        """Turn and round a query: [2][D] bytes."""
        k, t, D = self.k, self.t, self.s.D
        turned = [t.from_bf16(k, q.load(i, t.lanes)) for i in range(0, D, t.lanes)]
        block = spread_block(D)
        turned = spread(k, turned, block)
        scale, inverse = self._step(turned, QUERY)
        halves = self.q.cast(I8).at(row * (2 * D))
        totals = [k.const(I32.x(t.lanes), 0)] * 2
        for i, v in enumerate(turned):
            number = nearest(k, v * inverse)
            high = (number + (1 << (HALF - 1))).sra(HALF)
            for half, part in enumerate((high, number - (high << HALF))):
                totals[half] = totals[half] + part
                halves.store(half * D + i * t.lanes, part.trunc(I8))
        # Keys are stored as codes + 128, of which the target's dot takes off `dot4_zero`.
        for half, total in enumerate(totals):
            self.starts.store(row * 2 + half, k.sum(total) * (t.dot4_zero - 128))
        self.scale.store(row, scale * (1 / block))

    def _step(self, vectors: list[Value], most: int) -> tuple[Value, Value]:
        """The scale that makes the largest magnitude `most`, a NaN if there is one; its inverse."""
        scale = largest_magnitude(self.k, vectors) * (1 / most)
        scale = (scale < SMALLEST_SCALE).choose(self.k.const(F32, SMALLEST_SCALE), scale)
        return scale, 1.0 / scale

    def score_panel(self, row: Value, keys: Pointer, panel: Value, position: Value) -> None:
        k, t, D = self.k, self.t, self.s.D
        words = D // 4
        q = self.q.at(row * (2 * words))
        dots = k.cells(self.height, t.vectors, 2, of=I32.x(t.lanes))
        for r, c, half in dots:
            dots[r, c, half] = t.broadcast(self.starts[row * 2 + (2 * r + half)])
        unroll = divisor(words, 8)
        with k.loop(0, words, unroll) as j:
            self.ask(keys.at(j * PANEL), unroll * PANEL * 4)
            for u in range(unroll):
                codes = [
                    keys.load((j + u) * PANEL + c * t.lanes, t.lanes) for c in range(t.vectors)
                ]
                for r in range(self.height):
                    for half in range(2):
                        four = t.broadcast(q[j + ((2 * r + half) * words + u)])
                        for c in range(t.vectors):
                            at = r, c, half
                            dots[at] = t.dot4(k, dots[at], codes[c], four)
        scales = keys.cast(I16).at(PANEL * D // 2)
        self.ask(scales.cast(I32), 2 * PANEL)
        scores = k.cells(self.height, t.vectors, of=F32.x(t.lanes))
        for c in range(t.vectors):
            scale = t.from_bf16(k, scales.load(c * t.lanes, t.lanes))
            for r in range(self.height):
                scores[r, c] = self._joined(dots, r, c) * scale * self.scale[row + r]
        self.hide(scores, panel, position)

    @staticmethod
    def _joined(dots: Cells, r: int, c: int) -> Value:
        return ((dots[r, c, 0] << HALF) + dots[r, c, 1]).to_float()

    def keep(self, at: Value, share: Value) -> None:
        self.scores.store(at, share)

    def mix(self, row: Value, values: Pointer, first: Value | int, seen: Value) -> None:
        k, t, D = self.k, self.t, self.s.D
        panels = (seen + (PANEL - 1)) // PANEL
        with k.loop(self.height) as r:
            self._round_shares(r, values, first, panels)
        wide = D // t.lanes
        height = divisor(self.height, 1 if self.s.alone else 2)
        cols = divisor(wide, t.registers * 3 // 8 // height)
        for r0 in range(0, self.height, height):
            for c0 in range(0, wide, cols):
                self._mix_tile(row, values, (r0, height), (c0, cols), first, panels)

    def _round_shares(self, r: Value, values: Pointer, first: Value | int, panels: Value) -> None:
        """A row's probabilities times the scales of their positions, in halves, and their scale.

        The scale of a position that the row does not see, where p = 0, may be anything.
        """
        k, t = self.k, self.t
        p = self.scores.at(r * BLOCK)
        top = k.var(k.const(F32.x(t.lanes), 0.0))
        with k.loop(first, panels) as panel:
            scales = values.at(panel * self.panel_words).cast(I16).at(PANEL * self.s.D // 2)
            for c in range(0, PANEL, t.lanes):
                share = p.load(panel * PANEL + c, t.lanes)
                weighed = share * t.from_bf16(k, scales.load(c, t.lanes))
                weighed = share.eq(0.0).choose(share, weighed)
                p.store(panel * PANEL + c, weighed)
                top.value = self._larger(top.value, weighed)
        scale, inverse = self._step([top.value], SHARE)
        self.worth.store(r, scale)
        halves = self.shares.at(r * (2 * BLOCK))
        with k.loop(first * PANEL, panels * PANEL, t.lanes) as i:
            number = nearest(k, p.load(i, t.lanes) * inverse)
            halves.store(i, (number >> HALF).trunc(I8))
            halves.store(i + BLOCK, (number & (1 << HALF) - 1).trunc(I8))

    def _larger(self, a: Value, b: Value) -> Value:
        """Of two numbers that are not negative; a NaN is larger."""
        bits = a.type.of(I32)
        return self.k.larger(a.bits(bits), b.bits(bits) & 0x7FFFFFFF).bits(a.type)

    def _mix_tile(
        self,
        row: Value,
        values: Pointer,
        rows: tuple[int, int],
        columns: tuple[int, int],
        first: Value | int,
        panels: Value,
    ) -> None:
        """o = o a + p . v for some rows and vectors of columns: (first, how many)."""
        k, t, D = self.k, self.t, self.s.D
        (r0, height), (c0, cols) = rows, columns
        dots = k.cells(height, cols, 2, of=I32.x(t.lanes))
        for at in dots:
            dots[at] = 0
        shares = self.shares.cast(I32).at(r0 * (2 * BLOCK // 4))
        with k.loop(first, panels) as panel:
            codes = values.at(panel * self.panel_words)
            if r0 == 0 and c0 == 0:
                self.ask(codes.at(FOURS * D), 2 * PANEL)
            with k.loop(FOURS) as j:
                if r0 == 0 and c0 == 0:
                    self.ask(codes.at(j * D), 4 * D)
                line = codes.at(j * D + c0 * t.lanes)
                v = [line.load(c * t.lanes, t.lanes) for c in range(cols)]
                for r in range(height):
                    for half in range(2):
                        word = panel * FOURS + j + (2 * r + half) * (BLOCK // 4)
                        four = t.broadcast(shares[word])
                        for c in range(cols):
                            at = r, c, half
                            dots[at] = t.dot4_small(k, dots[at], four, v[c])
        out = self.o.at((row + r0) * D + c0 * t.lanes)
        for r in range(height):
            for c in range(cols):
                old = out.load(r * D + c * t.lanes, t.lanes) * self.a[r0 + r]
                new = k.fma(self._joined(dots, r, c), t.broadcast(self.worth[r0 + r]), old)
                out.store(r * D + c * t.lanes, new)
