"""The key and value cache in numpy: what `kv_append` writes and `attention` reads of one head.

A head's cache is given as its flat bytes or bf16 numbers, as far as the operand reaches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.formats.bf16 import from_bf16, to_bf16
from dielet.formats.cache import rounded, spread, spread_block
from dielet.formats.packed import PANEL

F32 = NDArray[np.float32]
Head = NDArray[Any]


def write_key(cache: Head, kv: str, position: int, key: F32) -> None:
    panel, lane = divmod(position, PANEL)
    if kv == "bf16":
        cache.reshape(-1, len(key) // 2, PANEL, 2)[panel, :, lane] = to_bf16(key).reshape(-1, 2)
        return
    codes, scales = _panels(cache, len(key))
    code, scales[panel, lane] = rounded(spread(key))
    codes.reshape(-1, len(key) // 4, PANEL, 4)[panel, :, lane] = (
        code.view(np.uint8) ^ 128
    ).reshape(-1, 4)


def write_value(cache: Head, kv: str, position: int, value: F32) -> None:
    """A bf16 value at an even position clears its odd partner: half a pair is never stale."""
    if kv == "bf16":
        pairs = cache.reshape(-1, len(value), 2)
        if position % 2 == 0:
            pairs[position // 2, :, 1] = 0
        pairs[position // 2, :, position % 2] = to_bf16(value)
        return
    codes, scales = _panels(cache, len(value))
    panel, lane = divmod(position, PANEL)
    code, scales[panel, lane] = rounded(value)
    codes.reshape(-1, 8, len(value), 4)[panel, lane // 4, :, lane % 4] = code.view(np.uint8)


def read_keys(cache: Head, kv: str, D: int) -> F32:
    """[positions, D]"""
    if kv == "bf16":
        panels = cache.reshape(-1, D // 2, PANEL, 2).transpose(0, 2, 1, 3)
        return from_bf16(np.ascontiguousarray(panels).reshape(-1, D))
    codes, scales = _panels(cache, D)
    lanes = codes.reshape(-1, D // 4, PANEL, 4).transpose(0, 2, 1, 3) ^ np.uint8(128)
    # The transform is its own inverse but for the length.
    with np.errstate(over="ignore", invalid="ignore"):
        return spread(_scaled(lanes, scales, D)) / np.float32(spread_block(D))


def read_values(cache: Head, kv: str, D: int) -> F32:
    """[positions, D]"""
    if kv == "bf16":
        pairs = cache.reshape(-1, D, 2).transpose(0, 2, 1)
        return from_bf16(np.ascontiguousarray(pairs).reshape(-1, D))
    codes, scales = _panels(cache, D)
    return _scaled(codes.reshape(-1, 8, D, 4).transpose(0, 1, 3, 2), scales, D)


def _panels(cache: Head, D: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """An int8 cache's codes [panels, 32 D] and scales [panels, 32], as views."""
    panels = cache.reshape(-1, PANEL * (D + 2))
    return panels[:, : PANEL * D], panels[:, PANEL * D :].view(np.uint16)


def _scaled(codes: NDArray[np.uint8], scales: NDArray[np.uint16], D: int) -> F32:
    numbers = np.ascontiguousarray(codes).view(np.int8).reshape(-1, D).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # what was never written may be anything
        return numbers * from_bf16(scales.reshape(-1))[:, None]
