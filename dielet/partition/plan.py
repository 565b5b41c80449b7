"""Partition plans: for every node of a graph, the axis it is cut along and each chiplet's range.

A device names the plan that it wants.  `column`: every linear is cut along its outputs and what
the next one needs is gathered, so no sum is ever split and any number of chiplets gives
bit-identical results.  `column_row`: every second linear is cut along its inputs instead, so that
only sums travel.  `local.py` has both for chiplets with memories of their own; where all chiplets
share one memory nothing travels, and `column` is the only plan.
"""

from __future__ import annotations

from dielet.errors import UsageError
from dielet.formats.packed import PANEL
from dielet.graph import Graph, Node, activation_group
from dielet.partition.cut import Cut, Division, Range, expert_cut, share
from dielet.partition.local import local_cuts

PLANS = ("column", "column_row")


def divide(graph: Graph, plan: str, chiplets: int, local: bool = False) -> Division:
    """Cut every node of `graph` over `chiplets` by the named plan.

    `local`: chiplets have activation memories of their own.
    """
    if plan not in PLANS:
        raise UsageError(f"partition plan '{plan}' is unknown; known: {', '.join(PLANS)}")
    if not 1 <= chiplets <= 64:
        raise UsageError(f"{chiplets} chiplets: must be from 1 to 64")
    if local:
        return Division(graph, chiplets, local_cuts(graph, chiplets, plan == "column_row"))
    if plan != "column":
        raise UsageError(
            f"partition plan '{plan}' is for chiplets with memories of their own; "
            "this device's chiplets share one: use column"
        )
    return Division(graph, chiplets, _column(graph, chiplets))


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
    if node.op == "experts_gated":
        return expert_cut(node, max(PANEL, _group(node)), chiplets)
    if node.op == "experts_sum":
        return Cut("columns", share(node.columns, PANEL, chiplets))
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
