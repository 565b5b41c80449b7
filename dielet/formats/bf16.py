"""bfloat16 as uint16 arrays: numpy has no such type, and the upper half of a float32 is one."""

import numpy as np
from numpy.typing import NDArray

_EXPONENT = np.uint32(0x7F80_0000)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)
_QUIET = np.uint32(0x0040_0000)


def to_bf16(x: NDArray[np.floating]) -> NDArray[np.uint16]:
    """float32 of any shape -> bfloat16 bits, rounded to nearest even; NaN stays NaN, inf stays inf.

    Finite values beyond the largest bfloat16 round to infinity, as the hardware does.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits >> 16) & 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    result = rounded.astype(np.uint16)
    nan = (bits & _MAGNITUDE) > _EXPONENT
    if nan.any():  # rounding could carry a NaN's payload into infinity or the sign
        result[nan] = ((bits[nan] | _QUIET) >> 16).astype(np.uint16)
    return result.reshape(np.shape(x))


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits of any shape -> the same values as float32, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
