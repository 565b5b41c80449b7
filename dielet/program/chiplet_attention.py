"""Attention on chiplets: each has the cache of the KV heads that its queries read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dielet.graph import Node
from dielet.partition import Cut, Range, kv_range
from dielet.program.commands.entry import ITEM_SIZE
from dielet.program.lowering import window_of
from dielet.program.sending import UNLIMITED, SendingLowering
from dielet.program.types import Attr, Operand, Region

CACHE_SHARE = 4  # a chiplet's cache is brought to shared memory if it takes at most a quarter of it


class AttentionLowering(SendingLowering):
    """Keys and values are appended in DRAM, brought to shared memory, and attended to."""

    def _lower_attention(self, number: int, node: Node, cut: Cut) -> None:
        D, G = self._head_shape(node)
        heads = {
            chiplet: kv_range(lo, hi, G) for chiplet, (lo, hi) in enumerate(cut.ranges) if lo < hi
        }
        self._append(node, D, heads)
        steps = self._cache_steps(heads)
        for step in range(max(len(s) for s in steps.values())):
            now = {c: s[step] for c, s in steps.items() if step < len(s)}
            near = {c: self._bring_cache(node, c, kv, heads[c]) for c, kv in now.items()}
            built = []
            for chiplet, kv in now.items():
                self.here = chiplet
                for queries in query_runs(*cut.ranges[chiplet], *kv, G):
                    caches = near[chiplet].operands(*kv_range(*queries, G))
                    built.append((chiplet, *self._attend(number, node, queries, caches)))
            group = self._next_group()
            for chiplet, attrs, operands in built:
                self._add("attention", chiplet, node.path, group, attrs, operands)
            for cache in near.values():
                self._give_back(cache.temporary)

    def _append(self, node: Node, D: int, heads: dict[int, Range]) -> None:
        _, k, v = node.inputs
        built = []
        for chiplet, (first, last) in heads.items():
            self.here = chiplet
            attrs, operands = self._positions(node, D)
            attrs |= self._kv_format()
            operands += self._part(k, "k", first * D, last * D)
            operands += self._part(v, "v", first * D, last * D)
            operands += self._stored(node, chiplet, (first, last), heads[chiplet])
            built.append((chiplet, attrs, operands))
        group = self._next_group()
        for chiplet, attrs, operands in built:
            self._add("kv_append", chiplet, self._append_path(node), group, attrs, operands)

    def _stored(self, node: Node, chiplet: int, kv: Range, held: Range) -> list[Operand]:
        """The cache of KV heads `kv` in the chiplet's DRAM, where it keeps heads `held`."""
        slot = self.slots[chiplet] - held[0]
        return self._cache(node, slot + kv[0], slot + kv[1])

    def _cache_steps(self, heads: dict[int, Range]) -> dict[int, list[Range]]:
        """Runs of KV heads that a chiplet attends to at a time: all, or one after the other."""
        steps = {}
        for chiplet, (first, last) in heads.items():
            per_head = 2 * self.shape.capacity * self.placement.kv.position_bytes
            fits = self._cache_room() // per_head
            one_by_one = 0 < fits < last - first
            steps[chiplet] = (
                [(head, head + 1) for head in range(first, last)] if one_by_one else [(first, last)]
            )
        return steps

    def _cache_room(self) -> int:
        """Bytes of shared memory for keys and values; none for a batch, whose caches are apart."""
        if self._batch():
            return 0
        return (self.device.memory["shared"].size or UNLIMITED) // CACHE_SHARE

    def _bring_cache(self, node: Node, chiplet: int, kv: Range, held: Range) -> Cache:
        """Keys and values in shared memory if they fit; else where they are, to be streamed."""
        stored = self._stored(node, chiplet, kv, held)
        each = self.placement.kv.position_bytes
        width = self.shape.capacity * each
        rows = kv[1] - kv[0]
        if 2 * rows * width > self._cache_room():
            return Cache(kv[0], stored, [])
        near, temporary = [], []
        for operand in stored:
            offset = self.arenas[chiplet].take(rows * width)
            temporary.append((chiplet, offset))
            region = Region(f"shared.{chiplet}", offset, rows, width, width)
            x, y = (Operand(r, o, operand.dtype) for r, o in (("x", operand.region), ("y", region)))
            path = f"{node.path}.{operand.role}"
            columns = each // ITEM_SIZE[operand.dtype]
            self._copy("copy", chiplet, path, [x], [y], "positions", width=columns)
            near.append(Operand(operand.role, region, operand.dtype))
        return Cache(kv[0], near, temporary)

    def _attend(
        self, number: int, node: Node, queries: Range, caches: list[Operand]
    ) -> tuple[dict[str, Attr], list[Operand]]:
        D, G = self._head_shape(node)
        first, last = kv_range(*queries, G)
        attrs: dict[str, Attr] = {
            "D": D,
            "G": (queries[1] - queries[0]) // (last - first),
            "T": self._row_class(),
            "out": node.attrs["out"],
            "batch": self._batch(),
            **self._kv_format(),
            **window_of(node),
        }
        lo, hi = queries[0] * D, queries[1] * D
        return attrs, [
            *self._part(node.inputs[0], "q", lo, hi),
            *caches,
            *self._part(number, "y", lo, hi),
        ]


@dataclass(frozen=True)
class Cache:
    """Keys and values of the KV heads from `first` on, where attention reads them."""

    first: int
    parts: list[Operand]
    temporary: list[tuple[int, int]]

    def operands(self, lo: int, hi: int) -> list[Operand]:
        """Those of KV heads [lo, hi)."""
        found = []
        for part in self.parts:
            r = part.region
            offset = r.offset + (lo - self.first) * r.stride
            region = Region(r.space, offset, hi - lo, r.stride, r.width)
            found.append(Operand(part.role, region, part.dtype))
        return found


def query_runs(lo: int, hi: int, first: int, last: int, G: int) -> list[Range]:
    """Query heads [lo, hi) of KV heads [first, last), in runs that read whole KV heads or one."""
    lo, hi = max(lo, first * G), min(hi, last * G)
    edges = [lo, min(hi, -(-lo // G) * G), max(lo, hi // G * G), hi]
    return [(a, b) for a, b in itertools.pairwise(sorted({*edges})) if a < b]
