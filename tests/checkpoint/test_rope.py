"""Rotary frequencies against transformers' own functions."""

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dielet.checkpoint.rope import angles, inverse_frequencies
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


LONGROPE = {
    "rope_type": "longrope",
    "factor": 32.0,
    "short_factor": [1 + i / 64 for i in range(48)],
    "long_factor": [1 + i for i in range(48)],
    "original_max_position_embeddings": 4096,
}


@pytest.mark.parametrize("positions", [4096, 4097])
@pytest.mark.parametrize("more", [{}, {"attention_factor": 1.25}])
def test_longrope_is_that_of_transformers_for_a_text_of_that_length(positions, more):
    scaling = {**LONGROPE, **more}
    config = LlamaConfig(
        hidden_size=384, num_attention_heads=4, rope_theta=10000.0, rope_scaling=dict(scaling),
        max_position_embeddings=131072,
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=positions)
    seen, seen_factor = inverse_frequencies(96, 10000.0, scaling, positions)
    np.testing.assert_allclose(seen, expected.numpy(), rtol=3e-7)
    assert seen_factor == pytest.approx(factor, rel=1e-12)


def test_dynamic_turns_a_position_as_a_text_that_ends_there():
    scaling = {"rope_type": "dynamic", "factor": 3.0, "max_position_embeddings": 100}
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, rope_theta=10000.0, rope_scaling=dict(scaling),
        max_position_embeddings=100,
    )  # fmt: skip
    seen, factor = angles(64, 10000.0, scaling, 400)
    assert factor == 1.0 and np.array_equal(seen[:100], angles(64, 10000.0, None, 100)[0])
    for position in (99, 100, 101, 250, 399):
        expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, None, seq_len=position + 1)
        np.testing.assert_allclose(seen[position], position * expected.numpy(), rtol=2e-6)
