"""The packed layout of a linear's weights, the one that kernels stream through.

A weight [N, K] (outputs, inputs) is cut into panels of 32 outputs; N is padded with zero rows.
Each panel is one sequential byte stream of group records, in the order of K:

    bf16   q u16[K/2][32][2]                          k = 2j + b; one record per panel
    int8   q u8[group/4][32][4],  scale f16[32]       k = group*g + 4j + b
    int4   q u8[group/8][32][4],  scale f16[32]       low nibble k = group*g + 8j + b, high k + 4

followed by `min f16[32]` where the format has a minimum.  The value of a code u is `scale*u + min`
with a minimum, and `scale*(u - zero_point)` without: zero_point 128 for int8 and 8 for int4.  Of a
format with zeros, a group has a zero point of its own, and min is minus that: `scale*(u + min)`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dielet.errors import UsageError
from dielet.formats.bf16 import from_bf16, to_bf16

PANEL = 32
GROUPS = (32, 64, 128)
Kind = Literal["bf16", "int8", "int4"]
Packed = NDArray[Any]  # structured, [panels, groups] of WeightFormat.record(K)


@dataclass(frozen=True)
class WeightFormat:
    """A number format of weights.  `group` inputs share one scale; bf16 has none (group 0).

    zeros: whether a group's minimum is -scale times a whole number, and that is what is kept.
    """

    kind: Kind
    group: int = 0
    minimum: bool = False
    zeros: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UsageError(f"weight format {self.kind!r} is unknown; use bf16, int8 or int4")
        if self.kind == "bf16":
            if self.group or self.minimum:
                raise UsageError(f"bf16 weights have no groups; got group {self.group}, use 0")
        elif self.group not in GROUPS:
            raise UsageError(f"group {self.group} is not offered; use one of 32, 64, 128")
        if self.zeros and not self.minimum:
            raise UsageError(f"zeros of {self.kind} say what a minimum is; got none, use minimum")

    @staticmethod
    def parse(name: str) -> "WeightFormat":
        """The format whose `.name` is `name`: bf16, int8g64, int4g32, int4g32m, int4g128z, ..."""
        if name == "bf16":
            return WeightFormat("bf16")
        match = re.fullmatch(r"(int8|int4)g(32|64|128)([mz]?)", name)
        if not match:
            raise UsageError(
                f"weight format {name!r} is unknown; use bf16, or int8 or int4 followed by "
                "g32, g64 or g128 and, for a minimum, m (for example int4g32m), for zero points z"
            )
        kind: Kind = "int8" if match[1] == "int8" else "int4"
        return WeightFormat(kind, int(match[2]), bool(match[3]), match[3] == "z")

    @property
    def name(self) -> str:
        offset = "z" if self.zeros else "m" if self.minimum else ""
        return self.kind + (f"g{self.group}" if self.group else "") + offset

    @property
    def integer(self) -> bool:
        return self.kind != "bf16"

    @property
    def zero_point(self) -> int:
        """The code that stands for 0 in a format without a minimum."""
        return {"bf16": 0, "int8": 128, "int4": 8}[self.kind]

    @property
    def largest_code(self) -> int:
        return {"bf16": 0xFFFF, "int8": 255, "int4": 15}[self.kind]

    def check_columns(self, K: int, what: str = "weight") -> None:
        """Refuse a K that this format cannot hold."""
        unit = self.group or 2
        if K <= 0 or K % unit:
            raise UsageError(
                f"{what} has {K} inputs, which {self.name} cannot hold: it needs a positive "
                f"multiple of {unit}" + ("; choose a smaller group or bf16" if self.group else "")
            )

    def record(self, K: int) -> np.dtype[Any]:
        """The dtype of one group record: fields q, and scale and min where the format has them."""
        self.check_columns(K)
        if self.kind == "bf16":
            return np.dtype([("q", "<u2", (K // 2, PANEL, 2))])
        bytes_per_step = 4 if self.kind == "int8" else 8  # inputs held by 4 bytes of one output
        fields: list[Any] = [
            ("q", "u1", (self.group // bytes_per_step, PANEL, 4)),
            ("scale", "<f2", (PANEL,)),
        ]
        if self.minimum:
            fields.append(("min", "<f2", (PANEL,)))
        return np.dtype(fields)

    def packed_shape(self, N: int, K: int) -> tuple[int, int]:
        """(panels, groups) of a weight [N, K]; a bf16 panel is one record."""
        self.check_columns(K)
        return -(-N // PANEL), K // self.group if self.group else 1

    def nbytes(self, N: int, K: int) -> int:
        """Bytes of a packed weight [N, K], the padding of N included."""
        panels, groups = self.packed_shape(N, K)
        return panels * groups * self.record(K).itemsize


def pack(
    fmt: WeightFormat,
    values: NDArray[Any],
    scale: NDArray[np.float16] | None = None,
    minimum: NDArray[np.float16] | None = None,
    *,
    out: Packed | None = None,
) -> Packed:
    """Arrange weights that are already in `fmt`: [panels, groups] of records.

    bf16: values [N, K] as bfloat16 bits (uint16), or floats that are rounded.
    int8, int4: codes uint8 [N, K], scale float16 [N, K/group], and minimum likewise if it has one.
    `out`, if given, is written and returned (a slice of a file, say).
    """
    N, K = values.shape
    if out is None:
        out = np.empty(fmt.packed_shape(N, K), fmt.record(K))
    assert out.shape == fmt.packed_shape(N, K) and out.dtype == fmt.record(K)
    if fmt.kind == "bf16":
        bits = values if values.dtype == np.uint16 else to_bf16(values)
        _put_words(out["q"].reshape(-1, K // 2, PANEL, 2), _words(bits, 0))
        return out
    assert values.dtype == np.uint8 and scale is not None and scale.dtype == np.float16
    assert scale.shape == (N, K // fmt.group) and (minimum is not None) == fmt.minimum
    words = _words(values, 0 if fmt.minimum else fmt.zero_point)
    if fmt.kind == "int4":
        words = words[:, 0::2] | words[:, 1::2] << np.uint32(4)
    _put_words(out["q"], words)
    _put_lanes(out["scale"], scale)
    if minimum is not None:
        _put_lanes(out["min"], minimum)
    return out


def _words(values: NDArray[Any], padding: int) -> NDArray[np.uint32]:
    """Codes [N, K] -> [N padded to whole panels, K*itemsize/4] uint32, padding rows filled."""
    missing = -len(values) % PANEL
    if missing:
        rows = np.full((missing, values.shape[1]), padding, values.dtype)
        values = np.concatenate([values, rows])
    words: NDArray[np.uint32] = np.ascontiguousarray(values).view("<u4")
    return words


def _put_words(q: NDArray[Any], words: NDArray[np.uint32]) -> None:
    """Scatter words [panels*32, steps] into q [panels(, groups), steps, 32, 4 bytes]."""
    target = q.view("<u4")[..., 0]  # [panels(, groups), steps, 32]
    panels = target.shape[0]
    by_panel = words.reshape(panels, PANEL, *target.shape[1:-1])
    target[...] = np.moveaxis(by_panel, 1, -1)


def _put_lanes(target: NDArray[np.float16], values: NDArray[np.float16]) -> None:
    """Scatter one number per row and group [N, groups] into [panels, groups, 32]."""
    N, groups = values.shape
    padded = np.zeros((target.shape[0] * PANEL, groups), np.float16)
    padded[:N] = values
    target[...] = padded.reshape(-1, PANEL, groups).swapaxes(1, 2)


def unpack(fmt: WeightFormat, packed: Packed, N: int, K: int) -> NDArray[np.float32]:
    """The values of a packed weight: float32 [N, K]."""
    assert packed.shape == fmt.packed_shape(N, K)
    return unpack_rows(fmt, packed, np.arange(N), K)


def unpack_rows(
    fmt: WeightFormat, packed: Packed, ids: Sequence[int] | NDArray[np.integer], K: int
) -> NDArray[np.float32]:
    """The values of rows `ids`, in that order: float32 [len(ids), K] (an embedding look-up)."""
    ids = np.asarray(ids, np.intp)
    panel, lane = ids // PANEL, ids % PANEL
    if fmt.kind == "bf16":
        return from_bf16(packed["q"][panel, 0, :, lane].reshape(len(ids), K))
    codes = packed["q"][panel, :, :, lane]  # [n, groups, steps, 4]
    if fmt.kind == "int4":
        codes = np.stack([codes & 15, codes >> 4], axis=3)  # [n, groups, steps, 2, 4]
    values = codes.reshape(len(ids), -1, fmt.group).astype(np.float32)
    if not fmt.minimum:
        values -= fmt.zero_point
    scale = packed["scale"][panel, :, lane].astype(np.float32)[..., None]
    values *= scale
    if fmt.minimum:
        low = packed["min"][panel, :, lane].astype(np.float32)[..., None]
        values += low * scale if fmt.zeros else low
    return values.reshape(len(ids), K)
