"""Decide in which number format each value travels, from what the linears that read it take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from dielet.formats.packed import WeightFormat
from dielet.graph.node import Graph, Node, matrices

F32 = "f32"


def activation_format(weights: WeightFormat) -> str:
    """What a linear with such weights reads: 'bf16', or 'int8g<group>' for the integer dot."""
    return f"int8g{weights.group}" if weights.integer else "bf16"


def activation_group(name: str) -> int:
    """The group of an int8 activation format, 0 for others."""
    return int(name[len("int8g") :]) if name.startswith("int8g") else 0


def assign_formats(graph: Graph, weights: Mapping[str, WeightFormat]) -> Graph:
    """Give every node an `out` format; insert `convert` and `quantize` where a producer cannot.

    `weights` maps each linear's parameter to its format.  Residual values stay f32.
    """
    wanted = _wanted(graph, weights)
    nodes: list[Node] = []
    numbers: dict[tuple[int, str], int] = {}  # (old number, format) -> new number
    for old, node in enumerate(graph.nodes):
        formats = wanted[old] or {F32}
        own = _own_format(node, formats)
        inputs = tuple(numbers[source, _reads(node, i, weights)] for i, source in _sources(node))
        attrs = MappingProxyType({**node.attrs, "out": own})
        nodes.append(replace(node, inputs=inputs, attrs=attrs))
        numbers[old, own] = len(nodes) - 1
        for name in sorted(formats - {own}):
            nodes.append(_conversion(node, numbers[old, own], name))
            numbers[old, name] = len(nodes) - 1
    return Graph(graph.rows, tuple(nodes))


def _wanted(graph: Graph, weights: Mapping[str, WeightFormat]) -> list[set[str]]:
    wanted: list[set[str]] = [set() for _ in graph.nodes]
    for node in graph.nodes:
        for i, source in _sources(node):
            wanted[source].add(_reads(node, i, weights))
    return wanted


def _sources(node: Node) -> list[tuple[int, int]]:
    return list(enumerate(node.inputs))


def _reads(node: Node, position: int, weights: Mapping[str, WeightFormat]) -> str:
    if matrices(node) and position == 0:
        return activation_format(weights[node.params[0]])
    return "bf16" if node.op == "attention" and position == 0 else F32


def _own_format(node: Node, formats: set[str]) -> str:
    """The format that the node's own command writes; others need a conversion after it."""
    if node.op == "rotary":
        return "bf16"
    able = {
        "rmsnorm": formats,
        "silu_mul": formats,
        "experts_gated": formats,
        "attention": formats & {F32, "bf16"},
    }.get(node.op, set())
    return min(able) if len(formats) == 1 and able else F32


def _conversion(node: Node, source: int, name: str) -> Node:
    op = "quantize" if activation_group(name) else "convert"
    attrs = MappingProxyType({"out": name})
    return Node(op, f"{node.path}.{op}", (source,), (), node.columns, attrs)
