"""Turn a divided graph into commands with operands in memory, where all chiplets share one memory:
one command per node and chiplet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dielet.devices import Device
from dielet.formats.packed import PANEL, WeightFormat
from dielet.graph import Node, activation_group
from dielet.partition import Cut, Division
from dielet.program.buffers import ROW_TILE, Buffer, make_buffer
from dielet.program.commands import ENTRIES
from dielet.program.commands.attention import CACHE_DTYPES
from dielet.program.commands.linear import weight_attrs
from dielet.program.memory import LINE, Arena, KvLayout, Share, WeightPlan, aligned
from dielet.program.types import Attr, Command, Operand, Phase, Program, Queue, Region


@dataclass(frozen=True)
class Shape:
    """What fixes a program: its phase, tokens T and KV capacity C."""

    phase: Phase
    tokens: int
    capacity: int = 0

    @property
    def name(self) -> str:
        return f"{self.phase}_{self.tokens}" + (f"_kv{self.capacity}" if self.capacity else "")


@dataclass(frozen=True)
class Placement:
    """Where the operands that outlive a program are."""

    weights: WeightPlan
    kv: KvLayout
    tied: WeightPlan | None = None  # the embedding table, when the head reads it

    def plan_for(self, parameter: str) -> WeightPlan:
        tied = self.tied is not None and parameter == self.tied.shares[0].parameter
        return self.tied if tied and self.tied is not None else self.weights


class Lowering:
    """Emits the commands of one program, node after node."""

    def __init__(
        self, division: Division, shape: Shape, device: Device, placement: Placement
    ) -> None:
        self.division, self.shape, self.placement = division, shape, placement
        self.device = device
        self.graph = division.graph
        self.shared, self.io = Arena(), Arena()
        self.buffers: dict[int, Buffer] = {}
        self.commands: list[Command] = []
        self.groups: list[int] = []
        self.queues: dict[Queue, int] = {}
        self.outside: dict[str, Region] = {}

    def program(self) -> Program:
        users = self.graph.users()
        for number, (node, cut) in enumerate(
            zip(self.graph.nodes, self.division.cuts, strict=True)
        ):
            self.buffers[number] = self._buffer(number, node)
            if node.op == "attention":
                self._emit_append(node, cut)
            if node.op != "input":
                self._emit(number, node, cut)
            self._release(number, node, users)
        if self.shape.phase == "head":
            self._emit_select()
        sizes = {
            "kv": self.placement.kv.nbytes if self.shape.capacity else 0,
            "shared": self.shared.high_water,
            "io": self.io.high_water,
        }
        return Program(
            name=self.shape.name,
            phase=self.shape.phase,
            tokens=self.shape.tokens,
            capacity=self.shape.capacity,
            device=self.device.name,
            chiplets=self.division.chiplets,
            queues=tuple(self.queues),
            commands=tuple(self.commands),
            groups=tuple(self.groups),
            sizes=sizes,
            io=self.outside,
        )

    def _buffer(self, number: int, node: Node) -> Buffer:
        outside = node.op == "input" or number == self.graph.output
        space, arena = ("io", self.io) if outside else ("shared", self.shared)
        out = str(node.attrs["out"])
        buffer = make_buffer(space, arena, self.graph.rows, node.columns, out)
        if outside:
            last = "logits" if self.shape.phase == "head" else "hidden_out"
            columns = (0, node.columns)
            whole = buffer.operands("", (0, self.graph.rows), columns)[0].region
            self.outside["hidden_in" if node.op == "input" else last] = whole
        return buffer

    def _release(self, number: int, node: Node, users: list[list[int]]) -> None:
        for source in {*node.inputs}:
            buffer = self.buffers[source]
            if max(users[source]) == number and buffer.space == "shared":
                for part in buffer.parts.values():
                    self.shared.give_back(part.offset)

    def _emit(self, number: int, node: Node, cut: Cut) -> None:
        build = getattr(self, f"_{node.op}")
        group = self._next_group()
        for chiplet, (lo, hi) in enumerate(cut.ranges):
            if lo < hi:
                attrs, operands = build(number, node, cut.axis, chiplet, lo, hi)
                self._add(node.op, chiplet, node.path, group, attrs, operands)

    def _next_group(self) -> int:
        return self.groups[-1] + 1 if self.groups else 0

    def _add(
        self,
        kind: str,
        chiplet: int,
        path: str,
        group: int,
        attrs: dict[str, Attr],
        operands: list[Operand],
    ) -> None:
        queue = Queue(chiplet, self.device.engine_of(kind))
        number = self.queues.setdefault(queue, len(self.queues))
        order = _order(kind)
        operands.sort(key=lambda operand: order[operand.role])
        part = self._part_of(chiplet, path)
        self.commands.append(Command(kind, number, path, part, tuple(operands), attrs))
        self.groups.append(group)

    def _part_of(self, chiplet: int, path: str) -> int:
        """Which of the commands of one operation on one chiplet comes next: here there is one."""
        return 0

    # One method per op: the attributes and operands of chiplet `chiplet`'s part [lo, hi).

    def _linear(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        source = self.graph.nodes[node.inputs[0]]
        share, weights = self._weights(node.params[0], chiplet)
        attrs: dict[str, Attr] = {
            "K": source.columns,
            **weight_attrs(WeightFormat.parse(share.format)),
            "T": self._row_class(),
            "residual": len(node.inputs) == 2,
            "bias": len(node.params) == 2,
        }
        operands = [
            *self._all(node.inputs[0], "x"),
            Operand("w", weights, "packed"),
            *self._part(number, "y", lo, hi),
        ]
        if len(node.inputs) == 2:
            operands += self._part(node.inputs[1], "residual", lo, hi)
        if len(node.params) == 2:
            operands.append(self._bias(node, lo, hi))
        return attrs, operands

    def _rmsnorm(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        attrs = {"K": node.columns, "eps": float(node.attrs["eps"]), **self._out(node), "row0": lo}
        operands = [
            *self._rows(node.inputs[0], "x", lo, hi),
            Operand("weight", self._vector(node.params[0]), "f32"),
            *self._rows(number, "y", lo, hi),
        ]
        if len(node.inputs) == 2:
            attrs["residual"] = True
            operands += self._rows(node.inputs[1], "residual", lo, hi)
        return attrs, operands

    def _quantize(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        attrs: dict[str, Attr] = {"row0": 0 if axis == "columns" else lo}
        if group := activation_group(str(node.attrs["out"])):
            attrs["group"] = group
        take = self._part if axis == "columns" else self._rows
        return attrs, [*take(node.inputs[0], "x", lo, hi), *take(number, "y", lo, hi)]

    _convert = _quantize

    def _silu_mul(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        gate, up = node.inputs
        operands = [
            *self._part(gate, "gate", lo, hi),
            *self._part(up, "up", lo, hi),
            *self._part(number, "y", lo, hi),
        ]
        activation = node.attrs["activation"]
        named = {} if activation == "silu" else {"activation": activation}
        return {**self._out(node), **named}, operands

    def _route(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        attrs = {name: node.attrs[name] for name in ("experts", "chosen", "normed")}
        operands = [
            *self._rows(node.inputs[0], "x", lo, hi),
            *self._rows(number, "y", lo, hi),
        ]
        return {**attrs, "row0": lo}, operands

    def _experts_gated(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        x, routes = node.inputs
        out = self._out(node)
        attrs = {
            **self._experts(node, chiplet),
            "activation": node.attrs["activation"],
            "out": out["out"],
            "out_group": out["group"],
        }
        weights = [
            Operand(role, self._weights(parameter, chiplet)[1], "packed")
            for role, parameter in zip(("w_gate", "w_up"), node.params, strict=True)
        ]
        operands = [*self._all(x, "x"), *self._all(routes, "routes"), *weights]
        return attrs, [*operands, *self._part(number, "y", lo, hi)]

    def _experts_sum(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        x, routes, residual = node.inputs
        chosen = int(node.attrs["chosen"])
        made = self.division.cuts[x].ranges
        pieces = [(end - begin) // chosen for begin, end in made if begin < end]
        attrs = {**self._experts(node, chiplet), "pieces": " ".join(map(str, pieces))}
        operands = [
            *self._all(x, "x"),
            *self._all(routes, "routes"),
            Operand("w", self._weights(node.params[0], chiplet)[1], "packed"),
            *self._part(residual, "residual", lo, hi),
            *self._part(number, "y", lo, hi),
        ]
        return attrs, operands

    def _experts(self, node: Node, chiplet: int) -> dict[str, Attr]:
        """The attributes of what reads the weights of chosen experts."""
        stored = self._weights(node.params[0], chiplet)[0]
        return {
            "K": stored.K,
            **weight_attrs(WeightFormat.parse(stored.format)),
            "chosen": node.attrs["chosen"],
            "experts": node.attrs["experts"],
        }

    def _rotary(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        attrs, operands = self._positions(node, node.columns // int(node.attrs["heads"]))
        attrs["scale"] = float(node.attrs["scale"])
        operands += [*self._part(node.inputs[0], "x", lo, hi), *self._part(number, "y", lo, hi)]
        return attrs, operands

    def _attention(
        self, number: int, node: Node, axis: str, chiplet: int, lo: int, hi: int
    ) -> tuple[dict[str, Attr], list[Operand]]:
        D, G = self._head_shape(node)
        attrs: dict[str, Attr] = {
            "D": D,
            "G": G,
            "T": self._row_class(),
            "out": node.attrs["out"],
            "batch": self._batch(),
            **self._kv_format(),
            **window_of(node),
        }
        operands = [
            *self._part(node.inputs[0], "q", lo * G * D, hi * G * D),
            *self._cache(node, lo, hi),
            *self._part(number, "y", lo * G * D, hi * G * D),
        ]
        return attrs, operands

    def _emit_append(self, node: Node, cut: Cut) -> None:
        D, _ = self._head_shape(node)
        _, k, v = node.inputs
        group = self._next_group()
        path = self._append_path(node)
        for chiplet, (lo, hi) in enumerate(cut.ranges):
            if lo < hi:
                attrs, operands = self._positions(node, D)
                attrs |= self._kv_format()
                operands += [
                    *self._part(k, "k", lo * D, hi * D),
                    *self._part(v, "v", lo * D, hi * D),
                    *self._cache(node, lo, hi),
                ]
                self._add("kv_append", chiplet, path, group, attrs, operands)

    def _append_path(self, node: Node) -> str:
        return f"fused({_inner(str(node.attrs['key_path']))}+{node.path}.kv_append)"

    def _emit_select(self) -> None:
        """Each chiplet summarises its share of the logits, for the host to pick from."""
        group = self._next_group()
        for chiplet, (lo, hi) in enumerate(self.division.cuts[self.graph.output].ranges):
            if lo < hi:
                rows = self.graph.rows
                region = Region("io", self.io.take(rows * LINE), rows, LINE, 16)
                logits = self._part(self.graph.output, "x", lo, hi)[0].region
                width = 4 * (min(hi, self.graph.nodes[-1].columns) - lo)
                exact = Region("io", logits.offset, rows, logits.stride, width)
                operands = [Operand("x", exact, "f32"), Operand("y", region, "i32")]
                self.outside[f"select.{chiplet}"] = region
                self._add("select", chiplet, "select", group, {"first_column": lo}, operands)

    # Pieces that several ops share.

    def _batch(self) -> bool:
        """Whether rows are the next tokens of as many sequences, not of one."""
        return self.shape.phase == "decode" and self.shape.tokens > 1

    def _row_class(self) -> int:
        """Row counts that share kernels: one, up to a tile, and the chunk."""
        rows = self.graph.rows
        return rows if rows == 1 else max(rows, ROW_TILE)

    def _weights(self, parameter: str, chiplet: int) -> tuple[Share, Region]:
        plan = self.placement.plan_for(parameter)
        share = plan.find(parameter, chiplet)
        return share, Region(plan.space, share.offset, 1, share.nbytes, share.nbytes)

    def _vector(self, parameter: str) -> Region:
        """A parameter that is not divided."""
        return self._weights(parameter, 0)[1]

    def _bias(self, node: Node, lo: int, hi: int) -> Operand:
        """What a linear adds to its outputs [lo, hi)."""
        whole = self._vector(node.params[1])
        width = 4 * (hi - lo)
        return Operand("bias", Region(whole.space, whole.offset + 4 * lo, 1, width, width), "f32")

    def _out(self, node: Node) -> dict[str, Attr]:
        out = str(node.attrs["out"])
        group = activation_group(out)
        return {"out": "int8" if group else out, "group": group}

    def _all(self, number: int, role: str) -> list[Operand]:
        columns = aligned(self.graph.nodes[number].columns, PANEL)
        return self.buffers[number].operands(role, (0, self.graph.rows), (0, columns))

    def _part(self, number: int, role: str, lo: int, hi: int) -> list[Operand]:
        return self.buffers[number].operands(role, (0, self.graph.rows), (lo, hi))

    def _rows(self, number: int, role: str, lo: int, hi: int) -> list[Operand]:
        columns = aligned(self.graph.nodes[number].columns, PANEL)
        return self.buffers[number].operands(role, (lo, hi), (0, columns))

    def _positions(self, node: Node, D: int) -> tuple[dict[str, Attr], list[Operand]]:
        width = D // 2 * 4
        positions = self.placement.kv.positions
        offset = int(node.attrs["table"]) * positions * width
        operands = [
            Operand(table, Region(table, offset, positions, width, width), "f32")
            for table in ("cos", "sin")
        ]
        if node.params:
            operands.append(Operand("norm", self._vector(node.params[0]), "f32"))
        attrs: dict[str, Attr] = {
            "D": D,
            "norm": bool(node.params),
            "eps": float(node.attrs["eps"]),
            "batch": self._batch(),
        }
        return attrs, operands

    def _head_shape(self, node: Node) -> tuple[int, int]:
        heads, kv_heads = int(node.attrs["heads"]), int(node.attrs["kv_heads"])
        return node.columns // heads, heads // kv_heads

    def _cache(self, node: Node, lo: int, hi: int) -> list[Operand]:
        layer, capacity = int(node.attrs["layer"]), self.shape.capacity
        kv = self.placement.kv
        dtype = CACHE_DTYPES[kv.format]
        return [
            Operand("k_cache", kv.region(layer, False, lo, hi, capacity), dtype),
            Operand("v_cache", kv.region(layer, True, lo, hi, capacity), dtype),
        ]

    def _kv_format(self) -> dict[str, Attr]:
        """The attribute of commands on a cache that is not bf16."""
        kv = self.placement.kv.format
        return {} if kv == "bf16" else {"kv": kv}


@cache
def _order(kind: str) -> dict[str, int]:
    """The place of each operand of a command by its role."""
    return {role: place for place, role in enumerate(ENTRIES[kind].operand_order())}


def window_of(node: Node) -> dict[str, Attr]:
    """The attribute of an attention that does not look all the way back."""
    return {"window": node.attrs["window"]} if node.attrs["window"] else {}


def _inner(path: str) -> str:
    return path[len("fused(") : -1] if path.startswith("fused(") else path
