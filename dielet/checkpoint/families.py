"""What each family's config.json says in its own way, as fields of ModelSpec.

The keys and their defaults are those of the family's configuration in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SUPPORTED_MODEL_TYPES = tuple(ARCHITECTURES)

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION = (*_QKV, "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

# What a key that is absent means, where families differ from Llama.
_USUAL: dict[str, dict[str, Any]] = {
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}


class Config(Protocol):
    """The entries of a config.json, by key and type."""

    values: Mapping[str, Any]

    def get(self, key: str, kind: type, default: Any = ...) -> Any: ...


def usual(model_type: str) -> dict[str, Any]:
    """The values of keys that this family's config.json may leave out."""
    return _USUAL.get(model_type, {})


def family_fields(model_type: str, config: Config) -> dict[str, Any]:
    """The fields of ModelSpec that only some families have."""
    return {
        "qk_norm": model_type == "qwen3",
        "biases": _biases(model_type, config),
    }


def _biases(model_type: str, config: Config) -> tuple[str, ...]:
    attention = _ATTENTION if config.get("attention_bias", bool, False) else ()
    if model_type == "qwen2":
        attention = _QKV
    return attention + (_MLP if config.get("mlp_bias", bool, False) else ())


def config_entries(model_type: str, biases: tuple[str, ...]) -> dict[str, Any]:
    """Entries of a config.json that `family_fields` reads back as they were."""
    return {
        "attention_bias": set(_ATTENTION) <= set(biases),
        "mlp_bias": set(_MLP) <= set(biases),
    }
