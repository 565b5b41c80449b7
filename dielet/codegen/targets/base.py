"""What a kernel asks of a processor, and the answer that every processor can give.

`Target` offers the operations by which number formats meet arithmetic. The bodies here use nothing
but generic LLVM IR (that is the `plain` target); a subclass replaces what its instruction set does
better. Vectors have `lanes` 32-bit lanes; four bytes or two bfloat16 travel in one lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from dielet.codegen.function import Function
from dielet.codegen.values import F16, F32, I16, I32, VOID, Value
from dielet.formats.packed import PANEL


@dataclass(frozen=True)
class Target:
    """One instruction set, and the register tiles that fit it."""

    name: str
    triple: str
    cpu: str
    features: str
    lanes: int  # 32-bit lanes of one vector register
    registers: int  # vector registers
    int_rows: int  # register tile of the integer linear: so many rows
    int_cols: int  # .. by so many vectors of outputs
    bf16_rows: int
    bf16_cols: int
    few_rows: tuple[int, ...] = ()  # heights of a tile that is alone, reading weights from memory
    fused: bool = True  # has a multiply-add that rounds once
    pause_hint: tuple[str, int | None] = ("", None)  # intrinsics and their argument
    fence_hint: tuple[str, int | None] = ("", None)
    needs: tuple[str, ...] = ()  # processor features without which it cannot run
    tuning: str = ""  # added to the features of the machine at hand

    # Sum of (weight - zero) * activation that `dot4` adds: the kernel corrects by the rest.
    dot4_zero = 0

    @property
    def vectors(self) -> int:
        """Vectors that hold one panel of 32 outputs."""
        return PANEL // self.lanes

    # -- dot products: acc + sum over the bytes (halves) of each lane -------------------------

    def dot4(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        """acc + sum of 4 products (u8 weight - dot4_zero) * s8 x per 32-bit lane, exactly."""
        for b in range(4):
            w = (weight >> (8 * b)) & 0xFF
            s = (x << (24 - 8 * b)).sra(24)
            acc = acc + w * s
        return acc

    def dot4_small(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        """The same for weights 0..15, without any zero."""
        return Target.dot4(self, k, acc, weight, x)

    def dot2(self, k: Function, acc: Value, weight: Value, x: Value) -> Value:
        """acc + the 2 products of bfloat16 per 32-bit lane, in float32."""
        of_bits = acc.type
        high = -65536
        w1, x1 = (weight & high).bits(of_bits), (x & high).bits(of_bits)
        w0, x0 = (weight << 16).bits(of_bits), (x << 16).bits(of_bits)
        return k.fma(w0, x0, k.fma(w1, x1, acc))

    # -- conversions --------------------------------------------------------------------------

    def from_f16(self, k: Function, bits: Value) -> Value:
        """float16 (as i16 bits) to float32, exactly, subnormals included."""
        wide = bits.zext(I32)
        floats = bits.type.of(F32)
        # Shifted into place the exponent is 112 too small, which a multiplication makes good.
        small = ((wide & 0x7FFF) << 13).bits(floats) * 2.0**112
        special = (wide & 0x7C00).eq(0x7C00)
        magnitude = small.bits(wide.type) | special.choose(wide.like(0x7F800000), 0)
        return (magnitude | ((wide & 0x8000) << 16)).bits(floats)

    def native_from_f16(self, bits: Value) -> Value:
        """The same where there is an instruction for it."""
        return bits.bits(bits.type.of(F16)).fpext(F32)

    def from_bf16(self, k: Function, bits: Value) -> Value:
        return (bits.zext(I32) << 16).bits(bits.type.of(F32))

    def to_bf16(self, k: Function, x: Value) -> Value:
        """float32 to bfloat16 bits (i16), to nearest, ties to even; a NaN stays one."""
        bits = x.bits(x.type.of(I32))
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = (bits >> 16) | 0x40
        return x.ne(x).choose(quiet, rounded).trunc(I16)

    def pause(self, k: Function) -> None:
        """Rest a moment in a loop that waits."""
        self._hint(k, self.pause_hint)

    def fence(self, k: Function) -> None:
        """Let what comes next begin only when what came before has finished."""
        self._hint(k, self.fence_hint)

    @staticmethod
    def _hint(k: Function, hint: tuple[str, int | None]) -> None:
        name, number = hint
        if name:
            k.call(name, VOID, *([] if number is None else [k.const(I32, number)]))

    def broadcast(self, scalar: Value) -> Value:
        return scalar.splat(self.lanes)


__all__ = ["PANEL", "Target"]
