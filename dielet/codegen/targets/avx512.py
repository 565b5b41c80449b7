"""x86 with AVX-512 VNNI and BF16 (Zen 4, Zen 5, Sapphire Rapids and later), 512-bit code."""

from __future__ import annotations

from dielet.codegen.function import Function
from dielet.codegen.targets.base import Target
from dielet.codegen.values import BF16, I8, I16, Value


class Avx512(Target):
    """One instruction per dot; the u8 * s8 dot takes weights as they are (zero 0)."""

    def dot4(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        w, s = (v.bits(I8.x(4 * self.lanes)) for v in (weight, x))
        return k.call("llvm.x86.avx512.vpdpbusd.512", acc.type, acc, w, s)

    def dot4_small(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        return self.dot4(k, acc, weight, x)

    def from_f16(self, k: Function, bits: Value) -> Value:
        return self.native_from_f16(bits)

    def dot2(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        w, s = (v.bits(BF16.x(2 * self.lanes)) for v in (weight, x))
        return k.call("llvm.x86.avx512bf16.dpbf16ps.512", acc.type, acc, w, s)

    def to_bf16(self, k: Function, x: Value) -> Value:
        if x.type.lanes != self.lanes:
            return super().to_bf16(k, x)
        # vcvtneps2bf16 flushes subnormals to zero, as vdpbf16ps does with its inputs.
        packed = k.call("llvm.x86.avx512bf16.cvtneps2bf16.512", BF16.x(self.lanes), x)
        return packed.bits(I16.x(self.lanes))


AVX512 = Avx512(
    name="avx512",
    triple="x86_64-unknown-linux-gnu",
    cpu="znver4",
    features="+avx512vnni,+avx512bf16,-prefer-256-bit",
    lanes=16,
    registers=32,
    int_rows=6,
    int_cols=2,
    bf16_rows=8,
    bf16_cols=2,
    few_rows=(4, 8),
    pause_hint=("llvm.x86.sse2.pause", None),
    fence_hint=("llvm.x86.sse2.lfence", None),
    needs=("avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "f16c", "fma"),
    tuning=",-prefer-256-bit",
)
