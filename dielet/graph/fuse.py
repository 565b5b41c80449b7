"""Rewrite a graph so that element-wise work rides with its neighbour, in one command."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from dielet.graph.node import Graph, Node


def fused_path(*paths: str) -> str:
    """The name of a fusion; parts after the first drop the module path that they share with it."""
    parts: list[str] = []
    for path in paths:
        parts.extend(path[len("fused(") : -1].split("+") if path.startswith("fused(") else [path])
    return f"fused({'+'.join(parts)})"


def fuse(graph: Graph) -> Graph:
    """Join add(h, linear or rmsnorm), rotary(rmsnorm), attention(rotary k): each read once."""
    nodes = list(graph.nodes)
    users = graph.users()
    gone: set[int] = set()
    for number, node in enumerate(nodes):
        rule = {"add": _residual, "rotary": _normed_rotary, "attention": _appended_key}.get(node.op)
        if rule is not None:
            nodes[number] = rule(nodes, users, gone, node)
    return _without(Graph(graph.rows, tuple(nodes)), gone)


def _residual(nodes: list[Node], users: list[list[int]], gone: set[int], add: Node) -> Node:
    for h, y in (add.inputs, add.inputs[::-1]):
        last = nodes[y]
        able = last.op == "linear" or (last.op == "rmsnorm" and last.attrs["heads"] == 1)
        if able and len(last.inputs) == 1 and len(users[y]) == 1:
            gone.add(y)
            path = fused_path(last.path, add.path)
            return replace(last, path=path, inputs=(last.inputs[0], h))
    return add


def _normed_rotary(nodes: list[Node], users: list[list[int]], gone: set[int], rot: Node) -> Node:
    (x,) = rot.inputs
    norm = nodes[x]
    if norm.op != "rmsnorm" or len(users[x]) != 1 or norm.attrs["heads"] != rot.attrs["heads"]:
        return rot
    gone.add(x)
    attrs = MappingProxyType({**rot.attrs, "eps": norm.attrs["eps"]})
    path = fused_path(norm.path, rot.path)
    return replace(rot, path=path, inputs=norm.inputs, params=norm.params, attrs=attrs)


def _appended_key(nodes: list[Node], users: list[list[int]], gone: set[int], att: Node) -> Node:
    q, k, v = att.inputs
    rot = nodes[k]
    if rot.op != "rotary" or len(users[k]) != 1 or rot.attrs["scale"] != 1.0:
        return att
    gone.add(k)
    taken = {"eps": rot.attrs["eps"], "table": rot.attrs["table"], "key_path": rot.path}
    attrs = MappingProxyType({**att.attrs, **taken})
    return replace(att, inputs=(q, rot.inputs[0], v), params=rot.params, attrs=attrs)


def _without(graph: Graph, gone: set[int]) -> Graph:
    numbers: dict[int, int] = {}
    kept: list[Node] = []
    for number, node in enumerate(graph.nodes):
        if number in gone:
            continue
        numbers[number] = len(kept)
        kept.append(replace(node, inputs=tuple(numbers[i] for i in node.inputs)))
    return Graph(graph.rows, tuple(kept))
