"""Eight-bit floats against ml_dtypes, every one of the 256."""

import ml_dtypes
import numpy as np
import pytest

from dielet.formats.fp8 import FP8
from dielet.formats.ggml import dequantize

TYPES = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", FP8)
def test_every_code_is_what_ml_dtypes_says(name):
    codes = np.arange(256, dtype=np.uint8).reshape(8, 32)
    expected = codes.view(TYPES[name]).astype(np.float32)
    seen = dequantize(FP8[name], codes)
    number = ~np.isnan(expected)
    assert seen.dtype == np.float32 and np.array_equal(np.isnan(seen), ~number)
    assert np.array_equal(seen[number].view(np.uint32), expected[number].view(np.uint32))
