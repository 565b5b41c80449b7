"""Attention with a window against numpy; what lies before the window is NaN where it may be."""

from __future__ import annotations

import numpy as np
import pytest

from dielet.codegen import KernelKey

from .harness import SPLITS, call, from_bf16, padded, poisoned, relative
from .test_attention import Cache, filled, queries

PANEL = 32


def attend(
    cache: Cache, q: np.ndarray, G: int, T: int, past: int, valid: int, window: int, shares=None
) -> np.ndarray:
    y = poisoned((padded(T), cache.heads * G * cache.D))
    key = KernelKey.of("attention", D=cache.D, G=G, T=T, out="f32", window=window)
    params = [cache.heads, q.shape[1], y.shape[1], cache.k[0].nbytes]
    operands = [q, cache.k, cache.v, y]
    call(key, operands, params, past=past, valid=valid, shares=shares or SPLITS[0])
    return y


@pytest.mark.parametrize("window", [1, 5, 32, 100, 129, 400])
@pytest.mark.parametrize("T, past", [(1, 0), (1, 130), (1, 300), (16, 0), (48, 95), (48, 256)])
def test_a_row_sees_the_last_positions_up_to_its_own(T: int, past: int, window: int) -> None:
    heads, D, G, valid = 2, 64, 3, T if T == 1 else T - 3
    cache = filled(heads, D, past + valid)
    k, v = (a.astype(np.float64) for a in cache.contents(past + valid))
    unread = max(0, past + 1 - window) // PANEL  # panels before the first row's window
    cache.k[:, :unread] = cache.v[:, : unread * PANEL // 2] = 0xFFFF
    q = queries(T, heads * G * D)
    y = attend(cache, q, G, T, past, valid, window)
    for t in range(valid):
        seen = slice(max(0, past + t + 1 - window), past + t + 1)
        rows = from_bf16(q[t]).reshape(heads, G, D).astype(np.float64)
        s = np.einsum("hgd,hsd->hgs", rows, k[:, seen])
        p = np.exp2(s - s.max(-1, keepdims=True))
        want = np.einsum("hgs,hsd->hgd", p / p.sum(-1, keepdims=True), v[:, seen])
        assert relative(y[t].reshape(heads, G, D), want) < 8e-3  # p is rounded to bfloat16


@pytest.mark.parametrize("window", [1, 3, 40, 127, 129])
def test_a_row_has_the_same_bits_in_every_chunk_and_share(window: int) -> None:
    heads, D, G, T, past = 3, 32, 3, 48, 107
    cache = filled(heads, D, past + T)
    q = queries(T, heads * G * D)
    rows = [np.ascontiguousarray(q[t : t + 1]) for t in range(T)]
    alone = np.stack([attend(cache, rows[t], G, 1, past + t, 1, window)[0] for t in range(T)])
    for valid in (1, 7, 16, 17, 31, 48):
        for shares in SPLITS:
            y = attend(cache, q, G, 48, past, valid, window, shares)
            assert np.array_equal(y[:valid].view(np.uint32), alone[:valid].view(np.uint32))


def test_a_window_beyond_the_sequence_gives_the_bits_of_none() -> None:
    heads, D, G, T, past = 2, 64, 2, 48, 100
    cache = filled(heads, D, past + T)
    q = queries(T, heads * G * D)
    y = attend(cache, q, G, T, past, T, window=past + T)
    key = KernelKey.of("attention", D=D, G=G, T=T, out="f32")
    plain = poisoned(y.shape)
    params = [heads, q.shape[1], y.shape[1], cache.k[0].nbytes]
    call(key, [q, cache.k, cache.v, plain], params, past=past, valid=T)
    assert np.array_equal(y[:T].view(np.uint32), plain[:T].view(np.uint32))
