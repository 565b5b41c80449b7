"""Block formats against the reference package, on random bytes: every bit pattern is a block."""

import gguf
import numpy as np
import pytest

from dielet.errors import Unsupported
from dielet.formats.ggml import BY_NAME, BY_NUMBER, READABLE, dequantize, exact_codes
from dielet.formats.packed import WeightFormat, pack, unpack


def random_rows(name: str, N: int, K: int, seed: int = 0) -> np.ndarray:
    """Random bytes of N rows, whose values may be NaN or infinite."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (N, BY_NAME[name].row_bytes(K)), dtype=np.uint8)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", READABLE)
def test_values_are_those_of_the_reference_to_the_bit(name):
    raw = random_rows(name, 64, 512)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    seen = dequantize(BY_NAME[name], raw)
    assert seen.dtype == np.float32 and seen.shape == (64, 512)
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(seen), ~number)
    assert np.array_equal(seen[number].view(np.uint32), expected[number].view(np.uint32))


# Where a block's float16 numbers are, by byte.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
EXTREMES = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504.0, -65504.0, np.inf, -np.inf, np.nan, 1 / 3]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", HALVES)
def test_extreme_scales_are_those_of_the_reference_too(name):
    blocks = random_rows(name, 2 * len(EXTREMES) ** 2, BY_NAME[name].weights, seed=1)
    pairs = np.array([(a, b) for a in EXTREMES for b in EXTREMES] * 2, np.float16)
    for place, column in zip(HALVES[name], pairs.T, strict=False):
        blocks[:, place : place + 2] = np.ascontiguousarray(column)[:, None].view(np.uint8)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    seen = dequantize(BY_NAME[name], blocks)
    number = ~np.isnan(expected)
    assert number.sum() > number.size / 2 and np.array_equal(np.isnan(seen), ~number)
    assert np.array_equal(seen[number].view(np.uint32), expected[number].view(np.uint32))


def test_what_is_published_is_read():
    names = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS"
    assert set(READABLE) == set(names.split())
    assert set(HALVES) == set(READABLE) - {"F32", "F16", "BF16"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "fmt"), [(name, fmt) for name in READABLE for fmt in BY_NAME[name].exact]
)
def test_exact_formats_hold_the_same_values(name, fmt):
    raw = random_rows(name, 40, 256)
    target = WeightFormat.parse(fmt)
    seen = unpack(target, pack(target, *exact_codes(BY_NAME[name], raw, target)), 40, 256)
    assert np.array_equal(seen, dequantize(BY_NAME[name], raw), equal_nan=True)


def test_sizes_and_numbers_are_those_of_the_reference():
    for number, block in BY_NUMBER.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == block.name
        assert gguf.GGML_QUANT_SIZES[kind] == (block.weights, block.nbytes)


def test_what_cannot_be_read_is_refused_by_name():
    with pytest.raises(Unsupported, match=r"IQ3_S weights are not supported; use F32, F16"):
        dequantize(BY_NAME["IQ3_S"], np.zeros((1, 110), np.uint8))
