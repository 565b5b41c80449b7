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
    with pytest.raises(Unsupported, match=r"IQ4_XS weights are not supported; use F32, F16"):
        dequantize(BY_NAME["IQ4_XS"], np.zeros((1, 136), np.uint8))
