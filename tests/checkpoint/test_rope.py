"""Rotary frequencies against transformers' own functions."""

import json

import numpy as np
import pytest
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dielet.checkpoint import open_config
from dielet.checkpoint.rope import angles, inverse_frequencies
from dielet.errors import DamagedFile, UsageError

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


MODELS = ("llama", "qwen2", "qwen3", "mistral", "qwen3_moe", "smollm3", "olmo2")
OLDER = (
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 7e3},
    {"rope_type": "default"},
    {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 7},
    {},
    None,
)


def configured(folder, model_type, **entries):
    """A config.json, as transformers reads it and as we do: (its rope_parameters, our spec)."""
    values = {
        "model_type": model_type, "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32,
        "num_key_value_heads": 2, "num_hidden_layers": 6, "intermediate_size": 64,
        "vocab_size": 99, "max_position_embeddings": 128, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, **entries,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    return AutoConfig.from_pretrained(folder).rope_parameters, open_config(folder)


def assert_same_rope(theirs, theta, scaling, positions=128):
    assert theta == theirs["rope_theta"]
    if theirs["rope_type"] == "default":
        assert scaling is None
    elif theirs["rope_type"] == "linear":
        assert scaling == {"rope_type": "linear", "factor": theirs["factor"]}
    else:
        assert scaling == {
            "rope_type": "dynamic", "factor": theirs["factor"], "max_position_embeddings": positions
        }  # fmt: skip


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("older", OLDER, ids=str)
@pytest.mark.parametrize("more", [{}, {"rope_theta": 5e4}], ids=str)
def test_rope_scaling_beside_rope_parameters_is_as_in_transformers(
    tmp_path, model_type, older, more
):
    newer = {"rope_type": "linear", "factor": 3.0, "rope_theta": 3e4}
    theirs, ours = configured(
        tmp_path, model_type, rope_parameters=newer, rope_scaling=older, **more
    )
    assert_same_rope(theirs, ours.rope_theta, ours.rope_scaling)


@pytest.mark.parametrize("older", [OLDER[0], OLDER[1], {}, None], ids=str)
def test_rope_scaling_of_gemma_is_of_its_full_layers(tmp_path, older):
    newer = {
        "full_attention": {"rope_type": "default", "rope_theta": 3e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    theirs, ours = configured(tmp_path, "gemma3_text", rope_parameters=newer, rope_scaling=older)
    assert_same_rope(theirs["full_attention"], ours.rope_theta, ours.rope_scaling)
    assert ours.local_rope_theta == theirs["sliding_attention"]["rope_theta"] == 2e4


def test_rope_scaling_of_gemma_without_its_full_layers_is_refused(tmp_path):
    entries = {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": OLDER[0]}
    with pytest.raises(KeyError, match="full_attention"):
        configured(tmp_path, "gemma3_text", **entries)
    with pytest.raises(DamagedFile, match=r"config\.json: rope_scaling .* without full_attention"):
        open_config(tmp_path)
