"""Every family as a tiny random model: what transformers is given, and the spec that we read."""

from __future__ import annotations

from typing import Any

from dielet.checkpoint.config import Entries, spec_from_config
from dielet.checkpoint.spec import ModelSpec
from tests.tiny import BASE, CLASSES


def rope(kind: str, **entries: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **entries}}


GEMMA_ROPE = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
PADS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PHI = {"head_dim": 32, "hidden_size": 128, **PADS}
LONGROPE = rope(
    "longrope",
    partial_rotary_factor=0.5,
    short_factor=[1.0 + 0.1 * i for i in range(8)],
    long_factor=[1.0 + 0.9 * i for i in range(8)],
)

MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96}

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
    "phi3": ("phi3", {**PHI, "sliding_window": 60}),
    "phi3-partial": (
        "phi3",
        {**PHI, **rope("default", partial_rotary_factor=0.75)},
    ),
    "phi3-longrope-short": ("phi3", {**PHI, **LONGROPE, "original_max_position_embeddings": 384}),
    "phi3-longrope-long": ("phi3", {**PHI, **LONGROPE, "original_max_position_embeddings": 64}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, **PADS}),
    "smollm3-windows": (
        "smollm3",
        {
            **PADS,
            "no_rope_layers": [0, 1],
            "use_sliding_window": True,
            "sliding_window": 40,
        },
    ),
    "olmo2": ("olmo2", {"head_dim": 16, **PADS}),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 7,
            "sliding_window": 40,
            "head_dim": 64,
            "query_pre_attn_scalar": 100,
            **GEMMA_ROPE,
            **PADS,
        },
    ),
    "qwen3_moe": ("qwen3_moe", {**MOE, "norm_topk_prob": True}),
    "qwen3_moe-mixed": (
        "qwen3_moe",
        {**MOE, "num_hidden_layers": 4, "mlp_only_layers": [2], "num_experts_per_tok": 4},
    ),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
}


def spec_of(name: str, **changes: Any) -> ModelSpec:
    """The spec of the config.json that transformers writes for a family."""
    model_type, sizes = FAMILIES[name]
    config = CLASSES[model_type][0](**{**BASE, **sizes, **changes})
    return spec_from_config(Entries(name, config.to_dict()), name)
