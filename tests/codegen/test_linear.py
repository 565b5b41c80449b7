"""linear and embed against unpacked float arithmetic; one row's bits whatever stands beside it."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from dielet.codegen import KernelKey, Target
from dielet.formats.packed import WeightFormat, pack, unpack
from dielet.program.commands.linear import weight_attrs

from .harness import HOST, SPLITS, call, from_bf16, padded, poisoned, quantised, relative, to_bf16

FORMATS = ["bf16", "int8g32", "int8g64", "int8g128m", "int8g32m", "int4g32", "int4g32m", "int4g128"]
FORMATS += ["int4g32z", "int4g128z"]
SHAPES = [(64, 128), (96, 2048), (40, 256)]


def weights(name: str, N: int, K: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A packed weight over the whole range of its codes, and its values."""
    rng, fmt = np.random.default_rng(seed), WeightFormat.parse(name)
    if fmt.kind == "bf16":
        packed = pack(fmt, rng.standard_normal((N, K)).astype(np.float32))
    else:
        codes = rng.integers(0, fmt.largest_code + 1, (N, K)).astype(np.uint8)
        codes[0], codes[1] = 0, fmt.largest_code
        scale = rng.uniform(0.5, 1.5, (N, K // fmt.group)).astype(np.float16)
        minimum = -scale * np.float16(fmt.zero_point) if fmt.minimum else None
        if fmt.zeros:
            minimum = -rng.integers(0, 17, scale.shape).astype(np.float16)
        packed = pack(fmt, codes, scale, minimum)
    return packed, unpack(fmt, packed, N, K).astype(np.float64)


def linear_key(name: str, K: int, T: int, residual: bool = False, bias: bool = False) -> KernelKey:
    fmt = WeightFormat.parse(name)
    return KernelKey.of(
        "linear",
        K=K,
        **weight_attrs(fmt),
        T=T,
        residual=residual,
        bias=bias,
    )


def activations(name: str, x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray, int]:
    """(operands, the values they stand for, groups per row)"""
    fmt = WeightFormat.parse(name)
    if fmt.kind == "bf16":
        bits = to_bf16(x)
        return [bits], from_bf16(bits).astype(np.float64), 0
    q, scale, sums = quantised(x, fmt.group)
    groups = q.reshape(len(x), -1, fmt.group) * scale.astype(np.float64)[..., None]
    return [q, scale, sums], groups.reshape(x.shape), scale.shape[1]


def apply(name, packed, x, N, T, valid, *, residual=None, bias=None, shares=SPLITS[0], **options):
    """y [padded rows, panels * 32] of one kernel call; `residual` is updated in place."""
    operands, _, groups = activations(name, x)
    panels = len(packed)
    if residual is None:
        y, extra = poisoned((padded(T), panels * 32)), []
    else:
        y, extra = residual, [residual]
    extra += [bias] if bias is not None else []
    key = linear_key(name, x.shape[1], T, residual is not None, bias is not None)
    params = [panels, x.shape[1], groups, y.shape[1], y.shape[1]]
    call(key, [*operands, packed, *extra, y], params, valid=valid, shares=shares, **options)
    return y


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("N, K", SHAPES)
@pytest.mark.parametrize("T", [1, 16, 48])
def test_linear_agrees_with_unpacked_weights(name: str, N: int, K: int, T: int) -> None:
    packed, w = weights(name, N, K)
    x = np.random.default_rng(1).standard_normal((padded(T), K)).astype(np.float32)
    want = activations(name, x)[1] @ w.T
    y = apply(name, packed, x, N, T, T)
    assert relative(y[:T, :N], want[:T]) < 3e-6


@pytest.mark.parametrize("name", ["bf16", "int8g64", "int4g32m"])
def test_residual_and_bias(name: str) -> None:
    N, K, T = 64, 256, 16
    packed, w = weights(name, N, K)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((T, K)).astype(np.float32)
    bias, start = rng.standard_normal(N), rng.standard_normal((T, N))
    want = activations(name, x)[1] @ w.T + bias + start
    residual = start.astype(np.float32)
    y = apply(name, packed, x, N, T, T, residual=residual, bias=bias.astype(np.float32))
    assert relative(y, want) < 3e-6


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_in_every_chunk_and_share(name: str) -> None:
    N, K, T = 96, 1536, 48  # several blocks of K
    packed, _ = weights(name, N, K)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((T, K)).astype(np.float32)
    start = rng.standard_normal((T, N)).astype(np.float32)

    alone = np.concatenate(
        [
            apply(name, packed, np.tile(x[t], (16, 1)), N, 1, 1, residual=start[t : t + 1].copy())
            for t in range(T)
        ]
    )
    for valid in (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 23, 24, 25, 47, 48):
        chunk = apply(
            name, packed, x, N, T, valid, residual=start.copy(), shares=SPLITS[valid % len(SPLITS)]
        )
        np.testing.assert_array_equal(chunk[:valid].view(np.int32), alone[:valid].view(np.int32))
    for rows in (2, 4, 8, 16, 32):  # a batch, or another chunk
        block, part = x[: padded(rows)], start[: padded(rows)].copy()
        batch = apply(name, packed, block, N, rows, rows, residual=part, shares=SPLITS[1])
        np.testing.assert_array_equal(batch[:rows].view(np.int32), alone[:rows].view(np.int32))
    for shares in SPLITS:
        again = apply(name, packed, x[:16], N, 1, 1, residual=start[:1].copy(), shares=shares)
        np.testing.assert_array_equal(again.view(np.int32), alone[:1].view(np.int32))


def test_the_extremes_of_the_integer_dot() -> None:
    check_extremes(HOST)


def check_extremes(target: Target) -> None:
    """Largest codes against largest activations, both signs: nothing saturates."""
    K, N = 128, 32
    fmt = WeightFormat("int8", 64)
    codes = np.where(np.arange(N)[:, None] % 2, 255, 0) * np.ones((1, K))
    packed = pack(fmt, codes.astype(np.uint8), np.ones((N, 2), np.float16))
    x = np.where(np.arange(16)[:, None] % 2, 127.0, -127.0) * np.ones((1, K))
    y = apply("int8g64", packed, x.astype(np.float32), N, 16, 16, target=target)
    np.testing.assert_array_equal(y, x @ unpack(fmt, packed, N, K).T)


@pytest.mark.parametrize("name", ["bf16", "int8g32", "int4g32m"])
@pytest.mark.parametrize("T, valid", [(2, 1), (8, 5), (16, 1), (16, 9), (32, 17)])
def test_rows_beyond_valid_are_not_touched(name: str, T: int, valid: int) -> None:
    """Neither written nor read: the operands end with the last row, on a page of their own."""
    packed, w = weights(name, 64, 128)
    x = np.random.default_rng(5).standard_normal((padded(T), 128)).astype(np.float32)
    operands, values, groups = activations(name, x)
    fenced = [Fenced(a[:valid]) for a in operands]
    y = Fenced(np.ones((valid, 64), np.float32))
    key = linear_key(name, 128, T, residual=True)
    arrays = [*(f.array for f in fenced), packed, y.array, y.array]
    call(key, arrays, [2, 128, groups, 64, 64], valid=valid, shares=SPLITS[1])
    assert relative(y.array, 1 + values[:valid] @ w.T) < 3e-6


class Fenced:
    """A copy of an array that ends where a page ends that must not be touched."""

    def __init__(self, content: np.ndarray) -> None:
        size = -(-content.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.map = mmap.mmap(-1, size + mmap.PAGESIZE)
        whole = np.frombuffer(self.map, np.uint8)
        fence = ctypes.c_void_p(whole.ctypes.data + size)
        assert LIBC.mprotect(fence, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        raw = whole[size - content.nbytes : size]
        self.array = raw.view(content.dtype).reshape(content.shape)
        self.array[:] = content


LIBC = ctypes.CDLL(None)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["bf16", "int8g32", "int4g32"])
def test_a_bad_activation_does_not_vanish(name: str, bad: float) -> None:
    packed, _ = weights(name, 32, 64)
    x = np.ones((16, 64), np.float32)
    x[0, 5] = bad
    fmt = WeightFormat.parse(name)
    if fmt.kind == "bf16":
        operands, groups = [to_bf16(x)], 0
    else:
        q, scale, sums = poisoned((16, 64), np.int8), poisoned((16, 2)), poisoned((16, 2), np.int32)
        key = KernelKey.of("quantize", group=32)
        call(key, [x, q, scale, sums], [64, 64, 64, 2, 0, 16], valid=16)
        operands, groups = [q, scale, sums], 2
    y = poisoned((16, 32))
    call(linear_key(name, 64, 16), [*operands, packed, y], [1, 64, groups, 32, 32], valid=16)
    assert not np.isfinite(y[0]).any()
    assert np.isfinite(y[1:]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_embed_gives_the_exact_rows(name: str) -> None:
    check_embed(name, HOST)


def check_embed(name: str, target: Target) -> None:
    N, K = 96, 256
    packed, w = weights(name, N, K)
    ids = np.array([0, 1, 31, 32, 95, 40, 40], np.int32)
    y = poisoned((16, K))
    fmt = WeightFormat.parse(name)
    key = KernelKey.of("embed", K=K, **weight_attrs(fmt))
    call(key, [packed, ids, y], [K], valid=len(ids), shares=SPLITS[2], target=target)
    np.testing.assert_array_equal(y[: len(ids)], w[ids].astype(np.float32))
