"""The wire format of protocol buffers, as much of it as traces need: scalars and whole columns."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@lru_cache(1 << 14)
def varint(value: int, width: int = 1) -> bytes:
    """`value` >= 0 in 7 bits a byte, low bits first, padded to at least `width` bytes.

    Padding is legal: a reader takes bytes until one has no top bit.
    """
    out = bytearray()
    while value > 127 or len(out) + 1 < width:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def width_of(value: int) -> int:
    """Bytes of the shortest varint of `value`."""
    return max(1, -(-value.bit_length() // 7))


@lru_cache(1 << 14)
def number(field: int, value: int, width: int = 1) -> bytes:
    """A varint field; negative values as the two's complement of 64 bits."""
    return varint(field << 3) + varint(value & 0xFFFF_FFFF_FFFF_FFFF, width)


def text(field: int, value: str | bytes) -> bytes:
    """A field with a length: a string, bytes, or a message that is encoded already."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + np.float64(value).tobytes()


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def varints(values: NDArray[np.integer], width: int) -> NDArray[np.void]:
    """V{width} [...]: each value as a varint of exactly `width` <= 8 bytes; too large ones wrap."""
    kind = np.dtype("<u4" if width <= 4 else "<u8")
    wide = values.astype(kind)
    out = wide & kind.type(127)
    for k in range(1, width):
        # Seven bits to a byte: part k moves k places up.
        out |= np.left_shift(wide, k, dtype=kind) & kind.type(127 << 8 * k)
    out |= kind.type(sum(128 << 8 * k for k in range(width - 1)))
    return np.ndarray(out.shape, f"V{width}", out, 0, out.strides)


def words(values: NDArray[np.generic]) -> NDArray[np.void]:
    """V8 [...]: 64-bit integers or floats as fixed64."""
    return np.ascontiguousarray(values).view("V8")
