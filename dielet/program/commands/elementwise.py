"""Norms, gated activation, changes of number format, and the summary of the logits."""

from __future__ import annotations

import numpy as np

from dielet.formats.packed import PANEL
from dielet.program.commands.entry import (
    Entry,
    Run,
    Values,
    columns,
    command,
    group_complaint,
    rows_of,
    stride,
    value_dtypes,
    value_roles,
    value_widths,
)
from dielet.program.commands.values import activated, rms_normed, store
from dielet.program.types import Command

OUT = "y y_scale? y_sum?"


@command
class RmsNorm(Entry):
    """y = x / sqrt(mean(x^2) + eps) * weight, plus a residual if there is one, rows row0 ... of
    the chunk."""

    kind = "rmsnorm"
    engine = "general"
    reads = "x weight residual?"
    writes = OUT
    static = ("K", "eps", "out", "group")
    options = ("residual",)
    others = ("row0",)
    packed = "y_scale y_sum"

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        rows = rows_of(c, run)
        y = rms_normed(v["x"][:rows], v["weight"][0], float(c.attrs["eps"]))
        if c.has("residual"):
            y += v["residual"][:rows]
        store(v, rows, y, str(c.attrs["out"]), int(c.attrs["group"]))

    def widths(self, c: Command) -> dict[str, int]:
        K = int(c.attrs["K"])
        y = value_widths("y", K, str(c.attrs["out"]), int(c.attrs["group"]))
        return {"x": K * 4, "weight": K * 4, "residual": K * 4, **y}

    def dtypes(self, c: Command) -> dict[str, str]:
        return value_dtypes("y", str(c.attrs["out"]))

    def asked(self, c: Command) -> set[str]:
        residual = {"residual"} if c.attrs.get("residual") else set()
        return value_roles("y", str(c.attrs["out"])) | residual

    def complaint(self, c: Command) -> str:
        return group_complaint(int(c.attrs["K"]), str(c.attrs["out"]), int(c.attrs["group"]))

    def params(self, c: Command) -> tuple[int, ...]:
        residual = (stride(c, "residual"),) if c.has("residual") else ()
        return stride(c, "x"), stride(c, "y"), *residual, *_rows(c)

    def variant(self, c: Command) -> str:
        return _out(c)

    def depth(self, c: Command, run: Run | None = None) -> int:
        return int(c.attrs["K"])

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": 4 * self.rows(c, run) * columns(c, "x")}


@command
class Quantize(Entry):
    """y = x as int8 with a scale and a code sum per row and group."""

    kind = "quantize"
    engine = "general"
    reads = "x"
    writes = "y y_scale y_sum"
    static = ("group",)
    others = ("row0",)

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        rows = rows_of(c, run)
        store(v, rows, v["x"][:rows], "int8", int(c.attrs["group"]))

    def widths(self, c: Command) -> dict[str, int]:
        return value_widths("y", columns(c, "x"), "int8", int(c.attrs["group"]))

    def dtypes(self, c: Command) -> dict[str, str]:
        return value_dtypes("y", "int8")

    def complaint(self, c: Command) -> str:
        return group_complaint(columns(c, "x"), "int8", int(c.attrs["group"]))

    def variant(self, c: Command) -> str:
        return f"int8g{c.attrs['group']}"

    def units(self, c: Command, run: Run | None = None) -> int:
        return _runs(self.rows(c, run), columns(c, "x"), c)

    def params(self, c: Command) -> tuple[int, ...]:
        return columns(c, "x"), stride(c, "x"), stride(c, "y"), stride(c, "y_scale"), *_rows(c)

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": 4 * self.rows(c, run) * columns(c, "x")}


@command
class Convert(Entry):
    """y = x rounded to bf16."""

    kind = "convert"
    engine = "general"
    reads = "x"
    writes = "y"
    static = ()
    others = ("row0",)

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        rows = rows_of(c, run)
        store(v, rows, v["x"][:rows], "bf16", 0)

    def widths(self, c: Command) -> dict[str, int]:
        return value_widths("y", columns(c, "x"), "bf16", 0)

    def dtypes(self, c: Command) -> dict[str, str]:
        return {"y": "bf16"}

    def units(self, c: Command, run: Run | None = None) -> int:
        return _runs(self.rows(c, run), columns(c, "x"), c)

    def params(self, c: Command) -> tuple[int, ...]:
        return columns(c, "x"), stride(c, "x"), stride(c, "y"), *_rows(c)


@command
class SiluMul(Entry):
    """y = gate / (1 + exp(-gate)) * up; with `activation` gelu_tanh, the gate's exponent is
    sqrt(8/pi) (gate + 0.044715 gate^3)."""

    kind = "silu_mul"
    engine = "general"
    reads = "gate up"
    writes = OUT
    static = ("out", "group")
    options = ("activation",)

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        gate, up = (v[role][: run.valid].astype(np.float64) for role in ("gate", "up"))
        y = (activated(gate, str(c.attrs.get("activation", "silu"))) * up).astype(np.float32)
        store(v, run.valid, y, str(c.attrs["out"]), int(c.attrs["group"]))

    def widths(self, c: Command) -> dict[str, int]:
        width = columns(c, "gate")
        y = value_widths("y", width, str(c.attrs["out"]), int(c.attrs["group"]))
        return {"up": width * 4, **y}

    def dtypes(self, c: Command) -> dict[str, str]:
        return value_dtypes("y", str(c.attrs["out"]))

    def asked(self, c: Command) -> set[str]:
        return value_roles("y", str(c.attrs["out"]))

    def complaint(self, c: Command) -> str:
        width = columns(c, "gate")
        return group_complaint(width, str(c.attrs["out"]), int(c.attrs["group"]))

    def params(self, c: Command) -> tuple[int, ...]:
        strides = (stride(c, role) for role in ("gate", "up", "y", "y_scale"))
        return (columns(c, "gate"), *strides)

    def variant(self, c: Command) -> str:
        return _out(c)

    def units(self, c: Command, run: Run | None = None) -> int:
        return _runs(self.rows(c, run), columns(c, "gate"), c)

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": 6 * self.rows(c, run) * columns(c, "gate")}


@command
class Select(Entry):
    """y = (largest logit, its lowest column, how many are not finite, 0) per row, 32-bit words."""

    kind = "select"
    engine = "general"
    reads = "x"
    writes = "y"
    static = ()
    others = ("first_column",)

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        for row in range(run.valid):
            x = v["x"][row]
            bad = int(np.count_nonzero(~np.isfinite(x)))
            best = int(np.argmax(np.where(np.isnan(x), -np.inf, x)))
            v["y"][row, 0] = x[best : best + 1].view(np.int32)[0]
            v["y"][row, 1:] = best, bad, 0

    def widths(self, c: Command) -> dict[str, int]:
        return {"y": 16}

    def dtypes(self, c: Command) -> dict[str, str]:
        return {"y": "i32"}

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": 2 * self.rows(c, run) * columns(c, "x")}

    def params(self, c: Command) -> tuple[int, ...]:
        return columns(c, "x"), stride(c, "x"), stride(c, "y")


def _out(c: Command) -> str:
    """The number format that a command writes, with its group."""
    return f"int8g{c.attrs['group']}" if c.attrs["out"] == "int8" else str(c.attrs["out"])


def _runs(rows: int, width: int, c: Command) -> int:
    """Groups, or panels, that rows of so many columns have."""
    return max(rows * width // max(int(c.attrs.get("group", 0)), PANEL), 1)


def _rows(c: Command) -> tuple[int, int]:
    return int(c.attrs["row0"]), c.operand("x").region.rows
