"""x86 with AVX2, FMA and F16C (Haswell, Zen and later)."""

from __future__ import annotations

from dielet.codegen.function import Function
from dielet.codegen.targets.base import Target
from dielet.codegen.values import I8, I16, Value


class Avx2(Target):
    """vpmaddubsw adds pairs of u8 * s8 in 16 bits, which saturate for weights beyond 128.

    So the full-range dot takes weights as signed (zero 128), moves their signs to the activations,
    and multiplies by their magnitude: at most 2 * 128 * 127, which fits.
    """

    dot4_zero = 128

    def dot4(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        bytes_ = I8.x(4 * self.lanes)
        signed = (weight ^ 0x80808080).bits(bytes_)
        magnitude = (signed < 0).choose(-signed, signed)
        turned = k.call("llvm.x86.avx2.psign.b", bytes_, x.bits(bytes_), signed)
        return self._pairs(k, acc, magnitude, turned)

    def dot4_small(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        bytes_ = I8.x(4 * self.lanes)
        return self._pairs(k, acc, weight.bits(bytes_), x.bits(bytes_))

    def _pairs(self, k: Function, acc: Value, unsigned: Value, signed: Value) -> Value:
        halves = I16.x(2 * self.lanes)
        products = k.call("llvm.x86.avx2.pmadd.ub.sw", halves, unsigned, signed)
        ones = k.const(halves, 1)
        return acc + k.call("llvm.x86.avx2.pmadd.wd", acc.type, products, ones)

    def from_f16(self, k: Function, bits: Value) -> Value:
        return self.native_from_f16(bits)


AVX2 = Avx2(
    name="avx2",
    triple="x86_64-unknown-linux-gnu",
    cpu="haswell",
    features="+avx2,+fma,+f16c",
    needs=("avx2", "fma", "f16c"),
    lanes=8,
    registers=16,
    int_rows=2,
    int_cols=2,
    bf16_rows=4,
    bf16_cols=2,
    pause_hint=("llvm.x86.sse2.pause", None),
    fence_hint=("llvm.x86.sse2.lfence", None),
)
