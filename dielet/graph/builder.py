"""What a model file writes with: each call adds a node and returns its number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType

from dielet.graph.node import Graph, Node


class GraphBuilder:
    """Builds a `Graph` for `rows` tokens; `scope` gives nodes and parameters their module path."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._nodes: list[Node] = []
        self._scopes: list[str] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def input(self, name: str, columns: int) -> int:
        return self._node("input", name, (), (), columns)

    def rmsnorm(self, x: int, name: str, eps: float, heads: int = 1) -> int:
        """Normalise each of `heads` equal parts of a row; the weight is shared by the parts."""
        return self._param_node("rmsnorm", name, (x,), self._columns(x), eps=eps, heads=heads)

    def linear(self, x: int, name: str, columns: int, bias: bool = False) -> int:
        params = [f"{self._path(name)}.{part}" for part in ("weight", *["bias"] * bias)]
        return self._node("linear", name, (x,), tuple(params), columns)

    def rotary(self, x: int, name: str, heads: int, scale: float = 1.0, table: int = 0) -> int:
        """Turn the heads of `x` by the rotary table of that number."""
        attrs = {"heads": heads, "scale": scale, "eps": 0.0, "table": table}
        return self._node("rotary", name, (x,), (), self._columns(x), **attrs)

    def attention(
        self,
        q: int,
        k: int,
        v: int,
        name: str,
        *,
        heads: int,
        kv_heads: int,
        layer: int,
        window: int = 0,
    ) -> int:
        """Over the cache of `layer`; of the positions up to its own, a row sees the last `window`,
        or all (0)."""
        attrs = {"heads": heads, "kv_heads": kv_heads, "layer": layer, "eps": 0.0, "window": window}
        return self._node("attention", name, (q, k, v), (), self._columns(q), **attrs)

    def add(self, a: int, b: int, name: str) -> int:
        return self._node("add", name, (a, b), (), self._columns(a))

    def silu_mul(self, gate: int, up: int, name: str, activation: str = "silu") -> int:
        columns = self._columns(gate)
        return self._node("silu_mul", name, (gate, up), (), columns, activation=activation)

    def route(self, x: int, name: str, experts: int, chosen: int, normed: bool) -> int:
        """Of scores by expert, the largest: their numbers, then their weights."""
        attrs = {"experts": experts, "chosen": chosen, "normed": normed}
        return self._node("route", name, (x,), (), 2 * chosen, **attrs)

    def experts(
        self, x: int, routes: int, residual: int, name: str, inner: int, activation: str
    ) -> int:
        """The residual plus the weighted sum of the gated feed-forwards of the chosen experts."""
        chosen = int(self._nodes[routes].attrs["chosen"])
        attrs = {"experts": int(self._nodes[routes].attrs["experts"]), "chosen": chosen}
        with self.scope(name):
            gate, up, down = (self._path(f"{n}_proj.weight") for n in ("gate", "up", "down"))
            y = self._node(
                "experts_gated", "gated", (x, routes), (gate, up), chosen * inner,
                activation=activation, **attrs,
            )  # fmt: skip
            columns = self._columns(residual)
            inputs = (y, routes, residual)
            return self._node("experts_sum", "sum", inputs, (down,), columns, **attrs)

    def finish(self) -> Graph:
        return Graph(self.rows, tuple(self._nodes))

    def _columns(self, node: int) -> int:
        return self._nodes[node].columns

    def _path(self, name: str) -> str:
        return ".".join([*self._scopes, name])

    def _param_node(
        self, op: str, name: str, inputs: tuple[int, ...], columns: int, **attrs: float
    ) -> int:
        return self._node(op, name, inputs, (f"{self._path(name)}.weight",), columns, **attrs)

    def _node(
        self,
        op: str,
        name: str,
        inputs: tuple[int, ...],
        params: tuple[str, ...],
        columns: int,
        **attrs: float | str,
    ) -> int:
        node = Node(op, self._path(name), inputs, params, columns, MappingProxyType(attrs))
        self._nodes.append(node)
        return len(self._nodes) - 1
