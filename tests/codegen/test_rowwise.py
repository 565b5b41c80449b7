"""rmsnorm, quantize, convert, silu_mul, select against numpy in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from dielet.codegen import KernelKey, Target

from .harness import HOST, SPLITS, call, from_bf16, poisoned, quantised, relative, to_bf16


def outputs(out: str, rows: int, columns: int, group: int) -> list[np.ndarray]:
    if out != "int8":
        return [poisoned((rows, columns), np.float32 if out == "f32" else np.uint16)]
    groups = columns // group
    return [
        poisoned((rows, columns), np.int8),
        poisoned((rows, groups)),
        poisoned((rows, groups), np.int32),
    ]


def check(out: str, results: list[np.ndarray], want: np.ndarray, group: int) -> None:
    rows = len(want)
    if out == "f32":
        assert relative(results[0][:rows], want) < 1e-6
    elif out == "bf16":
        assert relative(from_bf16(results[0][:rows]), want) < 4.1e-3
    else:
        q, scale, sums = (r[:rows] for r in results)
        groups = q.reshape(rows, -1, group).astype(np.float64)
        np.testing.assert_array_equal(sums, groups.sum(-1))
        assert np.abs(q).max() == 127
        step = np.repeat(scale.astype(np.float64), group, axis=1)
        assert (np.abs(q * step - want) <= 0.5001 * step).all()


@pytest.mark.parametrize("K, group", [(64, 32), (2048, 64), (576, 32), (384, 128)])
@pytest.mark.parametrize("out", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("shares", SPLITS)
def test_rmsnorm(K: int, group: int, out: str, shares) -> None:
    check_rmsnorm(K, group, out, shares)


def check_rmsnorm(K: int, group: int, out: str, shares=SPLITS[1], target: Target = HOST) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, K + 32)).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, K).astype(np.float32)
    row0, valid = 16, 11
    results = outputs(out, 16, K, group)
    key = KernelKey.of("rmsnorm", K=K, eps=1e-5, out=out, group=group)
    call(
        key,
        [x, weight, *results],
        [K + 32, K, row0, 16],
        valid=row0 + valid,
        shares=shares,
        target=target,
    )
    rows = x[:valid, :K].astype(np.float64)
    want = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5) * weight
    check(out, results, want, group)


@pytest.mark.parametrize("shares", SPLITS)
def test_quantize_is_exact(shares) -> None:
    check_quantize(HOST, shares)


def check_quantize(target: Target, shares=SPLITS[1]) -> None:
    K, group = 256, 64
    x = np.random.default_rng(1).standard_normal((16, K)).astype(np.float32)
    x[2, :64], x[3] = 0, np.float32(1e-30)
    results = outputs("int8", 16, K, group)
    key = KernelKey.of("quantize", group=group)
    call(key, [x, *results], [K, K, K, 4, 32, 16], valid=41, shares=shares, target=target)
    for got, want in zip(results, quantised(x, group), strict=True):
        np.testing.assert_array_equal(got[:9], want[:9])
    assert results[1][9:].view(np.int32).max() == -1  # rows beyond valid are not touched


@pytest.mark.parametrize("shares", SPLITS)
def test_convert_is_exact(shares) -> None:
    x = np.random.default_rng(2).standard_normal((16, 96)).astype(np.float32)
    x[0, :4] = [np.inf, -np.inf, 3.3e38, 0.0]
    y = poisoned((16, 96), np.uint16)
    key = KernelKey.of("convert")
    call(key, [x, y], [96, 96, 96, 16, 16], valid=23, shares=shares)
    np.testing.assert_array_equal(y[:7], to_bf16(x)[:7])
    x[0, 0] = np.nan
    call(key, [x, y], [96, 96, 96, 0, 16], valid=7)
    assert np.isnan(from_bf16(y[0, :1]))


@pytest.mark.parametrize("row0, valid, expected", [(16, 10, 0), (16, 90, 8), (0, 3, 3)])
def test_rows_that_a_command_owns(row0: int, valid: int, expected: int) -> None:
    """A command owns rows [row0, row0 + 8) of the chunk; it works on those that are real."""
    x, y = np.ones((16, 32), np.float32), poisoned((16, 32), np.uint16)
    call(KernelKey.of("convert"), [x, y], [32, 32, 32, row0, 8], valid=valid)
    assert ((y == 0x3F80).all(1).sum(), (y == 0xFFFF).all(1).sum()) == (expected, 16 - expected)


@pytest.mark.parametrize("out", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("shares", SPLITS)
def test_silu_mul(out: str, shares) -> None:
    check_silu_mul(out, shares)


def check_silu_mul(out: str, shares=SPLITS[1], target: Target = HOST) -> None:
    columns, group, valid = 192, 32, 13
    rng = np.random.default_rng(3)
    both = rng.standard_normal((16, 2 * columns)).astype(np.float32) * 4
    both[0, :6] = [-200, -90, -88, 88, 200, 0]
    gate, up = both[:, :columns], both[:, columns:]
    results = outputs(out, 16, columns, group)
    key = KernelKey.of("silu_mul", out=out, group=group)
    params = [columns, 2 * columns, 2 * columns, columns, columns // group]
    call(key, [gate, up, *results], params, valid=valid, shares=shares, target=target)
    g = gate[:valid].astype(np.float64)
    check(out, results, g / (1 + np.exp(-g)) * up[:valid], group)


@pytest.mark.parametrize("columns", [1, 5, 16, 33, 1000])
def test_select(columns: int) -> None:
    check_select(columns, HOST)


def check_select(columns: int, target: Target) -> None:
    rng = np.random.default_rng(columns)
    for _ in range(20):
        logits = rng.integers(-9, 9, columns).astype(np.float32)  # ties are common
        out = poisoned((4,), np.int32)
        call(KernelKey.of("select"), [logits, out], [columns, columns, 4], target=target)
        assert out[:1].view(np.float32)[0] == logits.max()
        assert out[1:].tolist() == [int(logits.argmax()), 0, 0]
    logits[columns // 2] = np.nan
    logits[0] = np.inf
    call(KernelKey.of("select"), [logits, out], [columns, columns, 4], target=target)
    assert out[2] == len({0, columns // 2})
