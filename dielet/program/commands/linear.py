"""Matrix multiplication with packed weights."""

from __future__ import annotations

import numpy as np

from dielet.errors import UsageError
from dielet.formats.bf16 import from_bf16
from dielet.formats.packed import PANEL, WeightFormat, unpack
from dielet.program.commands.entry import (
    Entry,
    Run,
    Values,
    command,
    stride,
    value_dtypes,
    value_roles,
    value_widths,
)
from dielet.program.commands.values import dequantize_rows
from dielet.program.types import Attr, Command


def weight_attrs(fmt: WeightFormat) -> dict[str, Attr]:
    """The attributes that say in which format weights are."""
    attrs: dict[str, Attr] = {"format": fmt.kind, "group": fmt.group, "minimum": fmt.minimum}
    return {**attrs, "zeros": True} if fmt.zeros else attrs


def weight_format(attrs: dict[str, Attr]) -> WeightFormat:
    kind, zeros = str(attrs["format"]), bool(attrs.get("zeros"))
    return WeightFormat(kind, int(attrs["group"]), bool(attrs["minimum"]), zeros)  # type: ignore[arg-type]


@command
class Linear(Entry):
    """y[T, N] = x[T, K] . w[N, K]^T, plus a residual [T, N] and a bias [N] if there are any.

    x is bf16, or int8 with a scale and a code sum per row and group; w is in panels of 32 outputs.
    """

    kind = "linear"
    engine = "neural"
    reads = "x x_scale? x_sum? w residual? bias?"
    writes = "y"
    static = ("K", "format", "group", "minimum", "T", "residual", "bias")
    options = ("zeros",)

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        fmt, K = weight_format(c.attrs), int(c.attrs["K"])
        panels = _panels(c)
        packed = v["w"].reshape(-1).view(fmt.record(K)).reshape(fmt.packed_shape(panels * PANEL, K))
        w = unpack(fmt, packed, panels * PANEL, K)
        x = v["x"][: run.valid]
        x32 = dequantize_rows(x, v["x_scale"][: run.valid]) if fmt.integer else from_bf16(x)
        y = (x32.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)
        if c.has("residual"):
            y += v["residual"][: run.valid]
        if c.has("bias"):
            y += v["bias"][0]
        v["y"][: run.valid] = y

    def params(self, c: Command) -> tuple[int, ...]:
        strides = (stride(c, role) for role in ("x", "x_scale", "y", "residual"))
        return (_panels(c), *strides)

    def widths(self, c: Command) -> dict[str, int]:
        fmt, K, columns = weight_format(c.attrs), int(c.attrs["K"]), _panels(c) * PANEL
        x = value_widths("x", K, "int8" if fmt.integer else "bf16", fmt.group)
        y = {"y": 4 * columns, "residual": 4 * columns, "bias": 4 * columns}
        return {**x, **y, "w": fmt.nbytes(columns, K)}

    def dtypes(self, c: Command) -> dict[str, str]:
        return {**value_dtypes("x", _activations(c)), "w": "packed"}

    def asked(self, c: Command) -> set[str]:
        added = {role for role in ("residual", "bias") if c.attrs[role]}
        return value_roles("x", _activations(c)) | added

    def complaint(self, c: Command) -> str:
        try:
            weight_format(c.attrs).check_columns(int(c.attrs["K"]))
        except UsageError as error:
            return str(error)
        return ""

    def variant(self, c: Command) -> str:
        return weight_format(c.attrs).name + ("+residual" if c.has("residual") else "")

    def depth(self, c: Command, run: Run | None = None) -> int:
        return int(c.attrs["K"])

    def units(self, c: Command, run: Run | None = None) -> int:
        return _panels(c)

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        name = "bf16" if c.attrs["format"] == "bf16" else "int8"
        rows, columns, depth = self.shape(c, run)
        return {name: 2 * rows * columns * depth}

    def shape(self, c: Command, run: Run | None = None) -> tuple[int, int, int]:
        return self.rows(c, run), _panels(c) * PANEL, int(c.attrs["K"])


def _activations(c: Command) -> str:
    """The number format of x."""
    return "bf16" if c.attrs["format"] == "bf16" else "int8"


def _panels(c: Command) -> int:
    return c.operand("y").region.width // (4 * PANEL)
