"""The vector language: what operators, variables, loops and conditions mean, what is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dielet.codegen import jit
from dielet.codegen.function import Function, Module, Pointer
from dielet.codegen.math import EXP2_COARSE, exp2, nearest, quantised
from dielet.codegen.values import F32, I8, I16, I32, I64, PTR, Type
from dielet.errors import InternalError

from .harness import HOST, from_bf16, poisoned, to_bf16


def build(write: Callable[[Function, Pointer, Pointer], None], x: Type, y: Type):
    """A function of two arrays, `write(k, x, y)`, run over the arrays that it is given."""
    module = Module(HOST.fused)
    k = module.function("f", [PTR, PTR])
    write(k, Pointer(k.args[0], x), Pointer(k.args[1], y))
    loaded = jit.Linked([jit.emit_object(str(module), HOST)], ["f"], HOST)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(loaded.addresses["f"])

    def run(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        function(source.ctypes.data, target.ctypes.data)
        assert loaded
        return target

    return run


def on_vectors(operation, x: Type = F32, y: Type = F32):
    """Apply an operation of one vector to 16 numbers."""

    def write(k: Function, source: Pointer, target: Pointer) -> None:
        target.store(0, operation(k, source.load(0, 16)))

    run = build(write, x, y)
    dtype = {"float": np.float32, "i32": np.int32, "i16": np.uint16, "i8": np.int8}[y.elem]
    return lambda numbers: run(numbers, poisoned((16,), dtype))


def test_operators() -> None:
    x = np.linspace(-3, 3, 16).astype(np.float32)
    run = on_vectors(lambda k, v: 1.0 - (v * 2.0 + 0.5) / v.like(4.0) * -v)
    np.testing.assert_array_equal(run(x), 1 - (x * 2 + np.float32(0.5)) / 4 * -x)
    n = np.arange(-8, 8, dtype=np.int32)
    run = on_vectors(lambda k, v: ((v << 3) ^ (v & 5)) + (v.sra(1) - (v >> 28)), I32, I32)
    want = ((n << 3) ^ (n & 5)) + ((n >> 1) - (n.view(np.uint32) >> 28).astype(np.int32))
    np.testing.assert_array_equal(run(n), want)


def test_comparisons_and_choices_treat_nan_as_python_does() -> None:
    x = np.array([1, np.nan, -1, np.inf] * 4, np.float32)
    for operation, want in [
        (lambda v: v < 1.0, x < 1),
        (lambda v: v >= 1.0, x >= 1),
        (lambda v: v.ne(v), x != x),
        (lambda v: v.eq(1.0), x == 1),
    ]:
        got = on_vectors(lambda k, v, f=operation: f(v).choose(v.like(2.0), 3.0))(x)
        np.testing.assert_array_equal(got, np.where(want, 2, 3))


def test_shuffles_and_reductions() -> None:
    x = np.arange(16, dtype=np.float32)

    def write(k: Function, source: Pointer, target: Pointer) -> None:
        v = source.load(0, 16)
        low, high = v.halves()
        target.store(0, high.joined(low))
        target.store(16, k.sum(v))
        target.store(17, k.max(v))
        target.store(18, v.lane(5))

    y = build(write, F32, F32)(x, poisoned((19,)))
    np.testing.assert_array_equal(y[:16], np.roll(x, 8))
    assert y[16:].tolist() == [120, 15, 5]


def test_loops_conditions_and_variables() -> None:
    def write(k: Function, source: Pointer, target: Pointer) -> None:
        count = source[0]
        total = k.var(k.i64(0))
        with k.loop(3, count, 2) as i, k.loop(i) as j:
            total.value = total.value + j
        target[0] = total.value
        steps = k.var(k.i64(0))
        with k.repeat() as again:
            again.until(steps.value * steps.value >= count)
            steps.value = steps.value + 1
        target[1] = steps.value
        target[2] = k.i64(0)
        with k.when(count > 50):
            target[2] = k.i64(1)

    run = build(write, I64, I64)
    for n in (0, 3, 4, 17, 100):
        got = run(np.array([n], np.int64), poisoned((3,), np.int64)).tolist()
        total = sum(j for i in range(3, n, 2) for j in range(i))
        assert got == [total, int(np.ceil(np.sqrt(n))), int(n > 50)]


@pytest.mark.parametrize("coefficients, bound", [((), 3e-8), (EXP2_COARSE, 4e-6)])
def test_exp2(coefficients, bound) -> None:
    run = on_vectors(lambda k, v: exp2(k, v, coefficients) if coefficients else exp2(k, v))
    x = np.linspace(-126, 127, 160016, dtype=np.float32).reshape(-1, 16)
    got = np.stack([run(row) for row in np.ascontiguousarray(x)])
    error = np.abs(got / np.exp2(x.astype(np.float64)) - 1).max()
    assert error < bound + 1.2e-7  # and the rounding of float32
    special = [
        0,
        -0.0,
        -np.inf,
        np.inf,
        np.nan,
        -127,
        -1e30,
        1e30,
        1,
        -1,
        2,
        10,
        -126,
        127,
        64,
        -64,
    ]
    got = run(np.array(special, np.float32))
    assert got[:2].tolist() == [1, 1] and got[2] == 0 and np.isnan(got[4])
    assert got[5:7].tolist() == [0, 0] and got[[3, 7, 13]].tolist() == [2.0**127] * 3
    assert got[8:13].tolist() == [2, 0.5, 4, 1024, 2.0**-126]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_subnormal=False), min_size=16, max_size=16))
def test_bf16_rounds_to_nearest_even(numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    got = TO_BF16(x)
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(got[finite], to_bf16(x)[finite])
    assert np.isnan(from_bf16(got)[~finite]).all()


TO_BF16 = on_vectors(lambda k, v: HOST.to_bf16(k, v), F32, I16)
NEAREST = on_vectors(nearest, F32, I32)


def test_nearest_rounds_ties_to_even() -> None:
    x = np.array([0.5, 1.5, -0.5, -1.5, 2.4, -2.6, 126.5, -127, 0, 3, 1e6, -1e6, 7.5, 8.5, 99, 1])
    np.testing.assert_array_equal(NEAREST(x.astype(np.float32)), np.rint(x))


def test_a_nan_or_infinity_shows_in_the_scale_of_its_group() -> None:
    def write(k: Function, source: Pointer, target: Pointer) -> None:
        quants, scale, _ = quantised(k, [source.load(0, 16), source.load(16, 16)])
        target.store(0, scale)
        for i, q in enumerate(quants):
            target.cast(I8).store(4 + 16 * i, q)

    run = build(write, F32, F32)
    for bad in (np.nan, np.inf, -np.inf):
        x = np.ones(32, np.float32)
        x[20] = bad
        assert not np.isfinite(run(x, np.zeros(9, np.float32))[0])
    assert run(np.zeros(32, np.float32), poisoned((9,))).tolist() == [0] * 9


def test_what_does_not_fit_is_refused() -> None:
    k = Module().function("f", [I64, F32])
    a, b = k.args
    for wrong in (
        lambda: a + b,
        lambda: a + 0.5,
        lambda: a / a,
        lambda: b // b,
        lambda: k.var(a).__setattr__("value", b),
        lambda: Pointer(a, I32).store(0, b),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_invalid_ir_is_a_bug_of_ours() -> None:
    with pytest.raises(InternalError, match="not valid"):
        jit.emit_object("define void @f() { nonsense }", HOST)
