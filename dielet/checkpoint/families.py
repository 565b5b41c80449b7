"""What each family's config.json says in its own way, as fields of ModelSpec.

The keys and their defaults are those of the family's configuration in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dielet.errors import DamagedFile, Unsupported

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SUPPORTED_MODEL_TYPES = tuple(ARCHITECTURES)

SLIDING, FULL = "sliding_attention", "full_attention"
_ASKED = ("qwen2", "qwen3")  # whose windows are off unless `use_sliding_window` says otherwise
_LISTED = ("qwen2", "qwen3")  # in which `layer_types` decides

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION = (*_QKV, "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

# What a key that is absent means, where families differ from Llama.
_USUAL: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096},
}


class Config(Protocol):
    """The entries of a config.json, by key and type."""

    where: str
    values: Mapping[str, Any]

    def get(self, key: str, kind: type, default: Any = ...) -> Any: ...

    def within(self, key: str, values: Mapping[str, Any]) -> Config: ...


def usual(model_type: str) -> dict[str, Any]:
    """The values of keys that this family's config.json may leave out."""
    return _USUAL.get(model_type, {})


def family_fields(model_type: str, config: Config) -> dict[str, Any]:
    """The fields of ModelSpec that only some families have."""
    return {
        "qk_norm": model_type == "qwen3",
        "biases": _biases(model_type, config),
        **_window(model_type, config),
    }


def _biases(model_type: str, config: Config) -> tuple[str, ...]:
    attention: tuple[str, ...] = ()
    if model_type == "qwen2":
        attention = _QKV
    elif config.get("attention_bias", bool, False):
        attention = _ATTENTION
    return attention + (_MLP if config.get("mlp_bias", bool, False) else ())


def _window(model_type: str, config: Config) -> dict[str, Any]:
    """`window` and the layers that have it, by the family's rule or as `layer_types` lists them."""
    layers = range(config.get("num_hidden_layers", int))
    window = config.get("sliding_window", int, 0)
    asked = config.get("use_sliding_window", bool, False)
    if asked and model_type not in _ASKED:
        raise Unsupported(
            f"{config.where}: use_sliding_window is true, which {model_type} does not have"
        )
    sliding: tuple[int, ...] = ()
    if window and (asked or model_type not in _ASKED):
        sliding = tuple(i for i in layers if _slides(model_type, config, i))
    kinds = config.get("layer_types", list, [])
    if kinds:
        listed = _listed(config, kinds, len(layers))
        if model_type not in _LISTED and listed != sliding:
            raise Unsupported(
                f"{config.where}: layer_types has {SLIDING} in layers {listed}, where "
                f"{model_type} has {sliding}"
            )
        sliding = listed if window else ()
    return {"window": window, "windowed": sliding} if sliding else {}


def _slides(model_type: str, config: Config, layer: int) -> bool:
    """Whether a layer has a window if the family has any and no list says so."""
    if model_type in ("qwen2", "qwen3"):
        first: int = config.get("max_window_layers", int, 28)
        return layer >= first
    return model_type == "mistral"


def _listed(config: Config, kinds: list[Any], layers: int) -> tuple[int, ...]:
    if other := sorted({str(kind) for kind in kinds} - {SLIDING, FULL}):
        raise Unsupported(
            f"{config.where}: layer_types has {other[0][:60]!r}; supported: {FULL}, {SLIDING}"
        )
    if len(kinds) < layers:
        raise DamagedFile(f"{config.where}: layer_types has {len(kinds)} of {layers} layers")
    return tuple(i for i in range(layers) if kinds[i] == SLIDING)


def config_entries(
    model_type: str, layers: int, biases: tuple[str, ...], window: int, windowed: tuple[int, ...]
) -> dict[str, Any]:
    """Entries of a config.json that `family_fields` reads back as they were."""
    entries: dict[str, Any] = {
        "attention_bias": set(_ATTENTION) <= set(biases),
        "mlp_bias": set(_MLP) <= set(biases),
        "sliding_window": window or None,
    }
    if model_type in _ASKED:
        entries["use_sliding_window"] = bool(windowed)
    if model_type in _LISTED:
        entries["layer_types"] = [SLIDING if i in windowed else FULL for i in range(layers)]
    return entries
