"""Mixtures of experts: which experts a row is sent to, and what those make of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dielet.formats.bf16 import from_bf16
from dielet.formats.packed import PANEL, WeightFormat, unpack
from dielet.program.commands.entry import (
    Entry,
    Run,
    Values,
    columns,
    command,
    rows_of,
    stride,
    value_widths,
)
from dielet.program.commands.linear import weight_format
from dielet.program.commands.values import activated, dequantize_rows, store
from dielet.program.types import Command, Operand

F32 = NDArray[np.float32]


@command
class Route(Entry):
    """y = per row the numbers of its `chosen` experts, the largest score first, then their weights:
    a softmax over them (`normed`) or over all `experts`."""

    kind = "route"
    engine = "general"
    reads = "x"
    writes = "y"
    static = ("experts", "chosen", "normed")
    others = ("row0",)

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        rows, chosen = rows_of(c, run), int(c.attrs["chosen"])
        x = v["x"][:rows, : int(c.attrs["experts"])].astype(np.float64)
        best = np.argsort(-x, axis=1, kind="stable")[:, :chosen]
        top = np.take_along_axis(x, best, 1)
        over = top if c.attrs["normed"] else x
        total = np.exp(over - top[:, :1]).sum(1, keepdims=True)
        v["y"][:rows, :chosen] = best
        v["y"][:rows, chosen : 2 * chosen] = np.exp(top - top[:, :1]) / total

    def params(self, c: Command) -> tuple[int, ...]:
        x = c.operand("x").region
        return stride(c, "x"), stride(c, "y"), int(c.attrs["row0"]), x.rows

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": self.rows(c, run) * int(c.attrs["experts"]) * (int(c.attrs["chosen"]) + 1)}


class Experts(Entry):
    """Base of what chosen experts do; weights are `experts` matrices, one after the other."""

    engine = "neural"
    options = ("zeros",)
    others = ("experts",)

    def dtypes(self, c: Command) -> dict[str, str]:
        dtypes = {role: "packed" for role in ("w", "w_gate", "w_up")}
        for role, out in self._formats(c).items():
            integer = {role: "s8", f"{role}_scale": "f32", f"{role}_sum": "i32"}
            dtypes |= integer if out == "int8" else {role: out}
        return dtypes

    def asked(self, c: Command) -> set[str]:
        integers = [role for role, out in self._formats(c).items() if out == "int8"]
        return {f"{role}_{part}" for role in integers for part in ("scale", "sum")}

    def _formats(self, c: Command) -> dict[str, str]:
        """The number formats of what is read and of what is made."""
        x = "int8" if weight_format(c.attrs).integer else "bf16"
        return {"x": x, "y": str(c.attrs.get("out", "f32"))}

    def reached(self, c: Command, run: Run | None) -> int:
        """Experts whose weights are read, if all choices are different."""
        return min(self.rows(c, run) * int(c.attrs["chosen"]), int(c.attrs["experts"]))

    def moved(self, c: Command, operand: Operand, run: Run | None) -> int:
        if operand.dtype == "packed":
            return operand.region.nbytes // int(c.attrs["experts"]) * self.reached(c, run)
        return super().moved(c, operand, run)

    def variant(self, c: Command) -> str:
        return weight_format(c.attrs).name

    def depth(self, c: Command, run: Run | None = None) -> int:
        return int(c.attrs["K"])

    def units(self, c: Command, run: Run | None = None) -> int:
        return self.panels(c)

    def panels(self, c: Command) -> int:
        """Panels of one expert's outputs."""
        return columns(c, "y") // PANEL

    def products(self, c: Command, run: Run | None, matrices: int) -> dict[str, int]:
        rows = self.rows(c, run) * int(c.attrs["chosen"]) * matrices
        name = "bf16" if c.attrs["format"] == "bf16" else "int8"
        return {name: 2 * rows * self.panels(c) * PANEL * int(c.attrs["K"])}


