"""The graph's one node type, the table of ops, and the check that a graph is well formed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dielet.errors import InternalError

Attrs = Mapping[str, int | float | str | bool]


@dataclass(frozen=True)
class Node:
    """One operation, making a matrix [rows of the graph, columns].

    `inputs` are node numbers, `params` canonical parameter names.
    """

    op: str
    path: str
    inputs: tuple[int, ...]
    params: tuple[str, ...]
    columns: int
    attrs: Attrs = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Op:
    """What the verifier holds a node of this op against: counts of inputs and parameters."""

    inputs: tuple[int, ...]
    params: tuple[int, ...]
    attrs: tuple[str, ...]
    about: str


OPS: dict[str, Op] = {
    "input": Op((0,), (0,), (), "the hidden state of the chunk, as the embedding gives it"),
    "rmsnorm": Op(
        (1, 2),
        (1,),
        ("eps", "heads"),
        "x / sqrt(mean(x^2) + eps) * weight, per head; a second input (a residual) is added",
    ),
    "linear": Op(
        (1, 2),
        (1, 2),
        (),
        "x . w^T; a second input (a residual) and a second parameter (a bias) are added",
    ),
    "rotary": Op(
        (1,),
        (0, 1),
        ("heads", "eps", "scale", "table"),
        "rotate halves by position, times scale; normed per head first if it has a parameter",
    ),
    "attention": Op(
        (3,),
        (0, 1),
        ("heads", "kv_heads", "layer", "eps", "window"),
        "append k (normed if it has a parameter, rotated) and v to the cache, attend with q",
    ),
    "add": Op((2,), (0,), (), "a + b"),
    "silu_mul": Op((2,), (0,), ("activation",), "silu(gate) * up, or another activation's"),
    "route": Op((1,), (0,), ("experts", "chosen", "normed"), "a row's chosen experts and weights"),
    "experts_gated": Op(
        (2,), (2,), ("experts", "chosen", "activation"), "activation(gate x) * (up x) by expert"
    ),
    "experts_sum": Op((3,), (1,), ("experts", "chosen"), "weighted sum over experts + a residual"),
    "convert": Op((1,), (0,), ("out",), "the same values as bf16"),
    "quantize": Op((1,), (0,), ("out",), "int8 with a scale per row and group"),
}


def matrices(node: Node) -> tuple[str, ...]:
    """The parameters that a node multiplies by: divided over chiplets, in a format of weights."""
    if node.op == "linear":
        return node.params[:1]
    return node.params if node.op.startswith("experts_") else ()


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run; the last one is the output."""

    rows: int
    nodes: tuple[Node, ...]

    @property
    def output(self) -> int:
        return len(self.nodes) - 1

    def users(self) -> list[list[int]]:
        """For every node, the nodes that read it."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for source in node.inputs:
                users[source].append(number)
        return users


def verify_graph(graph: Graph) -> None:
    """Raise InternalError unless every node is legal and reads only what was made before it."""
    for number, node in enumerate(graph.nodes):
        where = f"graph node {number} ({node.op} {node.path})"
        op = OPS.get(node.op)
        if op is None:
            raise InternalError(f"{where}: no such op")
        if len(node.inputs) not in op.inputs or len(node.params) not in op.params:
            raise InternalError(
                f"{where}: {len(node.inputs)} inputs and {len(node.params)} parameters, "
                f"expected {op.inputs} and {op.params}"
            )
        if any(not 0 <= source < number for source in node.inputs):
            raise InternalError(f"{where}: reads {node.inputs}, which is not made before it")
        missing = [name for name in op.attrs if name not in node.attrs]
        if missing:
            raise InternalError(f"{where}: lacks {missing}")
        if node.columns < 1:
            raise InternalError(f"{where}: {node.columns} columns")
        _verify_columns(graph, node, where)
    unread = [n for n, readers in enumerate(graph.users()[:-1]) if not readers]
    if unread:
        raise InternalError(f"graph nodes {unread} are never read")


def _verify_columns(graph: Graph, node: Node, where: str) -> None:
    widths = [graph.nodes[source].columns for source in node.inputs]
    same = {
        "rmsnorm": widths,
        "rotary": widths,
        "add": widths,
        "silu_mul": widths,
        "convert": widths,
        "quantize": widths,
        "linear": widths[1:],
        "attention": widths[:1],
    }.get(node.op, [])
    if any(width != node.columns for width in same):
        raise InternalError(f"{where}: {node.columns} columns from inputs of {widths}")
