"""Cuts for devices whose chiplets have memories of their own: what stays where it is made.

Query heads are dealt out, and each chiplet keeps the KV heads that its queries read, so attention
needs nothing from elsewhere; a KV head is on two chiplets only when heads do not divide.  The
gated product is cut alike all the way through.  Norms and whatever else is not divided are chiplet
0's.  What remains is the linear after attention and the one after the gated product:

column      along outputs: it needs all inputs, so they are gathered; no sum is split
column_row  along inputs: it needs what its chiplet has; partial sums are added up on chiplet 0
"""

from __future__ import annotations

import math

from dielet.formats.packed import PANEL
from dielet.graph import Graph, Node, activation_group
from dielet.partition.cut import Cut, Range, expert_cut, share


def local_cuts(graph: Graph, chiplets: int, split_sums: bool) -> tuple[Cut, ...]:
    """One cut per node; `split_sums` allows cuts along the inputs of a linear."""
    return _Cutter(graph, chiplets, split_sums and chiplets > 1).cuts()


class _Cutter:
    def __init__(self, graph: Graph, chiplets: int, split_sums: bool) -> None:
        self.graph, self.chiplets, self.split_sums = graph, chiplets, split_sums
        self.users = graph.users()
        self.done: list[Cut] = []

    def cuts(self) -> tuple[Cut, ...]:
        for number, node in enumerate(self.graph.nodes):
            self.done.append(self._cut(number, node))
        return tuple(self.done)

    def _cut(self, number: int, node: Node) -> Cut:
        if node.op == "linear":
            return self._linear(number, node)
        if node.op == "experts_gated":
            return expert_cut(node, self._granule(number, PANEL), self.chiplets)
        if node.op == "experts_sum":
            return Cut("columns", share(node.columns, PANEL, self.chiplets))
        if node.op == "silu_mul":
            return self.done[node.inputs[0]]
        if node.op == "attention":
            return Cut("heads", self._query_heads(number))
        if node.op == "rotary":
            width = node.columns // int(node.attrs["heads"])
            return Cut("columns", _times(self._query_heads(self.users[number][0]), width))
        if node.op in ("quantize", "convert") and node.inputs:
            source = self._columns(node.inputs[0])
            if source is not None:
                return Cut("columns", source)
        return Cut("none", ((0, self.graph.rows), *((0, 0),) * (self.chiplets - 1)))

    def _linear(self, number: int, node: Node) -> Cut:
        for user in self.users[number]:
            reader = self.graph.nodes[user]
            if reader.op == "rotary":
                width = node.columns // int(reader.attrs["heads"])
                return Cut("columns", _times(self._query_heads(self.users[user][0]), width))
            if reader.op == "attention":
                return Cut("columns", self._kv_columns(user, node.columns))
            if reader.op == "silu_mul":
                granule = self._granule(user, PANEL)
                return Cut("columns", share(node.columns, granule, self.chiplets))
        inputs = self._columns(node.inputs[0])
        if self.split_sums and inputs is not None:
            return Cut("inputs", inputs)
        return Cut("columns", share(node.columns, PANEL, self.chiplets))

    def _query_heads(self, number: int) -> tuple[Range, ...]:
        """Query heads of each chiplet for an attention: whole KV heads where they divide."""
        attention = self.graph.nodes[number]
        heads, kv_heads = int(attention.attrs["heads"]), int(attention.attrs["kv_heads"])
        width = attention.columns // heads
        granule = self._granule(number, math.lcm(width, PANEL)) // width
        if kv_heads % self.chiplets == 0 and kv_heads // self.chiplets * heads % granule == 0:
            granule = math.lcm(granule, heads // kv_heads)
        return share(heads, granule, self.chiplets)

    def _kv_columns(self, number: int, total: int) -> tuple[Range, ...]:
        """Columns of the keys or values that each chiplet's queries read, in whole panels."""
        attrs = self.graph.nodes[number].attrs
        kv_heads = int(attrs["kv_heads"])
        width, G = total // kv_heads, int(attrs["heads"]) // kv_heads
        ranges = []
        for lo, hi in self._query_heads(number):
            first, last = kv_range(lo, hi, G)
            begin, end = first * width // PANEL * PANEL, -(-last * width // PANEL) * PANEL
            ranges.append((begin, min(end, total)) if lo < hi else (0, 0))
        return tuple(ranges)

    def _granule(self, number: int, unit: int) -> int:
        """`unit`, and whole groups of every integer format that the node's value is turned into."""
        readers = [self.graph.nodes[user] for user in self.users[number]]
        formats = [self.graph.nodes[number], *(r for r in readers if r.op == "quantize")]
        groups = (activation_group(str(n.attrs.get("out", "f32"))) for n in formats)
        return math.lcm(unit, *(group for group in groups if group))

    def _columns(self, number: int) -> tuple[Range, ...] | None:
        """The columns of a value that each chiplet makes; None when chiplet 0 makes all of it."""
        cut, node = self.done[number], self.graph.nodes[number]
        if cut.axis == "heads":
            return _times(cut.ranges, node.columns // int(node.attrs["heads"]))
        return cut.ranges if cut.axis == "columns" else None


def kv_range(lo: int, hi: int, group: int) -> Range:
    """The KV heads that query heads [lo, hi) read."""
    return lo // group, -(-hi // group)


def _times(ranges: tuple[Range, ...], width: int) -> tuple[Range, ...]:
    return tuple((lo * width, hi * width) for lo, hi in ranges)
