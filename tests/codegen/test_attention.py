"""rotary, kv_append and attention against numpy; the cache beyond the tokens is NaN throughout."""

from __future__ import annotations

import numpy as np
import pytest

from dielet.codegen import KernelKey, Target

from .harness import HOST, SPLITS, call, from_bf16, padded, poisoned, relative

S = 512  # positions of the cache


def tables(D: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(S)[:, None] / 10000.0 ** (np.arange(D // 2) * 2 / D)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turned(x: np.ndarray, positions: np.ndarray, weight: np.ndarray | None, eps: float):
    """x [T, heads, D] normalised and rotated, in double precision."""
    x = x.astype(np.float64)
    if weight is not None:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    cos, sin = (a[positions][:, None].astype(np.float64) for a in tables(x.shape[-1]))
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


@pytest.mark.parametrize("D", [16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("shares", SPLITS)
def test_rotary(D: int, norm: bool, shares) -> None:
    check_rotary(D, norm, shares)


def check_rotary(D: int, norm: bool, shares=SPLITS[1], target: Target = HOST) -> None:
    heads, T, past, valid = 3, 16, 37, 13
    rng = np.random.default_rng(0)
    x = rng.standard_normal((T, heads * D)).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, D).astype(np.float32)
    y = poisoned((T, heads * D), np.uint16)
    key = KernelKey.of("rotary", D=D, norm=norm, eps=1e-6, scale=0.125)
    operands = [x, *([weight] if norm else []), *tables(D), y]
    params, binding = [heads, heads * D, heads * D], {"past": past, "valid": valid}
    call(key, operands, params, **binding, shares=shares, target=target)
    want = turned(
        x.reshape(T, heads, D)[:valid], past + np.arange(valid), weight if norm else None, 1e-6
    )
    assert relative(from_bf16(y[:valid]), want.reshape(valid, -1) * 0.125) < 4.1e-3


class Cache:
    """K and V of some heads, every unwritten byte NaN (in int8, every scale)."""

    def __init__(
        self, heads: int, D: int, norm: bool = False, target: Target = HOST, kv: str = "bf16"
    ) -> None:
        self.heads, self.D, self.target = heads, D, target
        self.static = {"kv": kv} if kv != "bf16" else {}
        if kv == "int8":
            self.k, self.v = (poisoned((heads, S // 32, 32 * D + 64), np.uint8) for _ in range(2))
        else:
            self.k = poisoned((heads, S // 32, D // 2, 32, 2), np.uint16)
            self.v = poisoned((heads, S // 2, D, 2), np.uint16)
        self.weight = np.random.default_rng(9).uniform(0.5, 1.5, D).astype(np.float32)
        self.norm = norm

    def append(self, past: int, k: np.ndarray, v: np.ndarray, shares=SPLITS[0]) -> None:
        valid, D = len(k), self.D
        k, v = (np.pad(a, ((0, padded(valid) - valid), (0, 0))) for a in (k, v))
        key = KernelKey.of("kv_append", D=D, norm=self.norm, eps=1e-6, **self.static)
        operands = [k, v, *([self.weight] if self.norm else []), *tables(D), self.k, self.v]
        params = [self.heads, self.heads * D, self.heads * D, self.k[0].nbytes]
        binding = {"past": past, "valid": valid}
        call(key, operands, params, **binding, shares=shares, target=self.target)

    def contents(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """K, V as float32 [heads, count, D]."""
        if self.static:
            return self._turned_back(count), self._int8(self.v, 8, 0)[:, :count]
        k = from_bf16(self.k).transpose(0, 1, 3, 2, 4).reshape(self.heads, S, self.D)
        v = from_bf16(self.v).transpose(0, 1, 3, 2).reshape(self.heads, S, self.D)
        return k[:, :count], v[:, :count]

    def _turned_back(self, count: int) -> np.ndarray:
        block = self.D & -self.D
        parts = self._int8(self.k, self.D // 4, 128)[:, :count].reshape(
            self.heads, count, -1, block
        )
        return (parts @ hadamard(block) / block).reshape(self.heads, count, self.D)

    def _int8(self, cache: np.ndarray, runs: int, zero: int) -> np.ndarray:
        """[heads, S, D] of panels [runs][D or 32][4]: codes have four positions or elements."""
        codes = cache[:, :, : 32 * self.D].reshape(self.heads, S // 32, runs, -1, 4)
        by_position = (0, 1, 3, 2, 4) if zero else (0, 1, 2, 4, 3)
        codes = (codes.transpose(by_position) ^ zero).copy().view(np.int8)
        scales = from_bf16(cache[:, :, 32 * self.D :].copy().view(np.uint16))
        return codes.reshape(self.heads, S, self.D) * scales.reshape(self.heads, S, 1)


def hadamard(n: int) -> np.ndarray:
    h = np.ones((1, 1), np.float32)
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


@pytest.mark.parametrize("D", [16, 64, 80, 128])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_kv_append_in_any_steps(D: int, norm: bool, kv: str) -> None:
    check_kv_append(D, norm, kv)


def check_kv_append(D: int, norm: bool, kv: str, target: Target = HOST) -> None:
    heads = 3
    rng = np.random.default_rng(1)
    k, v = (rng.standard_normal((100, heads * D)).astype(np.float32) for _ in range(2))
    cache, past = Cache(heads, D, norm, target, kv), 0
    for n, shares in zip([1, 2, 1, 33, 16, 31, 16], SPLITS * 2, strict=False):
        cache.append(past, k[past : past + n], v[past : past + n], shares)
        past += n
        # Half a pair of values never holds what was there before.
        if past % 2 and kv == "bf16":
            assert (cache.v[:, past // 2, :, 1] == 0).all()
    got_k, got_v = cache.contents(100)
    weight = cache.weight if norm else None
    want_k = turned(k.reshape(100, heads, D), np.arange(100), weight, 1e-6).transpose(1, 0, 2)
    # Turned back, a key's error is a sum of many.
    assert relative(got_k, want_k) < (4.1e-3 if kv == "bf16" else 1.5e-2)
    assert relative(got_v, v.reshape(100, heads, D).transpose(1, 0, 2)) < 4.1e-3
    untouched = cache.v[:, 50:] if kv == "bf16" else cache.v[:, 4:]
    assert (untouched.view(np.int8) == -1).all()


@pytest.mark.parametrize("D", [64, 96])
def test_a_channel_beyond_all_others_does_not_drown_them(D: int) -> None:
    """Keys are turned before they are rounded; as they are, each of the small ones would be 0."""
    cache = Cache(1, D, kv="int8")
    k, v = np.random.default_rng(6).standard_normal((2, 1, D)).astype(np.float32)
    k[0, 5] = 300
    cache.append(0, k, v)
    small = np.arange(D) != 5
    got = cache.contents(1)[0][0, 0]
    assert np.abs(got - k[0])[small].max() < 0.5 < 300 / 127 / 2


@pytest.mark.parametrize("size", [1e-35, 1e-20, 1e30])
def test_int8_takes_numbers_of_any_size(size: float) -> None:
    cache = Cache(1, 32, kv="int8")
    k, v = np.random.default_rng(6).standard_normal((2, 5, 32)).astype(np.float32)
    v[2] = 0
    cache.append(0, k, v * np.float32(size))
    got = cache.contents(5)[1][0]
    assert not got[2].any()
    assert np.abs(got / size - v).max() < 2e-2 if size > 1e-30 else not got.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["k", "v"])
def test_int8_does_not_hide_what_is_not_finite(which: str, value: float) -> None:
    cache = Cache(1, 32, kv="int8")
    k, v = np.random.default_rng(6).standard_normal((2, 40, 32)).astype(np.float32)
    {"k": k, "v": v}[which][17, 3] = value
    cache.append(0, k, v)
    assert not np.isfinite(attend(cache, queries(1, 64), 2, 1, 39, 1)[0]).all()
    assert np.isfinite(attend(cache, queries(1, 64), 2, 1, 16, 1)[0]).all()


def filled(heads: int, D: int, count: int, target: Target = HOST, kv: str = "bf16") -> Cache:
    rng = np.random.default_rng(2)
    cache = Cache(heads, D, target=target, kv=kv)
    for past in range(0, count, 64):
        n = min(64, count - past)
        k, v = (rng.standard_normal((n, heads * D)).astype(np.float32) for _ in range(2))
        cache.append(past, k, v)
    return cache


def attend(cache: Cache, q: np.ndarray, G: int, T: int, past: int, valid: int, shares=SPLITS[0]):
    y = poisoned((padded(T), cache.heads * G * cache.D))
    key = KernelKey.of("attention", D=cache.D, G=G, T=T, out="f32", **cache.static)
    params = [cache.heads, q.shape[1], y.shape[1], cache.k[0].nbytes]
    binding = {"past": past, "valid": valid}
    call(key, [q, cache.k, cache.v, y], params, **binding, shares=shares, target=cache.target)
    return y


def queries(rows: int, columns: int) -> np.ndarray:
    x = np.random.default_rng(3).standard_normal((padded(rows), columns)) * 0.5
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


# bf16 rounds each p to 8 bits; int8 rounds those of a block, and the query, to 14 and more.
BOUND = {"bf16": 8e-3, "int8": 1.5e-3}


@pytest.mark.parametrize("D, G", [(16, 2), (32, 1), (64, 3), (80, 4), (96, 8), (128, 2), (256, 16)])
@pytest.mark.parametrize("T, past", [(1, 0), (1, 130), (16, 0), (48, 95), (48, 256)])
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_attention(D: int, G: int, T: int, past: int, kv: str) -> None:
    heads, valid = 2, T if T == 1 else T - 3
    cache = filled(heads, D, past + valid, kv=kv)
    q = queries(T, heads * G * D)
    y = attend(cache, q, G, T, past, valid)
    k, v = (a.astype(np.float64) for a in cache.contents(past + valid))
    for t in range(valid):
        seen = past + t + 1
        rows = from_bf16(q[t]).reshape(heads, G, D).astype(np.float64)
        s = np.einsum("hgd,hsd->hgs", rows, k[:, :seen])
        p = np.exp2(s - s.max(-1, keepdims=True))
        want = np.einsum("hgs,hsd->hgd", p / p.sum(-1, keepdims=True), v[:, :seen])
        assert relative(y[t].reshape(heads, G, D), want) < BOUND[kv]


@pytest.mark.parametrize("D, G", [(32, 3), (128, 2)])
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_a_row_has_the_same_bits_in_every_chunk_and_share(D: int, G: int, kv: str) -> None:
    heads, T, past = 3, 48, 107
    cache = filled(heads, D, past + T, kv=kv)
    q = queries(T, heads * G * D)
    alone = np.stack(
        [attend(cache, np.ascontiguousarray(q[t : t + 1]), G, 1, past + t, 1)[0] for t in range(T)]
    )
    for valid in (1, 2, 7, 8, 9, 15, 16, 17, 31, 40, 48):
        for chunk in {48, padded(valid)} & {16, 48}:
            got = attend(cache, q, G, chunk, past, valid, SPLITS[valid % len(SPLITS)])[:valid]
            np.testing.assert_array_equal(got.view(np.int32), alone[:valid].view(np.int32))


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_a_nan_query_does_not_vanish(kv: str) -> None:
    cache = filled(1, 32, 40, kv=kv)
    q = queries(1, 64)
    q[0, 3] = 0x7FC0
    y = attend(cache, q, 2, 1, 39, 1)
    assert np.isnan(y[0, :32]).all() and np.isfinite(y[0, 32:]).all()


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_rows_of_a_batch_are_sequences_of_their_own(kv: str) -> None:
    """Each row's K, V, query and result, bit for bit as if its sequence were alone."""
    D, G, heads = 64, 2, 2
    lengths = [5, 140, 0, 63]
    rng = np.random.default_rng(4)
    k, v = (rng.standard_normal((16, heads * D)).astype(np.float32) for _ in range(2))
    x = rng.standard_normal((16, heads * G * D)).astype(np.float32)
    alone = [filled(heads, D, n, kv=kv) for n in lengths]
    together_k = np.stack([c.k for c in alone])
    together_v = np.stack([c.v for c in alone])
    stride = together_k[0].nbytes
    batch = [n for i, length in enumerate(lengths) for n in (length, i * stride)]
    options = {"valid": len(lengths), "batch": batch}

    static = alone[0].static
    key = KernelKey.of("kv_append", D=D, norm=False, eps=1e-6, batch=True, **static)
    params = [heads, heads * D, heads * D, alone[0].k[0].nbytes]
    call(key, [k, v, *tables(D), together_k, together_v], params, **options, shares=SPLITS[1])
    rotary = {"D": D, "norm": False, "eps": 1e-6, "scale": 0.2}
    width = heads * G * D
    q, q_alone = poisoned((16, width), np.uint16), poisoned((16, width), np.uint16)
    key = KernelKey.of("rotary", **rotary, batch=True)
    call(key, [x, *tables(D), q], [heads * G, width, width], **options)
    y = poisoned((16, width))
    key = KernelKey.of("attention", D=D, G=G, T=4, out="f32", batch=True, **static)
    params = [heads, width, width, alone[0].k[0].nbytes]
    call(key, [q, together_k, together_v, y], params, **options, shares=SPLITS[2])

    for i, (cache, length) in enumerate(zip(alone, lengths, strict=True)):
        cache.append(length, k[i : i + 1], v[i : i + 1])
        np.testing.assert_array_equal(together_k[i], cache.k)
        np.testing.assert_array_equal(together_v[i], cache.v)
        row = [np.tile(x[i], (16, 1)), *tables(D), q_alone]
        call(KernelKey.of("rotary", **rotary), row, [heads * G, width, width], past=length)
        np.testing.assert_array_equal(q[i], q_alone[0])
        want = attend(cache, q_alone[:1], G, 1, length, 1)
        np.testing.assert_array_equal(y[i].view(np.int32), want[0].view(np.int32))
