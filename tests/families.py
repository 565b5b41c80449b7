"""Every family as a tiny random model: what transformers is given, and the spec that we read."""

from __future__ import annotations

from typing import Any

from dielet.checkpoint.config import Entries, spec_from_config
from dielet.checkpoint.spec import ModelSpec
from tests.tiny import BASE, CLASSES


def rope(kind: str, **entries: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **entries}}


# By name: `model_type`, and what differs from tests/tiny.py.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {"head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": 50}),
    "mistral-wide": ("mistral", {"sliding_window": 170, "num_key_value_heads": 1}),
    "mistral-narrow": ("mistral", {"sliding_window": 5}),
    "qwen3-windows": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
    ),
    "llama-linear": ("llama", rope("linear", factor=4.0)),
    "llama-dynamic": ("llama", {**rope("dynamic", factor=2.0), "max_position_embeddings": 4096}),
    "llama-llama3": (
        "llama",
        rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "qwen3-yarn": ("qwen3", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
}


def spec_of(name: str, **changes: Any) -> ModelSpec:
    """The spec of the config.json that transformers writes for a family."""
    model_type, sizes = FAMILIES[name]
    config = CLASSES[model_type][0](**{**BASE, **sizes, **changes})
    return spec_from_config(Entries(name, config.to_dict()), name)
