"""Partition plans: for every node of a graph, the axis it is cut along and each chiplet's range.

A plan is a function; a device names the one it wants.  `column`: every linear is cut along its
outputs and what the next one needs is gathered, so no sum is ever split and any number of chiplets
gives bit-identical results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from dielet.errors import UsageError
from dielet.formats.packed import PANEL
from dielet.graph import Graph, Node, activation_group

Range = tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """A node's work divided over chiplets: `ranges[c]` is chiplet c's part, empty when lo == hi.

    axis: 'rows' (tokens), 'columns' (outputs), 'kv_heads', or 'none' (chiplet 0 does it all).
    """

    axis: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Division:
    """A graph and one cut per node."""

    graph: Graph
    chiplets: int
    cuts: tuple[Cut, ...]


def share(total: int, granule: int, chiplets: int) -> tuple[Range, ...]:
    """Split `total` into contiguous ranges that begin at multiples of `granule`."""
    units = -(-total // granule)
    edges = [min(total, units * c // chiplets * granule) for c in range(chiplets + 1)]
    return tuple(itertools.pairwise(edges))


def divide(graph: Graph, plan: str, chiplets: int) -> Division:
    """Cut every node of `graph` over `chiplets` by the named plan."""
    if plan not in PLANS:
        raise UsageError(f"partition plan '{plan}' is unknown; known: {', '.join(PLANS)}")
    if not 1 <= chiplets <= 64:
        raise UsageError(f"{chiplets} chiplets: must be from 1 to 64")
    return Division(graph, chiplets, PLANS[plan](graph, chiplets))


def _column(graph: Graph, chiplets: int) -> tuple[Cut, ...]:
    users = graph.users()
    cuts: list[Cut] = []
    for number, node in enumerate(graph.nodes):
        readers = [graph.nodes[user] for user in users[number]]
        cuts.append(_column_cut(graph, node, readers, cuts, chiplets))
    return tuple(cuts)


def _column_cut(
    graph: Graph, node: Node, readers: list[Node], cuts: list[Cut], chiplets: int
) -> Cut:
    if node.op == "linear":
        # No group of a gated product may lie on two chiplets.
        granule = max([PANEL, *(_group(user) for user in readers if user.op == "silu_mul")])
        return Cut("columns", share(node.columns, granule, chiplets))
    if node.op == "silu_mul":
        return cuts[node.inputs[0]]
    if node.op == "attention":
        return Cut("kv_heads", share(int(node.attrs["kv_heads"]), 1, chiplets))
    if node.op == "rotary":  # a query's rotation is cut like the attention that reads it
        kv_heads = int(readers[0].attrs["kv_heads"])
        return Cut("columns", share(node.columns, node.columns // kv_heads, chiplets))
    if node.op in ("quantize", "convert"):
        ranges = _attention_columns(graph.nodes[node.inputs[0]], chiplets)
        if all(edge % max(PANEL, _group(node)) == 0 for r in ranges for edge in r):
            return Cut("columns", ranges)
    return _by_rows(graph.rows, chiplets)


def _by_rows(rows: int, chiplets: int) -> Cut:
    """Rows are dealt out; a single row is one chiplet's work."""
    if rows < chiplets:
        return Cut("none", ((0, rows), *((0, 0),) * (chiplets - 1)))
    return Cut("rows", share(rows, 1, chiplets))


def _group(node: Node) -> int:
    return activation_group(str(node.attrs.get("out", "f32")))


def _attention_columns(node: Node, chiplets: int) -> tuple[Range, ...]:
    if node.op != "attention":
        return ((0, 1),)
    width = node.columns // int(node.attrs["kv_heads"])
    return tuple(
        (lo * width, hi * width) for lo, hi in share(int(node.attrs["kv_heads"]), 1, chiplets)
    )


PLANS: dict[str, Callable[[Graph, int], tuple[Cut, ...]]] = {"column": _column}
