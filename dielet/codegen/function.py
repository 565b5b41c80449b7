"""Functions of the vector language: straight-line values, variables, loops, conditions, memory.

Everything that changes lives in a `Var` (a stack slot that LLVM turns into a register), so that
loops and conditions are plain `with` blocks without phi nodes:

    total = k.var(k.const(F32.x(16), 0.0))
    with k.loop(count) as i:
        total.value = total.value + x.load(i * 16, 16)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dielet.codegen.values import I1, I32, I64, PTR, VOID, Type, Value

ATTRIBUTES = 'nounwind "no-builtins"'


class Module:
    """The text of one LLVM module: functions and the declarations they need."""

    def __init__(self, fused: bool = True) -> None:
        self.fused = fused  # whether the processor multiplies and adds in one rounding
        self.declared: dict[str, str] = {}
        self.functions: list[Function] = []

    def function(self, name: str, args: Sequence[Type], result: Type = VOID) -> Function:
        fn = Function(self, name, args, result)
        self.functions.append(fn)
        return fn

    def __str__(self) -> str:
        return "\n".join([*self.declared.values(), *(str(f) for f in self.functions), ""])


class Var:
    """A mutable variable; read and assign `.value`."""

    __slots__ = ("fn", "slot", "type")

    def __init__(self, fn: Function, type_: Type, slot: str) -> None:
        self.fn, self.type, self.slot = fn, type_, slot

    @property
    def value(self) -> Value:
        return self.fn.emit(self.type, f"load {self.type}, ptr {self.slot}")

    @value.setter
    def value(self, new: Value | int | float) -> None:
        if not isinstance(new, Value):
            new = self.fn.const(self.type, new)
        if new.type != self.type:
            raise TypeError(f"variable of type {self.type} assigned {new.type}")
        self.fn.line(f"store {new}, ptr {self.slot}")


class Cells:
    """A table of variables, `acc[row, col]`: a register tile in plain sight."""

    def __init__(self, cells: dict[tuple[int, ...], Var]) -> None:
        self.cells = cells

    def __getitem__(self, at: tuple[int, ...]) -> Value:
        return self.cells[at].value

    def __setitem__(self, at: tuple[int, ...], new: Value | int | float) -> None:
        self.cells[at].value = new

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.cells)


@dataclass(frozen=True)
class Pointer:
    """An address with an element type; indices count elements, whatever is loaded or stored."""

    address: Value
    elem: Type

    @property
    def fn(self) -> Function:
        return self.address.fn

    def at(self, index: Value | int) -> Pointer:
        """`index` elements further on."""
        if isinstance(index, int) and index == 0:
            return self
        offset = index if isinstance(index, Value) else self.fn.const(I64, index)
        text = f"getelementptr {self.elem}, {self.address}, {offset}"
        return Pointer(self.fn.emit(PTR, text), self.elem)

    def cast(self, elem: Type) -> Pointer:
        return Pointer(self.address, elem)

    def load(self, index: Value | int = 0, lanes: int = 0) -> Value:
        """The element at `index`, or the vector of `lanes` that begins there."""
        type_ = self.elem.x(lanes)
        at = self.at(index).address
        align = self.elem.size
        return self.fn.emit(type_, f"load {type_}, {at}, align {align}")

    def store(self, index: Value | int, value: Value) -> None:
        if value.type.scalar != self.elem:
            raise TypeError(f"store of {value.type} through a pointer to {self.elem}")
        at = self.at(index).address
        self.fn.line(f"store {value}, {at}, align {self.elem.size}")

    def __getitem__(self, index: Value | int) -> Value:
        return self.load(index)

    def __setitem__(self, index: Value | int, value: Value) -> None:
        self.store(index, value)

    def prefetch(self, index: Value | int = 0, level: int = 3, write: bool = False) -> None:
        """Ask for the line at `index`, into L1 (level 3) or L2 (2), to be written soon or only
        read. Never faults."""
        at = self.at(index).address
        call = f"@llvm.prefetch.p0({at}, i32 {int(write)}, i32 {level}, i32 1)"
        self.fn.declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        self.fn.line(f"call void {call}")

    def acquire(self, index: Value | int = 0) -> Value:
        """Atomic load; what was written before the matching `release` is visible after it."""
        at, align = self.at(index).address, self.elem.size
        return self.fn.emit(self.elem, f"load atomic {self.elem}, {at} acquire, align {align}")

    def ordered(self, index: Value | int = 0) -> Value:
        """Atomic load that also stays behind earlier exchanges, whatever their address."""
        at, align = self.at(index).address, self.elem.size
        return self.fn.emit(self.elem, f"load atomic {self.elem}, {at} seq_cst, align {align}")

    def release(self, index: Value | int, value: Value) -> None:
        """Atomic store that publishes everything written before it."""
        at, align = self.at(index).address, self.elem.size
        self.fn.line(f"store atomic {value}, {at} release, align {align}")

    def exchange(self, index: Value | int, value: Value) -> Value:
        """Store `value`, give what was there: one step for all threads, in one total order."""
        at, align = self.at(index).address, self.elem.size
        text = f"atomicrmw xchg {at}, {value} seq_cst, align {align}"
        return self.fn.emit(self.elem, text)

    def fetch_add(self, index: Value | int, value: Value) -> Value:
        at, align = self.at(index).address, self.elem.size
        text = f"atomicrmw add {at}, {value} seq_cst, align {align}"
        return self.fn.emit(self.elem, text)


class Function:
    """One function under construction; printing it gives its LLVM IR."""

    def __init__(self, module: Module, name: str, args: Sequence[Type], result: Type) -> None:
        self.module, self.name, self.result = module, name, result
        self.args = [Value(self, t, f"%arg{i}") for i, t in enumerate(args)]
        self.slots: list[str] = []
        self.body: list[str] = []
        self.count = 0

    def __str__(self) -> str:
        args = ", ".join(str(a) for a in self.args)
        head = f"define {self.result} @{self.name}({args}) {ATTRIBUTES} {{\nentry:"
        end = "  ret void\n}" if self.result == VOID else "}"
        return "\n".join([head, *self.slots, *self.body, end])

    # -- printing ----------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.body.append("  " + text)

    def emit(self, type_: Type, text: str) -> Value:
        name = f"%v{self.count}"
        self.count += 1
        self.body.append(f"  {name} = {text}")
        return Value(self, type_, name)

    def label(self, name: str) -> None:
        self.body.append(f"{name}:")

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def declare(self, name: str, result: Type, args: Sequence[Type]) -> None:
        if name not in self.module.declared:
            types = ", ".join(map(str, args))
            self.module.declared[name] = f"declare {result} @{name}({types})"

    def call(self, name: str, result: Type, *args: Value) -> Value:
        """Call an intrinsic or a function of this module by name."""
        if not any(f.name == name for f in self.module.functions):
            self.declare(name, result, [a.type for a in args])
        text = f"call {result} @{name}({', '.join(map(str, args))})"
        if result == VOID:
            self.line(text)
            return Value(self, VOID, "")
        return self.emit(result, text)

    def call_pointer(self, target: Value, result: Type, *args: Value) -> Value:
        text = f"call {result} {target.text}({', '.join(map(str, args))})"
        if result == VOID:
            self.line(text)
            return Value(self, VOID, "")
        return self.emit(result, text)

    def ret(self, value: Value) -> None:
        """Return `value`; the last line of a function that gives one."""
        self.line(f"ret {value}")

    # -- values and memory -------------------------------------------------------------------

    def const(self, type_: Type, number: float) -> Value:
        return Value(self, type_, type_.literal(number))

    def i64(self, number: int) -> Value:
        return self.const(I64, number)

    def vector(self, elem: Type, numbers: Sequence[float]) -> Value:
        """A constant vector, lane by lane."""
        lanes = ", ".join(f"{elem} {elem.literal(n)}" for n in numbers)
        return Value(self, elem.x(len(numbers)), f"<{lanes}>")

    def scratch(self, elem: Type, count: int) -> Pointer:
        """`count` elements of stack, 64-byte aligned, for as long as the function runs."""
        name = f"%{self.fresh('scratch')}"
        self.slots.append(f"  {name} = alloca [{count} x {elem}], align 64")
        return Pointer(Value(self, PTR, name), elem)

    def var(self, initial: Value | Type) -> Var:
        """A variable, set to `initial` here (or left unset, given a type)."""
        type_ = initial.type if isinstance(initial, Value) else initial
        slot = f"%{self.fresh('var')}"
        self.slots.append(f"  {slot} = alloca {type_}")
        var = Var(self, type_, slot)
        if isinstance(initial, Value):
            var.value = initial
        return var

    def cells(self, *sizes: int, of: Type) -> Cells:
        """A table of unset variables of one type."""
        places: list[tuple[int, ...]] = [()]
        for size in sizes:
            places = [(*p, i) for p in places for i in range(size)]
        return Cells({p: self.var(of) for p in places})

    def either(self, condition: Value, yes: Pointer, no: Pointer) -> Pointer:
        """The pointer `yes` if the condition holds, else `no`."""
        return Pointer(condition.choose(yes.address, no.address), yes.elem)

    def pointer(self, address: Value, elem: Type) -> Pointer:
        if address.type == I64:
            address = self.emit(PTR, f"inttoptr {address} to ptr")
        return Pointer(address, elem)

    # -- control -----------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Value | int, stop: Value | int | None = None, step: Value | int = 1
    ) -> Iterator[Value]:
        """`for i in range(start, stop, step)`, the step positive."""
        if stop is None:
            start, stop = 0, start
        first = start if isinstance(start, Value) else self.i64(start)
        last = stop if isinstance(stop, Value) else self.i64(stop)
        body, done = self.fresh("loop"), self.fresh("done")
        index = self.var(first)
        self._branch(first < last, body, done)
        self.label(body)
        i = index.value
        yield i
        following = i + step
        index.value = following
        self._branch(following < last, body, done)
        self.label(done)

    @contextmanager
    def repeat(self) -> Iterator[Repeat]:
        """Turn for ever; leave with `repeat.until(condition)`."""
        again = Repeat(self, self.fresh("repeat"), self.fresh("done"))
        self.line(f"br label %{again.body}")
        self.label(again.body)
        yield again
        self.line(f"br label %{again.done}.turn")
        self.label(f"{again.done}.turn")
        self.line(f"br label %{again.body}")
        self.label(again.done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        then, done = self.fresh("when"), self.fresh("done")
        self._branch(condition, then, done)
        self.label(then)
        yield
        self.line(f"br label %{done}")
        self.label(done)

    def _branch(self, condition: Value, yes: str, no: str) -> None:
        assert condition.type == I1
        self.line(f"br {condition}, label %{yes}, label %{no}")

    # -- arithmetic that has no operator -----------------------------------------------------

    def fma(self, a: Value, b: Value | float, c: Value | float) -> Value:
        """a * b + c, rounded once (twice on a processor without the instruction)."""
        b, c = a.like(b), a.like(c)
        if not self.module.fused:
            return a * b + c
        return self.call(f"llvm.fma.{a.type.mangled}", a.type, a, b, c)

    def unary(self, name: str, a: Value) -> Value:
        """An intrinsic of one argument: `sqrt`, `fabs`, `rint`, ..."""
        return self.call(f"llvm.{name}.{a.type.mangled}", a.type, a)

    def fmaximum(self, a: Value, b: Value) -> Value:
        """The larger; a NaN in either gives NaN."""
        return self.call(f"llvm.maximum.{a.type.mangled}", a.type, a, b)

    def larger(self, a: Value, b: Value | float) -> Value:
        """a if a > b else b: one instruction; b where a is a NaN."""
        return (a > b).choose(a, b)

    def smaller(self, a: Value, b: Value | float) -> Value:
        """a if a < b else b; b where a is a NaN."""
        return (a < b).choose(a, b)

    def minimum(self, a: Value, b: Value | int) -> Value:
        return (a < b).choose(a, b)

    def sum(self, a: Value) -> Value:
        """The sum of all lanes, halving the vector each time: one order on every target."""
        while a.type.lanes > 1:
            low, high = a.halves()
            a = low + high
        return a.lane(0)

    def max(self, a: Value) -> Value:
        """The largest lane (no NaN among them)."""
        while a.type.lanes > 1:
            low, high = a.halves()
            a = self.larger(low, high)
        return a.lane(0)


class Repeat:
    """The inside of `Function.repeat`: leave the loop when a condition holds."""

    def __init__(self, fn: Function, body: str, done: str) -> None:
        self.fn, self.body, self.done = fn, body, done

    def until(self, condition: Value) -> None:
        go_on = self.fn.fresh("go")
        self.fn._branch(condition, self.done, go_on)
        self.fn.label(go_on)
