"""Lowering where every value is sent to where it is read: the part that all commands share."""

from __future__ import annotations

import itertools

from dielet.devices import Device
from dielet.formats.packed import PANEL
from dielet.graph import Node, matrices
from dielet.partition import Cut, Division, Range, kv_range
from dielet.program.buffers import make_buffer
from dielet.program.lowering import Lowering, Placement, Shape
from dielet.program.memory import Arena, Share, aligned
from dielet.program.places import Local, Ring, Value, missing
from dielet.program.types import Attr, Operand, Region

UNLIMITED = 1 << 62
VECTORS = 6  # undivided parameters that a chiplet can hold at a time
EARLY = 2  # nodes whose parameters are fetched before they are needed


class SendingLowering(Lowering):
    """`here` is the chiplet whose command is being built: operands are found, or sent, for it."""

    def __init__(
        self, division: Division, shape: Shape, device: Device, placement: Placement
    ) -> None:
        super().__init__(division, shape, device, placement)
        chiplets = range(division.chiplets)
        self.per_device = division.chiplets // device.devices
        self.here = 0
        self.users = self.graph.users()
        self.values = [Value(aligned(node.columns, PANEL)) for node in self.graph.nodes]
        self.arenas = [Arena() for _ in chiplets]
        self.staging = Arena()
        loader = device.engine[device.engine_of("weight_copy")]
        self.rings = [
            Ring(device.memory["scratchpad"].size or UNLIMITED, loader.slots) for _ in chiplets
        ]
        self.vectors: dict[tuple[str, int], Region] = {}
        self.corners: dict[int, tuple[int, Ring]] = {}
        self.vector_nodes = [
            n for n, node in enumerate(self.graph.nodes) if node.params and not matrices(node)
        ]
        self.parts: dict[tuple[int, str], int] = {}
        self.slots = kv_slots(division)

    # Commands: those of one group are the chiplets' parts of one operation.

    def _emit(self, number: int, node: Node, cut: Cut) -> None:
        build = getattr(self, f"_{node.op}")
        path = self._norm_path(number, node) if node.op == "rmsnorm" else node.path
        built = []
        for chiplet, (lo, hi) in enumerate(cut.ranges):
            if lo < hi:
                self.here = chiplet
                built.append((chiplet, *build(number, node, cut.axis, chiplet, lo, hi)))
        group = self._next_group()
        for chiplet, attrs, operands in built:
            self._add(node.op, chiplet, path, group, attrs, operands)

    def _norm_path(self, number: int, node: Node) -> str:
        """A block's norm is named by its readers: its own name is its parameter's, on Task DMA."""
        if not node.path.endswith("layernorm"):
            return node.path
        return self.graph.nodes[self.users[number][0]].path.rpartition(".")[0] + ".norm"

    def _part_of(self, chiplet: int, path: str) -> int:
        part = self.parts.get((chiplet, path), 0)
        self.parts[chiplet, path] = part + 1
        return part

    def _copy(
        self,
        kind: str,
        chiplet: int,
        path: str,
        x: list[Operand],
        y: list[Operand],
        extent: str = "rows",
        **attrs: Attr,
    ) -> None:
        """One transfer, done by an engine of `chiplet`."""
        group = self._next_group()
        self._add(kind, chiplet, path, group, {"extent": extent, **attrs}, [*x, *y])

    def _send(
        self, source: int, target: int, path: str, x: list[Operand], y: list[Operand]
    ) -> None:
        """From chiplet to chiplet: over the dies' links, or from device to device and a sync."""
        if self._device(source) == self._device(target):
            self._copy("copy", source, path, x, y)
            return
        self._copy("device_copy", source, path, x, y)
        arrived = [Operand("x" + o.role[1:], o.region, o.dtype) for o in y]
        self._add("device_sync", target, path, self._next_group(), {}, arrived)

    def _device(self, chiplet: int) -> int:
        return chiplet // self.per_device

    def _near(self, chiplet: int) -> range:
        """The chiplets of the same device."""
        first = self._device(chiplet) * self.per_device
        return range(first, first + self.per_device)

    # Values: buffers in the chiplets' shared memories.

    def _local(self, number: int, chiplet: int) -> Local:
        value = self.values[number]
        if chiplet not in value.local:
            lo, hi = self._hull(number, chiplet)
            space = f"shared.{chiplet}"
            node = self.graph.nodes[number]
            out = str(node.attrs["out"])
            buffer = make_buffer(space, self.arenas[chiplet], self.graph.rows, hi - lo, out)
            value.local[chiplet] = Local(buffer, node.columns, lo)
        return value.local[chiplet]

    def _hull(self, number: int, chiplet: int) -> Range:
        """The columns of a value that a chiplet makes or reads, in whole panels."""
        spans = [self._made(number, chiplet)]
        spans += [self._read(user, number, chiplet) for user in self.users[number]]
        spans = [span for span in spans if span[0] < span[1]]
        lo, hi = min(lo for lo, _ in spans), max(hi for _, hi in spans)
        return lo // PANEL * PANEL, aligned(hi, PANEL)

    def _made(self, number: int, chiplet: int) -> Range:
        node, cut = self.graph.nodes[number], self.division.cuts[number]
        lo, hi = cut.ranges[chiplet]
        if cut.axis == "columns":
            return lo, hi
        if cut.axis == "heads":
            width = node.columns // int(node.attrs["heads"])
            return lo * width, hi * width
        return (0, node.columns) if chiplet == 0 else (0, 0)

    def _read(self, user: int, number: int, chiplet: int) -> Range:
        """The columns of value `number` that node `user` reads on a chiplet."""
        node, cut = self.graph.nodes[user], self.division.cuts[user]
        lo, hi = cut.ranges[chiplet]
        columns = self.graph.nodes[number].columns
        if node.op == "experts_sum" and number == node.inputs[2]:
            return lo, hi
        if node.op.startswith("experts_"):
            return (0, columns) if lo < hi else (0, 0)
        if node.op == "linear":
            if len(node.inputs) == 2 and number == node.inputs[1] and cut.axis == "inputs":
                return (0, columns) if chiplet == 0 else (0, 0)
            if number == node.inputs[0] and cut.axis == "columns":
                return (0, columns) if lo < hi else (0, 0)
            return lo, hi
        if node.op == "attention":
            width = node.columns // int(node.attrs["heads"])
            if number != node.inputs[0]:
                lo, hi = kv_range(lo, hi, self._head_shape(node)[1]) if lo < hi else (0, 0)
            return lo * width, hi * width
        return (lo, hi) if cut.axis == "columns" else (0, columns if lo < hi else 0)

    def _ensure(self, number: int, lo: int, hi: int) -> Local:
        """The buffer on `here`, with columns [lo, hi) in it: what is missing is sent."""
        value, here = self.values[number], self.here
        local = self._local(number, here)
        hi = min(aligned(hi, PANEL), value.columns)
        for begin, end in missing(local.present, lo, hi):
            while begin < end:
                source, upto = value.source(begin, end, self._near(here))
                x = value.local[source].operands("x", self.graph.rows, begin, upto)
                y = local.operands("y", self.graph.rows, begin, upto)
                self._send(source, here, self.graph.nodes[number].path, x, y)
                begin = upto
        local.add(lo, hi)
        return local

    def _part(self, number: int, role: str, lo: int, hi: int) -> list[Operand]:
        if role == "y":
            local = self._local(number, self.here)
            end = min(aligned(hi, PANEL), self.values[number].columns)
            local.add(lo, end)
            self.values[number].make(self.here, lo, end)
        else:
            local = self._ensure(number, lo, hi)
        return local.operands(role, self.graph.rows, lo, hi)

    def _all(self, number: int, role: str) -> list[Operand]:
        return self._part(number, role, 0, self.values[number].columns)

    def _rows(self, number: int, role: str, lo: int, hi: int) -> list[Operand]:
        return self._all(number, role)

    def _free(self, number: int, node: Node) -> None:
        """Give back the buffers of values that nobody reads after this node; forget its vectors."""
        for source in {*node.inputs}:
            if max(self.users[source]) == number:
                for chiplet, local in self.values[source].local.items():
                    for part in local.buffer.parts.values():
                        self.arenas[chiplet].give_back(part.offset)
        for key in [key for key in self.vectors if key[0] in node.params]:
            del self.vectors[key]

    def _give_back(self, buffers: list[tuple[int, int]]) -> None:
        for chiplet, offset in buffers:
            self.arenas[chiplet].give_back(offset)

    def _vector(self, parameter: str) -> Region:
        """An undivided vector on `here`: chiplet 0 fetches it, and sends it to the others."""
        here = self.here
        if (parameter, here) not in self.vectors:
            share, stored = self._weights(parameter, 0)
            target = self._vector_room(here, share.nbytes)
            y = [Operand("y", target, "f32")]
            if here == 0:
                self._copy("copy", 0, parameter, [Operand("x", stored, "f32")], y, "all")
            else:
                first = self._near(here)[0]
                self.here = 0 if here == first else first
                x = [Operand("x", self._vector(parameter), "f32")]
                source, self.here = self.here, here
                self._send(source, here, parameter, x, y)
            # What the room held is gone: whoever reads it again has to bring it again.
            self.vectors = {k: r for k, r in self.vectors.items() if not r.overlaps(target)}
            self.vectors[parameter, here] = target
        return self.vectors[parameter, here]

    def _vector_room(self, chiplet: int, nbytes: int) -> Region:
        """Vectors have a corner of shared memory to themselves, so that they can come early."""
        if chiplet not in self.corners:
            size = VECTORS * aligned(max(4 * share.hi for share in self._vector_shares()))
            self.corners[chiplet] = (self.arenas[chiplet].take(size), Ring(size, VECTORS))
        base, ring = self.corners[chiplet]
        return Region(f"shared.{chiplet}", base + ring.take(nbytes), 1, nbytes, nbytes)

    def _vector_shares(self) -> list[Share]:
        return [share for share in self.placement.weights.shares if not share.K]

    def _fetch_vectors_of(self, number: int) -> None:
        """Bring the vectors of a node, and those of the next few, which may then come early."""
        wanted = [n for n in self.vector_nodes if n >= number][: 1 + EARLY]
        if not wanted or wanted[0] != number:
            return
        for n in wanted:
            for chiplet, (lo, hi) in enumerate(self.division.cuts[n].ranges):
                if lo < hi:
                    self.here = chiplet
                    for parameter in self.graph.nodes[n].params:
                        self._vector(parameter)


def kv_slots(division: Division) -> tuple[int, ...]:
    """Where in the cache each chiplet's KV heads begin; the last entry is how many there are."""
    for node, cut in zip(division.graph.nodes, division.cuts, strict=True):
        if node.op == "attention":
            G = int(node.attrs["heads"]) // int(node.attrs["kv_heads"])
            held = [kv_range(lo, hi, G) if lo < hi else (0, 0) for lo, hi in cut.ranges]
            return (0, *itertools.accumulate(last - first for first, last in held))
    return ()
