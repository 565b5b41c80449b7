"""Number formats of the key and value cache, and what a position of one head takes in each.

bf16   keys in panels of 32 positions [D/2][32][2], values in pairs of positions [S/2][D][2]
int8   panels of 32 positions: codes, then 32 bfloat16 scales, one for each position. Keys are
       [D/4][32][4] codes + 128, turned by `spread`; values are [8][D][4] codes
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dielet.formats.bf16 import from_bf16, to_bf16

KV_FORMATS = ("bf16", "int8")
# The scale is the largest magnitude over this: no code exceeds 127 once the scale is rounded.
LARGEST = 126.5
SMALLEST_SCALE = 1e-30  # of a head that is all zero


def position_bytes(fmt: str, D: int) -> int:
    """Bytes of the keys, or of the values, of one position and head of D numbers."""
    return D + 2 if fmt == "int8" else 2 * D


def spread_block(D: int) -> int:
    """The numbers that `spread` turns together: the largest power of two that divides D."""
    return D & -D


def spread(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Walsh-Hadamard transform of [..., D], in blocks, times the root of a block's length.

    Turning queries and keys alike leaves their products as they were, but spreads a channel that
    is larger than all others over the whole head: then 8 bits with one scale are enough.
    """
    block = spread_block(x.shape[-1])
    step = 1
    while step < block:
        pairs = x.reshape(*x.shape[:-1], -1, 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], -2).reshape(x.shape)
        step *= 2
    return x


def rounded(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    """Codes of heads [..., D], and the bfloat16 scale of each; a scale that is not finite stays."""
    largest = np.abs(x).max(-1)
    scale = to_bf16(np.maximum(largest * np.float32(1 / LARGEST), np.float32(SMALLEST_SCALE)))
    with np.errstate(invalid="ignore"):
        codes = np.nan_to_num(np.rint(x * (1 / from_bf16(scale))[..., None]))
    return codes.astype(np.int8), scale
