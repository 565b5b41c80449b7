"""Typed values of the vector language: numbers that print LLVM IR when they are combined.

A `Value` is one SSA value of a function under construction. `a * b + c` prints a multiplication and
an addition; a Python number or a scalar beside a vector is spread over its lanes. Integers are
signed in comparisons and conversions, and `>>` shifts zeros in. There is no fast-math: operations
stay in the order in which the program names them, which is what makes results reproducible.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dielet.codegen.function import Function

_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
_BITS |= {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}


@dataclass(frozen=True)
class Type:
    """An LLVM element type and a number of lanes; `lanes == 0` is a scalar."""

    elem: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.elem}>" if self.lanes else self.elem

    def x(self, lanes: int) -> Type:
        """The vector of `lanes` such elements (0: the scalar)."""
        return Type(self.elem, lanes)

    def of(self, elem: Type) -> Type:
        """As many lanes as here, of another element."""
        return Type(elem.elem, self.lanes)

    @property
    def scalar(self) -> Type:
        return Type(self.elem)

    @property
    def is_float(self) -> bool:
        return self.elem in ("half", "bfloat", "float", "double")

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self.elem]

    @property
    def size(self) -> int:
        """Bytes of the whole value in memory."""
        return max(1, self.lanes) * self.bits // 8

    @property
    def mangled(self) -> str:
        """The suffix by which intrinsics name this type (`v16f32`, `i64`)."""
        name = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}
        elem = name.get(self.elem, self.elem)
        return f"v{self.lanes}{elem}" if self.lanes else elem

    def literal(self, number: float) -> str:
        """The text of a constant of this type."""
        if self.elem == "float":
            # LLVM writes a float as the hexadecimal double of the same value.
            single = struct.unpack("f", struct.pack("f", number))[0]
            text = f"0x{struct.unpack('Q', struct.pack('d', single))[0]:016X}"
        elif self.elem == "i1":
            text = "true" if number else "false"
        else:
            if self.is_float or number != int(number):
                raise TypeError(f"no constant {number!r} of type {self}")
            text = str(int(number))
        return f"splat ({self.elem} {text})" if self.lanes else text


I1, I8, I16, I32, I64 = Type("i1"), Type("i8"), Type("i16"), Type("i32"), Type("i64")
F16, BF16, F32, F64 = Type("half"), Type("bfloat"), Type("float"), Type("double")
PTR = Type("ptr")
VOID = Type("void")


class Value:
    """One SSA value; see the module's first lines for what the operators mean."""

    __slots__ = ("fn", "text", "type")

    def __init__(self, fn: Function, type_: Type, text: str) -> None:
        self.fn, self.type, self.text = fn, type_, text

    def __repr__(self) -> str:
        return f"{self.type} {self.text}"

    def like(self, other: Value | int | float) -> Value:
        """`other` as a value of this type: numbers become constants, scalars are spread."""
        if not isinstance(other, Value):
            return Value(self.fn, self.type, self.type.literal(other))
        if other.type == self.type:
            return other
        if self.type.lanes and other.type == self.type.scalar:
            return other.splat(self.type.lanes)
        raise TypeError(f"cannot combine {self.type} with {other.type}")

    def _binary(self, int_op: str, float_op: str, other: Value | int | float) -> Value:
        if isinstance(other, Value) and other.type.lanes and not self.type.lanes:
            return other.like(self)._binary(int_op, float_op, other)
        op = float_op if self.type.is_float else int_op
        if not op:
            raise TypeError(f"no such operation on {self.type}")
        right = self.like(other)
        return self.fn.emit(self.type, f"{op} {self.type} {self.text}, {right.text}")

    def _mirrored(self, int_op: str, float_op: str, other: int | float) -> Value:
        return self.like(other)._binary(int_op, float_op, self)

    def __add__(self, other: Value | int | float) -> Value:
        return self._binary("add", "fadd", other)

    def __sub__(self, other: Value | int | float) -> Value:
        return self._binary("sub", "fsub", other)

    def __mul__(self, other: Value | int | float) -> Value:
        return self._binary("mul", "fmul", other)

    def __truediv__(self, other: Value | int | float) -> Value:
        return self._binary("", "fdiv", other)

    def __floordiv__(self, other: Value | int | float) -> Value:
        return self._binary("udiv", "", other)

    def __mod__(self, other: Value | int | float) -> Value:
        return self._binary("urem", "", other)

    def __and__(self, other: Value | int) -> Value:
        return self._binary("and", "", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", "", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary("xor", "", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._binary("shl", "", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._binary("lshr", "", other)

    def sra(self, bits: int) -> Value:
        """Shift right, copying the sign."""
        return self._binary("ashr", "", bits)

    def __radd__(self, other: int | float) -> Value:
        return self._mirrored("add", "fadd", other)

    def __rsub__(self, other: int | float) -> Value:
        return self._mirrored("sub", "fsub", other)

    def __rmul__(self, other: int | float) -> Value:
        return self._mirrored("mul", "fmul", other)

    def __rtruediv__(self, other: int | float) -> Value:
        return self._mirrored("", "fdiv", other)

    def __neg__(self) -> Value:
        if self.type.is_float:
            return self.fn.emit(self.type, f"fneg {self.type} {self.text}")
        return self.like(0) - self

    def _compare(self, int_op: str, float_op: str, other: Value | int | float) -> Value:
        right = self.like(other)
        op = f"fcmp {float_op}" if self.type.is_float else f"icmp {int_op}"
        return self.fn.emit(self.type.of(I1), f"{op} {self.type} {self.text}, {right.text}")

    # Comparisons with a NaN are false, as in Python.
    def __lt__(self, other: Value | int | float) -> Value:
        return self._compare("slt", "olt", other)

    def __le__(self, other: Value | int | float) -> Value:
        return self._compare("sle", "ole", other)

    def __gt__(self, other: Value | int | float) -> Value:
        return self._compare("sgt", "ogt", other)

    def __ge__(self, other: Value | int | float) -> Value:
        return self._compare("sge", "oge", other)

    def eq(self, other: Value | int | float) -> Value:
        return self._compare("eq", "oeq", other)

    def ne(self, other: Value | int | float) -> Value:
        return self._compare("ne", "une", other)

    def choose(self, yes: Value, no: Value | int | float) -> Value:
        """Where this condition holds `yes`, elsewhere `no`."""
        right = yes.like(no)
        text = f"select {self}, {yes}, {right}"
        return self.fn.emit(yes.type, text)

    def _cast(self, op: str, elem: Type) -> Value:
        to = self.type.of(elem)
        return self if to == self.type else self.fn.emit(to, f"{op} {self} to {to}")

    def zext(self, elem: Type) -> Value:
        return self._cast("zext", elem)

    def sext(self, elem: Type) -> Value:
        return self._cast("sext", elem)

    def trunc(self, elem: Type) -> Value:
        return self._cast("trunc", elem)

    def to_float(self, elem: Type = F32) -> Value:
        """A signed integer as the nearest floating-point number."""
        return self._cast("sitofp", elem)

    def fpext(self, elem: Type = F32) -> Value:
        return self._cast("fpext", elem)

    def bits(self, to: Type) -> Value:
        """The same bits as another type of the same size."""
        if to == self.type:
            return self
        return self.fn.emit(to, f"bitcast {self} to {to}")

    def splat(self, lanes: int) -> Value:
        """This scalar in every lane."""
        to = self.type.x(lanes)
        one = self.fn.emit(to, f"insertelement {to} poison, {self}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.fn.emit(to, f"shufflevector {one}, {to} poison, {zeros}")

    def lane(self, index: int) -> Value:
        return self.fn.emit(self.type.scalar, f"extractelement {self}, i64 {index}")

    def shuffle(self, lanes: list[int], other: Value | None = None) -> Value:
        """The lanes named, counted through this vector and then `other`."""
        right = other.text if other is not None else "poison"
        mask = ", ".join(f"i32 {i}" for i in lanes)
        text = f"shufflevector {self}, {self.type} {right}, <{len(lanes)} x i32> <{mask}>"
        return self.fn.emit(self.type.x(len(lanes)), text)

    def halves(self) -> tuple[Value, Value]:
        n = self.type.lanes
        return self.shuffle(list(range(n // 2))), self.shuffle(list(range(n // 2, n)))

    def joined(self, other: Value) -> Value:
        """This vector's lanes, then those of `other`."""
        return self.shuffle(list(range(2 * self.type.lanes)), other)
