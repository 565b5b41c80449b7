"""Rotary frequencies against transformers' own functions."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dielet.checkpoint.rope import inverse_frequencies
from dielet.errors import UsageError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize("theta", [10000.0, 5e5, 1e6])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        LLAMA3,
        YARN,
        {**YARN, "attention_factor": 1.5, "beta_fast": 20.0, "beta_slow": 2.0},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "truncate": False},
    ],
)
def test_scaled_frequencies_are_those_of_transformers(scaling, theta):
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        rope_theta=theta,
        rope_scaling=dict(scaling),
        max_position_embeddings=131072,
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None)
    seen, seen_factor = inverse_frequencies(128, theta, scaling)
    assert seen.dtype == np.float32
    np.testing.assert_allclose(seen, expected.numpy(), rtol=3e-7)
    assert seen_factor == pytest.approx(factor, rel=1e-12)


def test_plain_frequencies_and_divisors():
    plain, factor = inverse_frequencies(64, 10000.0, None)
    assert factor == 1.0 and plain[0] == 1.0
    np.testing.assert_allclose(plain, 10000.0 ** (-np.arange(0, 64, 2) / 64), rtol=3e-7)
    divisors = [1.0] * 16 + [8.0] * 16
    divided, _ = inverse_frequencies(64, 10000.0, {"rope_type": "factors", "factors": divisors})
    assert np.array_equal(divided, plain / np.array(divisors, np.float32))


def test_divisors_of_llama_files_say_the_same_as_llama3():
    plain, _ = inverse_frequencies(128, 5e5, None)
    scaled, _ = inverse_frequencies(128, 5e5, LLAMA3)
    divisors = {"rope_type": "factors", "factors": [float(d) for d in plain / scaled]}
    np.testing.assert_allclose(inverse_frequencies(128, 5e5, divisors)[0], scaled, rtol=3e-7)


def test_a_blend_that_runs_backwards_is_refused():
    with pytest.raises(UsageError, match=r"low_freq_factor 4.0 must be below"):
        inverse_frequencies(64, 1e4, {**LLAMA3, "low_freq_factor": 4.0})
