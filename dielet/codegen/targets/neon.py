"""64-bit ARM: NEON with the dot-product extension, and with bfloat16 where there is that too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dielet.codegen.function import Function
from dielet.codegen.targets.base import Target
from dielet.codegen.values import BF16, I8, Value


class Neon(Target):
    """sdot multiplies signed bytes: full-range weights become signed first (zero 128)."""

    dot4_zero = 128

    def dot4(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        return self.dot4_small(k, acc, weight ^ 0x80808080, x)

    def dot4_small(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        w, s = (v.bits(I8.x(4 * self.lanes)) for v in (weight, x))
        return k.call("llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, acc, w, s)

    def from_f16(self, k: Function, bits: Value) -> Value:
        return self.native_from_f16(bits)


class NeonBf16(Neon):
    """bfdot multiplies pairs of bfloat16."""

    def dot2(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        w, s = (v.bits(BF16.x(2 * self.lanes)) for v in (weight, x))
        return k.call("llvm.aarch64.neon.bfdot.v4f32.v8bf16", acc.type, acc, w, s)


_COMMON: dict[str, Any] = {
    "triple": "aarch64-unknown-linux-gnu",
    "lanes": 4,
    "registers": 32,
    "int_rows": 2,
    "int_cols": 4,
    "bf16_rows": 4,
    "bf16_cols": 4,
    "pause_hint": ("llvm.aarch64.hint", 1),
    "fence_hint": ("llvm.aarch64.isb", 15),
}
NEON = Neon(
    name="neon", cpu="neoverse-n1", features="+neon,+dotprod", needs=("neon", "dotprod"), **_COMMON
)
NEON_BF16 = replace(
    NeonBf16(name="neon_bf16", cpu="neoverse-v1", features="+neon,+dotprod,+bf16", **_COMMON),
    needs=("neon", "dotprod", "bf16"),
)