@command
class ExpertsGated(Experts):
    """y = activation(x . gate^T) * (x . up^T) of each chosen expert, one choice after the other."""

    kind = "experts_gated"
    reads = "x x_scale? x_sum? routes w_gate w_up"
    writes = "y y_scale? y_sum?"
    static = ("K", "format", "group", "minimum", "chosen", "activation", "out", "out_group")

    def panels(self, c: Command) -> int:
        return columns(c, "y") // int(c.attrs["chosen"]) // PANEL

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        fmt, chosen, width = weight_format(c.attrs), int(c.attrs["chosen"]), self.panels(c) * PANEL
        x = _activations(fmt, v, run.valid)
        y = np.zeros((run.valid, chosen, width), np.float32)
        for row, slot in np.ndindex(run.valid, chosen):
            expert = int(v["routes"][row, slot])
            a, b = (_matrix(c, v[n], expert, width) @ x[row] for n in ("w_gate", "w_up"))
            y[row, slot] = activated(a, str(c.attrs["activation"])) * b
        store(
            v, run.valid, y.reshape(run.valid, -1), str(c.attrs["out"]), int(c.attrs["out_group"])
        )

    def params(self, c: Command) -> tuple[int, ...]:
        strides = (stride(c, role) for role in ("x", "x_scale", "routes", "y", "y_scale"))
        return (self.panels(c), *strides)

    def widths(self, c: Command) -> dict[str, int]:
        fmt, K = weight_format(c.attrs), int(c.attrs["K"])
        x = value_widths("x", K, "int8" if fmt.integer else "bf16", fmt.group)
        nbytes = int(c.attrs["experts"]) * fmt.nbytes(self.panels(c) * PANEL, K)
        wide = value_widths("y", columns(c, "y"), str(c.attrs["out"]), int(c.attrs["out_group"]))
        return {**x, **wide, "w_gate": nbytes, "w_up": nbytes}

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return self.products(c, run, 2)


@command
class ExpertsSum(Experts):
    """y = residual + the chosen experts' x . w^T times their weights, in the order of the choices.

    `pieces`: how many of an expert's inputs each chiplet made, which lie together in x.
    """

    kind = "experts_sum"
    reads = "x x_scale? x_sum? routes w residual"
    writes = "y"
    static = ("K", "format", "group", "minimum", "chosen", "pieces")

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        fmt, chosen, width = weight_format(c.attrs), int(c.attrs["chosen"]), columns(c, "y")
        x = _activations(fmt, v, run.valid)
        y = v["residual"][: run.valid].astype(np.float64)
        for row, slot in np.ndindex(run.valid, chosen):
            parts, done = [], 0
            for piece in map(int, str(c.attrs["pieces"]).split()):
                at = done * chosen + slot * piece
                parts.append(x[row, at : at + piece])
                done += piece
            w = _matrix(c, v["w"], int(v["routes"][row, slot]), width)
            y[row] += v["routes"][row, chosen + slot] * (w @ np.concatenate(parts))
        v["y"][: run.valid] = y

    def params(self, c: Command) -> tuple[int, ...]:
        strides = (stride(c, role) for role in ("x", "x_scale", "routes", "residual", "y"))
        return (self.panels(c), *strides)

    def widths(self, c: Command) -> dict[str, int]:
        fmt, K = weight_format(c.attrs), int(c.attrs["K"])
        flat = K * int(c.attrs["chosen"])
        x = value_widths("x", flat, "int8" if fmt.integer else "bf16", fmt.group)
        nbytes = int(c.attrs["experts"]) * fmt.nbytes(columns(c, "y"), K)
        return {**x, "w": nbytes, "residual": columns(c, "y") * 4}

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return self.products(c, run, 1)


def _activations(fmt: WeightFormat, v: Values, rows: int) -> NDArray[np.float64]:
    x = v["x"][:rows]
    found = dequantize_rows(x, v["x_scale"][:rows]) if fmt.integer else from_bf16(x)
    return found.astype(np.float64)


def _matrix(c: Command, packed: NDArray[np.uint8], expert: int, N: int) -> NDArray[np.float64]:
    """One expert's weights, float64 [N, K]."""
    fmt, K = weight_format(c.attrs), int(c.attrs["K"])
    mine = packed.reshape(int(c.attrs["experts"]), -1)[expert]
    shape = fmt.packed_shape(N, K)
    return unpack(fmt, mine.view(fmt.record(K)).reshape(shape), N, K).astype(np.float64)
