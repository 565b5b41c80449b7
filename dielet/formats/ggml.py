"""The block formats of GGUF files: their sizes, their values, and which are exactly one of ours.

A row of K weights is K/weights blocks of `nbytes` bytes.  Functions take raw blocks as uint8
[blocks, nbytes].  The formulas are those of the reference implementation, in float32, in its order
of operations, so that values agree bit by bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dielet.errors import Unsupported
from dielet.formats.bf16 import from_bf16
from dielet.formats.packed import WeightFormat

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]


class Codes(NamedTuple):
    """Weights that already are in a WeightFormat, as `packed.pack` takes them.

    values: uint8 [N, K], or uint16 for bf16; scale and minimum: float16 [N, K/group]; of a format
    with zeros, minimum is minus the zero points.
    """

    values: NDArray[Any]
    scale: NDArray[np.float16] | None = None
    minimum: NDArray[np.float16] | None = None


@dataclass(frozen=True)
class BlockType:
    """One number format of a file: `weights` weights in `nbytes` bytes, and how to read them."""

    name: str
    number: int
    weights: int
    nbytes: int
    decode: Callable[[U8], F32] | None = None  # [blocks, nbytes] -> [blocks, weights]
    codes: Callable[[U8], Codes] | None = None  # values [blocks, weights], scale [blocks], ...
    zero: int = 0  # the code of 0, in a symmetric format with codes
    exact: tuple[str, ...] = ()  # names of the WeightFormats that hold the same values

    def row_bytes(self, K: int) -> int:
        """Bytes of a row of K weights; K must be a multiple of `weights`."""
        return K // self.weights * self.nbytes


def _half(column: U8) -> NDArray[np.float16]:
    """Two bytes per block -> float16 [blocks]."""
    return np.ascontiguousarray(column).view("<f2")[:, 0]


def _nibbles(column: U8) -> U8:
    """[blocks, 16] -> [blocks, 32]: low halves of the bytes, then high halves."""
    return np.concatenate([column & 15, column >> 4], axis=1)


def _fifth_bits(column: U8) -> U8:
    """[blocks, 4] -> [blocks, 32]: bit i, at the place that is worth 16."""
    return np.unpackbits(column, axis=1, bitorder="little") << np.uint8(4)


def _q4_0(raw: U8) -> Codes:
    return Codes(_nibbles(raw[:, 2:]), _half(raw[:, :2]))


def _q4_1(raw: U8) -> Codes:
    return Codes(_nibbles(raw[:, 4:]), _half(raw[:, :2]), _half(raw[:, 2:4]))


def _q5_0(raw: U8) -> Codes:
    return Codes(_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6]), _half(raw[:, :2]))


def _q5_1(raw: U8) -> Codes:
    codes = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return Codes(codes, _half(raw[:, :2]), _half(raw[:, 2:4]))


def _q8_0(raw: U8) -> Codes:
    return Codes(raw[:, 2:] ^ 0x80, _half(raw[:, :2]))  # signed byte + 128


def _scales_and_minima(packed: U8) -> tuple[U8, U8]:
    """The twelve bytes of Q4_K and Q5_K -> eight 6-bit scales and eight 6-bit minima per block."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 2) & 48)], axis=1)
    return scales, minima


def _affine_sub_blocks(raw: U8, codes: U8) -> F32:
    """Q4_K and Q5_K from codes [blocks, 8, 32]: d * scale * code - dmin * minimum."""
    scales, minima = _scales_and_minima(raw[:, 4:16])
    d = _half(raw[:, 0:2]).astype(np.float32)[:, None] * scales
    m = _half(raw[:, 2:4]).astype(np.float32)[:, None] * minima
    return (d[..., None] * codes - m[..., None]).reshape(len(raw), 256)


