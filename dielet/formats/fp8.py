"""Eight-bit floats of checkpoints, and the eight-bit powers of two that may scale them.

E4M3 has four bits of exponent and three of mantissa, no infinity, and NaN where both are all ones
(the "fn" kind); E5M2 is the upper half of a float16.
"""

import numpy as np
from numpy.typing import NDArray

from dielet.formats.ggml import F32, U8, BlockType


def _e4m3_values() -> NDArray[np.float32]:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    subnormal = exponent == 0
    size = np.ldexp(
        np.where(subnormal, mantissa, 8 + mantissa).astype(np.float32),
        np.where(subnormal, -9, exponent - 10),
    )
    values = np.where(code < 128, size, -size).astype(np.float32)
    values[code & 127 == 127] = np.nan
    return values


_E4M3 = _e4m3_values()
_E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))


def _e4m3(raw: U8) -> F32:
    return _E4M3[raw]


def _e5m2(raw: U8) -> F32:
    return (raw.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def _e8m0(raw: U8) -> F32:
    return _E8M0[raw]


# By the name that safetensors has for it; GGUF files have no number for them.
FP8 = {
    "F8_E4M3": BlockType("F8_E4M3", -1, 1, 1, decode=_e4m3),
    "F8_E5M2": BlockType("F8_E5M2", -1, 1, 1, decode=_e5m2),
    "F8_E8M0": BlockType("F8_E8M0", -1, 1, 1, decode=_e8m0),
}
