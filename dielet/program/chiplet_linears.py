"""Linears on chiplets: weights pass through the scratchpad, partial sums go to chiplet 0."""

from __future__ import annotations

from dielet.formats.packed import PANEL, WeightFormat
from dielet.graph import Node
from dielet.partition import Cut, Range, share
from dielet.program.buffers import make_buffer
from dielet.program.commands.linear import weight_attrs
from dielet.program.commands.transfer import TERMS
from dielet.program.memory import aligned
from dielet.program.sending import SendingLowering
from dielet.program.types import Attr, Operand, Region


class LinearLowering(SendingLowering):
    """What is temporary is a list of (chiplet, offset in its shared memory)."""

    def _lower_linear(self, number: int, node: Node, cut: Cut) -> None:
        """Piece by piece, all chiplets together: bring the weights, multiply, add partial sums."""
        pieces = self._pieces(node, cut)
        partial = cut.axis == "inputs"
        held: list[tuple[int, int]] = []  # temporary buffers of the piece before
        for step in range(max(len(p) for p in pieces.values())):
            now = {c: p[step] for c, p in pieces.items() if step < len(p)}
            rooms = self._bring_weights(node, now)
            built: list[tuple[int, dict[str, Attr], list[Operand]]] = []
            temporary: list[tuple[int, int]] = []
            sums: list[tuple[int, Operand]] = []
            for chiplet, piece in now.items():
                self.here = chiplet
                attrs, operands = self._product(number, node, cut, piece)
                if len(node.params) == 2 and not (partial and built):  # a split sum has one bias
                    attrs["bias"] = True
                    operands.append(self._bias(node, *piece))
                operands.append(Operand("w", rooms[chiplet], "packed"))
                if partial:
                    y = self._partial(chiplet, piece, temporary)
                    sums.append((chiplet, y))
                    operands.append(y)
                else:
                    operands += self._part(number, "y", *piece)
                built.append((chiplet, attrs, operands))
            group = self._next_group()
            path = node.params[0].removesuffix(".weight") if partial else node.path
            for chiplet, attrs, operands in built:
                self._add("linear", chiplet, path, group, attrs, operands)
            if partial:
                self._add_up(number, node, next(iter(now.values())), sums, temporary)
            # Buffers of one step are not reused in the next, so that the two can overlap.
            self._give_back(held)
            held = temporary
        self._give_back(held)

    def _pieces(self, node: Node, cut: Cut) -> dict[int, tuple[Range, ...]]:
        """Output columns of each chiplet's successive pieces, each fitting a slot.

        Partial sums of one step must be of the same columns, so those are cut alike everywhere.
        """
        partial = cut.axis == "inputs"
        found: dict[int, tuple[Range, ...]] = {}
        widest = 1
        for chiplet, (lo, hi) in enumerate(cut.ranges):
            if lo == hi:
                continue
            stored, _ = self._weights(node.params[0], chiplet)
            panels = -(-(stored.hi - stored.lo) // PANEL)
            fit = max(1, self.rings[chiplet].piece // (stored.nbytes // panels))
            widest = max(widest, -(-panels // fit))
            found[chiplet] = self._cut_panels(stored.lo, stored.hi, -(-panels // fit))
        if partial:
            return {c: self._cut_panels(0, node.columns, widest) for c in found}
        return found

    def _cut_panels(self, lo: int, hi: int, count: int) -> tuple[Range, ...]:
        return tuple((lo + a, lo + b) for a, b in share(hi - lo, PANEL, count) if a < b)

    def _bring_weights(self, node: Node, now: dict[int, Range]) -> dict[int, Region]:
        """One weight copy per chiplet; gives where in its scratchpad each piece is."""
        parameter = node.params[0]
        rooms: dict[int, Region] = {}
        group = self._next_group()
        for chiplet, (lo, hi) in now.items():
            stored, region = self._weights(parameter, chiplet)
            panel = stored.nbytes // -(-(stored.hi - stored.lo) // PANEL)
            size = -(-(hi - lo) // PANEL) * panel
            offset = region.offset + (lo - stored.lo) // PANEL * panel
            x = Region(region.space, offset, 1, size, size)
            y = Region(f"scratchpad.{chiplet}", self.rings[chiplet].take(size), 1, size, size)
            operands = [Operand("x", x, "packed"), Operand("y", y, "packed")]
            self._add("weight_copy", chiplet, parameter, group, {"extent": "all"}, operands)
            rooms[chiplet] = y
        return rooms

    def _product(
        self, number: int, node: Node, cut: Cut, piece: Range
    ) -> tuple[dict[str, Attr], list[Operand]]:
        """Attributes, activations and residual of a linear on `here`."""
        stored, _ = self._weights(node.params[0], self.here)
        residual = len(node.inputs) == 2 and cut.axis == "columns"
        attrs: dict[str, Attr] = {
            "K": stored.K,
            **weight_attrs(WeightFormat.parse(stored.format)),
            "T": self._row_class(),
            "residual": residual,
            "bias": False,
        }
        operands = self._part(node.inputs[0], "x", stored.k_lo, stored.k_lo + stored.K)
        if residual:
            operands += self._part(node.inputs[1], "residual", *piece)
        return attrs, operands

    def _partial(self, chiplet: int, piece: Range, temporary: list[tuple[int, int]]) -> Operand:
        """Room on a chiplet for a piece of a matrix of sums."""
        width = aligned(piece[1] - piece[0], PANEL)
        buffer = make_buffer(
            f"shared.{chiplet}", self.arenas[chiplet], self.graph.rows, width, "f32"
        )
        temporary.append((chiplet, buffer.parts[""].offset))
        return buffer.operands("y", (0, self.graph.rows), (0, width))[0]

    def _add_up(
        self,
        number: int,
        node: Node,
        piece: Range,
        sums: list[tuple[int, Operand]],
        temporary: list[tuple[int, int]],
    ) -> None:
        """Send partial sums to the first chiplet of each device, from there to chiplet 0."""
        path = node.params[0].removesuffix(".weight")
        for first in range(self.per_device, self.division.chiplets, self.per_device):
            near = [s for s in sums if s[0] in self._near(first)]
            sums = [s for s in sums if s not in near]
            if near:
                sums.append((first, self._total(first, path, near, piece, temporary)))
        self.here = 0
        terms = self._gathered(0, path, sums, piece, temporary)
        while len(terms) > TERMS:
            y = self._partial(0, piece, temporary)
            self._reduce(0, path, terms[:TERMS], [], y)
            terms = [y, *terms[TERMS:]]
        residual = self._part(node.inputs[1], "residual", *piece) if len(node.inputs) == 2 else []
        self._reduce(0, node.path, terms, residual, self._part(number, "y", *piece)[0])

    def _total(
        self,
        chiplet: int,
        path: str,
        sums: list[tuple[int, Operand]],
        piece: Range,
        temporary: list[tuple[int, int]],
    ) -> Operand:
        """The sum of `sums` on a chiplet."""
        terms = self._gathered(chiplet, path, sums, piece, temporary)
        while len(terms) > 1:
            y = self._partial(chiplet, piece, temporary)
            self._reduce(chiplet, path, terms[:TERMS], [], y)
            terms = [y, *terms[TERMS:]]
        return terms[0]

    def _gathered(
        self,
        chiplet: int,
        path: str,
        sums: list[tuple[int, Operand]],
        piece: Range,
        temporary: list[tuple[int, int]],
    ) -> list[Operand]:
        terms = []
        for source, y in sums:
            if source != chiplet:
                target = self._partial(chiplet, piece, temporary)
                self._send(source, chiplet, path, [Operand("x", y.region, y.dtype)], [target])
                y = target
            terms.append(y)
        return terms

    def _reduce(
        self, chiplet: int, path: str, terms: list[Operand], residual: list[Operand], y: Operand
    ) -> None:
        operands = [Operand(f"x{n}", o.region, o.dtype) for n, o in enumerate(terms)]
        attrs: dict[str, Attr] = {"count": len(terms), "residual": bool(residual)}
        self._add("reduce", chiplet, path, self._next_group(), attrs, [*operands, *residual, y])