def _paired_nibbles(column: U8) -> U8:
    """[blocks, 128] -> [blocks, 8, 32]: each run of 32 bytes holds two sub-blocks."""
    runs = column.reshape(-1, 4, 32)
    return np.stack([runs & 15, runs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(raw: U8) -> F32:
    return _affine_sub_blocks(raw, _paired_nibbles(raw[:, 16:]))


def _q5_k(raw: U8) -> F32:
    bit = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (raw[:, None, 16:48] >> bit) & np.uint8(1)
    return _affine_sub_blocks(raw, _paired_nibbles(raw[:, 48:]) | (fifth << np.uint8(4)))


def _q6_k(raw: U8) -> F32:
    low = raw[:, 0:128].reshape(-1, 2, 1, 64) >> np.array([[0], [4]], np.uint8)
    high = raw[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    codes = (low & 15).reshape(-1, 8, 32) | ((high & 3) << 4).reshape(-1, 8, 32)
    signed = codes.astype(np.int8).reshape(-1, 16, 16) - np.int8(32)
    scales = raw[:, 192:208].view(np.int8)
    d = _half(raw[:, 208:210]).astype(np.float32)[:, None] * scales
    return (d[..., None] * signed).reshape(len(raw), 256)


def _q2_k(raw: U8) -> F32:
    runs = raw[:, 16:80].reshape(-1, 2, 1, 32)
    codes = (runs >> np.array([[0], [2], [4], [6]], np.uint8)) & np.uint8(3)
    d = _half(raw[:, 80:82]).astype(np.float32)[:, None] * (raw[:, :16] & 15)
    m = _half(raw[:, 82:84]).astype(np.float32)[:, None] * (raw[:, :16] >> 4)
    return (d[..., None] * codes.reshape(-1, 16, 16) - m[..., None]).reshape(len(raw), 256)


def _q3_k(raw: U8) -> F32:
    low = raw[:, 32:96].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    bit = np.arange(8, dtype=np.uint8)[:, None]
    high = (raw[:, None, :32] >> bit) & np.uint8(1)  # worth 4; what lacks it is 4 less
    codes = (low & 3).reshape(-1, 8, 32) | (high << np.uint8(2))
    signed = codes.astype(np.int8).reshape(-1, 16, 16) - np.int8(4)
    fours = np.concatenate([raw[:, 96:104] & 15, raw[:, 96:104] >> 4], axis=1)
    twos = (raw[:, None, 104:108] >> np.array([[0], [2], [4], [6]], np.uint8)) & np.uint8(3)
    scales = (fours | twos.reshape(-1, 16) << np.uint8(4)).astype(np.int8) - np.int8(32)
    d = _half(raw[:, 108:110]).astype(np.float32)[:, None] * scales
    return (d[..., None] * signed).reshape(len(raw), 256)


# The levels of IQ4_NL and IQ4_XS: not evenly spaced, closer together around zero.
_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16
)


def _iq4_nl(raw: U8) -> Codes:
    return Codes((_LEVELS + 128).astype(np.uint8)[_nibbles(raw[:, 2:])], _half(raw[:, :2]))


def _iq4_xs(raw: U8) -> F32:
    fours = np.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    twos = (raw[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    scales = (fours | twos.reshape(-1, 8) << np.uint8(4)).astype(np.int8) - np.int8(32)
    runs = raw[:, 8:].reshape(-1, 8, 16)
    levels = _LEVELS.astype(np.float32)[np.concatenate([runs & 15, runs >> 4], axis=2)]
    d = _half(raw[:, 0:2]).astype(np.float32)[:, None] * scales
    return (d[..., None] * levels).reshape(len(raw), 256)


# Every type that a file may name; those without a decoder are known only to be refused by name.
_TYPES = (
    BlockType("F32", 0, 1, 4, decode=lambda raw: raw.view("<f4").astype(np.float32)),
    BlockType("F16", 1, 1, 2, decode=lambda raw: raw.view("<f2").astype(np.float32)),
    BlockType(
        "BF16",
        30,
        1,
        2,
        decode=lambda raw: from_bf16(raw.view("<u2")),
        codes=lambda raw: Codes(raw.view("<u2")),
        exact=("bf16",),
    ),
    BlockType("Q4_0", 2, 32, 18, codes=_q4_0, zero=8, exact=("int4g32", "int8g32")),
    BlockType("Q4_1", 3, 32, 20, codes=_q4_1, exact=("int4g32m", "int8g32m")),
    BlockType("Q5_0", 6, 32, 22, codes=_q5_0, zero=16, exact=("int8g32",)),
    BlockType("Q5_1", 7, 32, 24, codes=_q5_1, exact=("int8g32m",)),
    BlockType("Q8_0", 8, 32, 34, codes=_q8_0, zero=128, exact=("int8g32",)),
    # scales of K-quants are products of two numbers, which no float16 holds: never exact
    BlockType("Q2_K", 10, 256, 84, decode=_q2_k),
    BlockType("Q3_K", 11, 256, 110, decode=_q3_k),
    BlockType("Q4_K", 12, 256, 144, decode=_q4_k),
    BlockType("Q5_K", 13, 256, 176, decode=_q5_k),
    BlockType("Q6_K", 14, 256, 210, decode=_q6_k),
    BlockType("IQ4_NL", 20, 32, 18, codes=_iq4_nl, zero=128, exact=("int8g32",)),
    BlockType("IQ4_XS", 23, 256, 136, decode=_iq4_xs),
    BlockType("IQ2_XXS", 16, 256, 66),
    BlockType("IQ2_XS", 17, 256, 74),
    BlockType("IQ3_XXS", 18, 256, 98),
    BlockType("IQ1_S", 19, 256, 50),
    BlockType("IQ3_S", 21, 256, 110),
    BlockType("IQ2_S", 22, 256, 82),
    BlockType("I8", 24, 1, 1),
    BlockType("I16", 25, 1, 2),
    BlockType("I32", 26, 1, 4),
    BlockType("I64", 27, 1, 8),
    BlockType("F64", 28, 1, 8),
    BlockType("IQ1_M", 29, 256, 56),
    BlockType("TQ1_0", 34, 256, 54),
    BlockType("TQ2_0", 35, 256, 66),
    BlockType("MXFP4", 39, 32, 17),
)
BY_NUMBER = {t.number: t for t in _TYPES}
BY_NAME = {t.name: t for t in _TYPES}
READABLE = tuple(t.name for t in _TYPES if t.decode or t.codes)


def dequantize(kind: BlockType, raw: U8) -> F32:
    """raw uint8 [N, row bytes] -> float32 [N, K].  Raises Unsupported for an unreadable type."""
    blocks = np.ascontiguousarray(raw).reshape(-1, kind.nbytes)
    shape = len(raw), raw.shape[1] // kind.nbytes * kind.weights
    if kind.decode is not None:
        return kind.decode(blocks).reshape(shape)
    if kind.codes is None:
        raise Unsupported(f"{kind.name} weights are not supported; use {', '.join(READABLE)}")
    codes, scale, minimum = kind.codes(blocks)
    assert scale is not None
    values = codes.astype(np.float32)
    if minimum is None:
        values -= kind.zero
    values *= scale.astype(np.float32)[:, None]
    if minimum is not None:
        values += minimum.astype(np.float32)[:, None]
    return values.reshape(shape)


def exact_codes(kind: BlockType, raw: U8, fmt: WeightFormat) -> Codes:
    """raw uint8 [N, row bytes] -> the same values in `fmt`, one of `kind.exact`."""
    assert fmt.name in kind.exact and kind.codes is not None
    N = len(raw)
    blocks = np.ascontiguousarray(raw).reshape(-1, kind.nbytes)
    codes, scale, minimum = kind.codes(blocks)
    if scale is None:
        return Codes(codes.reshape(N, -1))
    if minimum is None:
        codes = codes + np.uint8(fmt.zero_point - kind.zero)
        return Codes(codes.reshape(N, -1), scale.reshape(N, -1))
    return Codes(codes.reshape(N, -1), scale.reshape(N, -1), minimum.reshape(N, -1))
