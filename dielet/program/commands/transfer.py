"""What moves values between memories, and what joins them again."""

from __future__ import annotations

import numpy as np

from dielet.formats.packed import PANEL
from dielet.program.commands.entry import ITEM_SIZE, Entry, Run, Values, columns, command, stride
from dielet.program.types import Attr, Command, Operand

WORD = 4
TERMS = 8  # partial sums that one reduction can add up


class Transfer(Entry):
    """Base of the copies, which differ in the engine that does them.

    `extent` is what of the rectangles is copied: `all`, the `rows` that are real, or of every row
    the `positions` that are in the cache, `width` elements each, up to a whole panel.
    """

    engine = "dma"
    reads = "x x_scale? x_sum?"
    writes = "y y_scale? y_sum?"
    static = ("extent",)
    tolerance = 0.0

    def kernel(self, c: Command) -> tuple[str, tuple[tuple[str, Attr], ...]]:
        return "copy", (("extent", c.attrs["extent"]), ("parts", len(c.operands) // 2))

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        for x, y in _pairs(c):
            rows, width = v[x.role].shape
            if c.attrs["extent"] == "rows":
                rows = min(rows, run.valid)
            if c.attrs["extent"] == "positions":
                width = min(width, _positions(run) * int(c.attrs["width"]))
            v[y.role][:rows, :width] = v[x.role][:rows, :width]

    def params(self, c: Command) -> tuple[int, ...]:
        found: list[int] = []
        for x, y in _pairs(c):
            found += [x.region.rows, x.region.width // WORD]
            found += [x.region.stride // WORD, y.region.stride // WORD]
            if c.attrs["extent"] == "positions":
                found.append(PANEL * int(c.attrs["width"]) * ITEM_SIZE[x.dtype] // WORD)
        return tuple(found)

    def attributes(self, c: Command) -> tuple[str, ...]:
        return (*self.static, "width") if c.attrs.get("extent") == "positions" else self.static

    def asked(self, c: Command) -> set[str]:
        """As many as there are of x, and the same of y."""
        parts = {role[1:] for role in ("x_scale", "x_sum") if c.has(role)}
        return {side + part for side in "xy" for part in parts}

    def dtypes(self, c: Command) -> dict[str, str]:
        return {o.role: x.dtype for x, y in _pairs(c) for o in (x, y)}

    def complaint(self, c: Command) -> str:
        for x, y in _pairs(c):
            if (x.region.rows, x.region.width) != (y.region.rows, y.region.width):
                return f"{x.role} and {y.role} are of different sizes"
            words = (x.region.width, x.region.stride, y.region.stride)
            if any(number % WORD for number in words):
                return f"{x.role} is not of whole words"
        return ""

    def moved(self, c: Command, operand: Operand, run: Run | None) -> int:
        region = operand.region
        if run is None or c.attrs["extent"] == "all":
            return region.nbytes
        if c.attrs["extent"] == "rows":
            return min(region.rows, run.valid) * region.width
        size = int(c.attrs["width"]) * ITEM_SIZE[operand.dtype]
        return region.rows * min(region.width, _positions(run) * size)


def _pairs(c: Command) -> list[tuple[Operand, Operand]]:
    half = len(c.operands) // 2
    return list(zip(c.operands[:half], c.operands[half:], strict=True))


def _positions(run: Run) -> int:
    return -(-(run.past + run.valid) // PANEL) * PANEL


@command
class Copy(Transfer):
    """y = x: activations, parameters that are not divided, and the cache, within a device."""

    kind = "copy"


@command
class WeightCopy(Transfer):
    """y = x: a piece of a chiplet's share of weights, into its scratchpad."""

    kind = "weight_copy"


@command
class HostCopy(Transfer):
    """y = x: the program's inputs and outputs, between the host and chiplet 0."""

    kind = "host_copy"


@command
class DeviceCopy(Transfer):
    """y = x: from a chiplet of one device to a chiplet of another."""

    kind = "device_copy"


@command
class DeviceSync(Entry):
    """x, which another device has sent, is there: what reads it waits for this."""

    kind = "device_sync"
    engine = "dma"
    reads = ""
    updates = "x x_scale? x_sum?"
    writes = ""
    static = ()

    def kernel(self, c: Command) -> tuple[str, tuple[tuple[str, Attr], ...]]:
        return "nothing", ()

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        """Nothing changes."""

    def asked(self, c: Command) -> set[str]:
        return {role for role in ("x_scale", "x_sum") if c.has(role)}

    def dtypes(self, c: Command) -> dict[str, str]:
        return {operand.role: operand.dtype for operand in c.operands}

    def params(self, c: Command) -> tuple[int, ...]:
        return ()

    def units(self, c: Command, run: Run | None = None) -> int:
        return 1

    def moved(self, c: Command, operand: Operand, run: Run | None) -> int:
        return 0


@command
class Reduce(Entry):
    """y = x0 + x1 + ... in this order, then the residual if there is one."""

    kind = "reduce"
    engine = "general"
    reads = " ".join(["x0", *(f"x{n}?" for n in range(1, TERMS)), "residual?"])
    writes = "y"
    static = ("count", "residual")
    tolerance = 0.0

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        terms = [v[o.role][: run.valid] for o in c.operands if o.role != "y"]
        total = terms[0].astype(np.float32)
        for x in terms[1:]:
            total = total + x
        v["y"][: run.valid] = total

    def asked(self, c: Command) -> set[str]:
        terms = {f"x{n}" for n in range(1, int(c.attrs["count"]))}
        return terms | ({"residual"} if c.attrs["residual"] else set())

    def widths(self, c: Command) -> dict[str, int]:
        return dict.fromkeys((o.role for o in c.operands), c.operand("y").region.width)

    def complaint(self, c: Command) -> str:
        whole = columns(c, "y") % PANEL == 0
        return "" if whole else f"{columns(c, 'y')} columns, not whole panels"

    def params(self, c: Command) -> tuple[int, ...]:
        return columns(c, "y"), stride(c, "y"), *(stride(c, o.role) for o in c.operands[:-1])

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": (len(c.operands) - 2) * self.rows(c, run) * columns(c, "y")}
