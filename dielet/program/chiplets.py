"""Lowering for chiplets with memories of their own: every value is sent to where it is read.

The placement is that of the vendor's traces.  Inputs come in and results leave through chiplet 0's
External HDMA.  Norms run on chiplet 0, which sends the result round.  Weights pass piece by piece
through each chiplet's scratchpad: the next piece is brought while one is used, as far as the
scratchpad has room, and that is all there is to overlap.  A send is done by whoever has the value,
except that chiplet 0 fetches the pieces of the result.
"""

from __future__ import annotations

from dielet.graph import Node
from dielet.partition import Cut
from dielet.program.buffers import make_buffer
from dielet.program.chiplet_attention import AttentionLowering
from dielet.program.chiplet_linears import LinearLowering
from dielet.program.memory import LINE
from dielet.program.types import Operand, Program, Region

EMBEDDING = "model.model.embed_tokens"


class ChipletLowering(LinearLowering, AttentionLowering):
    """The program as a whole, and what enters and leaves the device, through chiplet 0."""

    def program(self) -> Program:
        for number, (node, cut) in enumerate(
            zip(self.graph.nodes, self.division.cuts, strict=True)
        ):
            self._lower(number, node, cut)
            self._free(number, node)
        self._give_results()
        sizes = {f"shared.{c}": arena.high_water for c, arena in enumerate(self.arenas)}
        sizes |= {f"scratchpad.{c}": ring.high_water for c, ring in enumerate(self.rings)}
        sizes |= {"staging": self.staging.high_water, "io": self.io.high_water}
        sizes = {space: size for space, size in sizes.items() if size}
        sizes["kv"] = self.placement.kv.nbytes if self.shape.capacity else 0
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
            devices=self.device.devices,
        )

    def _lower(self, number: int, node: Node, cut: Cut) -> None:
        self._fetch_vectors_of(number)
        if node.op == "input":
            self._take_input(number, node)
        elif node.op == "linear":
            self._lower_linear(number, node, cut)
        elif node.op == "attention":
            self._lower_attention(number, node, cut)
        else:
            self._emit(number, node, cut)

    def _take_input(self, number: int, node: Node) -> None:
        columns = (0, node.columns)
        rows = (0, self.graph.rows)
        outside = make_buffer("io", self.io, self.graph.rows, node.columns, "f32")
        staged = make_buffer("staging", self.staging, self.graph.rows, node.columns, "f32")
        self.outside["hidden_in"] = outside.operands("", rows, columns)[0].region
        x, y = outside.operands("x", rows, columns), staged.operands("y", rows, columns)
        self._copy("host_copy", 0, "hidden_in", x, y)
        self.here = 0
        path = "hidden_in" if self.shape.phase == "head" else EMBEDDING
        x = staged.operands("x", rows, columns)
        self._copy("copy", 0, path, x, self._part(number, "y", *columns))

    def _give_results(self) -> None:
        """Chiplet 0 fetches the pieces into one block, which leaves in one transfer."""
        number = self.graph.output
        node, value = self.graph.nodes[number], self.values[number]
        head = self.shape.phase == "head"
        name = "logits" if head else "hidden_out"
        rows = (0, self.graph.rows)
        staged = make_buffer("staging", self.staging, self.graph.rows, node.columns, "f32")
        whole = staged.operands("x", rows, (0, node.columns))[0].region
        chosen = self._emit_selections(number) if head else {}
        for chiplet, region in chosen.items():
            room = self.staging.take(rows[1] * LINE)
            target = Region("staging", room, rows[1], LINE, region.width)
            self._fetch(chiplet, "select", Operand("x", region, "i32"), Operand("y", target, "i32"))
            self.outside[f"select.{chiplet}"] = target
        for chiplet, intervals in value.made.items():
            for lo, hi in intervals:
                x = value.local[chiplet].operands("x", rows[1], lo, hi)[0]
                self._fetch(chiplet, node.path, x, staged.operands("y", rows, (lo, hi))[0])
        self.outside[name] = whole
        begin, size = whole.offset, self.staging.high_water - whole.offset
        shift = self.io.take(size) - begin
        for key, region in self.outside.items():
            if region.space == "staging":
                moved = Region(
                    "io", region.offset + shift, region.rows, region.stride, region.width
                )
                self.outside[key] = moved
        if head:  # logits and selections together
            source = Region("staging", begin, 1, size, size)
            target = Region("io", begin + shift, 1, size, size)
        else:
            source, target = whole, self.outside[name]
        x, y = Operand("x", source, "f32"), Operand("y", target, "f32")
        self._copy("host_copy", 0, name, [x], [y], "all" if head else "rows")

    def _fetch(self, chiplet: int, path: str, x: Operand, y: Operand) -> None:
        """Into chiplet 0's DRAM: by its own Task DMA, or sent there from another device."""
        if self._device(chiplet) == 0:
            self._copy("copy", 0, path, [x], [y])
        else:
            self._send(chiplet, 0, path, [x], [y])

    def _emit_selections(self, number: int) -> dict[int, Region]:
        """Each chiplet summarises its share of the logits; where the summaries are."""
        found: dict[int, Region] = {}
        group = self._next_group()
        rows, columns = self.graph.rows, self.graph.nodes[number].columns
        for chiplet, (lo, hi) in enumerate(self.division.cuts[number].ranges):
            if lo < hi:
                logits = self.values[number].local[chiplet].operands("x", rows, lo, hi)[0].region
                width = 4 * (min(hi, columns) - lo)
                exact = Region(logits.space, logits.offset, rows, logits.stride, width)
                room = self.arenas[chiplet].take(rows * LINE)
                found[chiplet] = Region(f"shared.{chiplet}", room, rows, LINE, 16)
                operands = [Operand("x", exact, "f32"), Operand("y", found[chiplet], "i32")]
                self._add("select", chiplet, "select", group, {"first_column": lo}, operands)
        return found
