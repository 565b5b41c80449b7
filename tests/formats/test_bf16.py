"""bfloat16 against ml_dtypes, over every bit pattern that decides anything."""

import ml_dtypes
import numpy as np

from dielet.formats.bf16 import from_bf16, to_bf16


def test_every_bfloat16_survives_a_round_trip():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = from_bf16(bits)
    assert np.array_equal(values, bits.view(ml_dtypes.bfloat16).astype(np.float32), equal_nan=True)
    again = to_bf16(values)
    nan = np.isnan(values)
    assert np.array_equal(again[~nan], bits[~nan])
    assert np.isnan(from_bf16(again[nan])).all()


def test_rounding_is_to_nearest_even_like_ml_dtypes():
    upper = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (upper | lower).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    seen = to_bf16(values)
    finite = ~np.isnan(values)
    assert seen.shape == values.shape
    assert np.array_equal(seen[finite], expected[finite])
    assert np.isnan(from_bf16(seen[~finite])).all()
