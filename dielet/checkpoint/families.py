"""What each family's config.json says in its own way, as fields of ModelSpec.

The keys and their defaults are those of the family's configuration in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dielet.errors import DamagedFile, Unsupported

ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
SUPPORTED_MODEL_TYPES = tuple(ARCHITECTURES)

SLIDING, FULL = "sliding_attention", "full_attention"
_ASKED = (
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
)  # whose windows are off unless `use_sliding_window` says otherwise
_ALWAYS = ("gemma3_text", "mistral", "phi3")  # whose windows need no switch
_LISTED = ("gemma3_text", "qwen2", "qwen3", "smollm3")  # in which `layer_types` decides

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION = (*_QKV, "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

# What a key that is absent means, where families differ from Llama.
_USUAL: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "olmo2": {"rms_norm_eps": 1e-5},
    "phi3": {"rms_norm_eps": 1e-5},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096},
    "qwen3_moe": {"num_key_value_heads": 4, "sliding_window": 4096},
    "smollm3": {"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True},
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
        "qk_norm": model_type in ("gemma3_text", "olmo2", "qwen3", "qwen3_moe"),
        **(_experts(config) if model_type == "qwen3_moe" else {}),
        "activation": _activation(model_type, config),
        **(_gemma3(config) if model_type == "gemma3_text" else {}),
        "no_rope": _no_rope(config) if model_type == "smollm3" else (),
        "biases": _biases(model_type, config),
        **_window(model_type, config),
    }


def _activation(model_type: str, config: Config) -> str:
    key = "hidden_activation" if model_type == "gemma3_text" else "hidden_act"
    name: str = config.get(key, str, "silu")
    return {"gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"}.get(name, name)


def _gemma3(config: Config) -> dict[str, Any]:
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if config.values.get(key) is not None:
            raise Unsupported(f"{config.where}: {key} is not supported; only without it")
    if config.values.get("query_pre_attn_scalar") == 0:
        raise DamagedFile(f"{config.where}: query_pre_attn_scalar is 0; it must be above 0")
    return {
        "embedding_scale": config.get("hidden_size", int) ** 0.5,
        "attention_scalar": config.get("query_pre_attn_scalar", float, 256.0),
    }


def _experts(config: Config) -> dict[str, Any]:
    step = max(1, config.get("decoder_sparse_step", int, 1))
    only = {i for i in config.get("mlp_only_layers", list, []) if type(i) is int}
    layers = range(config.get("num_hidden_layers", int))
    experts = config.get("num_experts", int, config.get("num_local_experts", int, 128))
    dense = tuple(i for i in layers if i in only or (i + 1) % step) if experts else ()
    return {
        "experts": experts,
        "experts_per_token": config.get("num_experts_per_tok", int, 8),
        "expert_intermediate": config.get("moe_intermediate_size", int, 768),
        "experts_normed": config.get("norm_topk_prob", bool, False),
        "dense_layers": dense,
    }


def _biases(model_type: str, config: Config) -> tuple[str, ...]:
    attention: tuple[str, ...] = ()
    if model_type == "qwen2":
        attention = _QKV
    elif config.get("attention_bias", bool, False):
        attention = _ATTENTION
    return attention + (_MLP if config.get("mlp_bias", bool, False) else ())


def _no_rope(config: Config) -> tuple[int, ...]:
    """The layers that do not turn: as listed, 0 for each of them, or every so many."""
    layers = config.get("num_hidden_layers", int)
    listed = config.get("no_rope_layers", list, [])
    if listed:
        if len(listed) < layers or any(turns not in (0, 1) for turns in listed):
            raise DamagedFile(f"{config.where}: no_rope_layers is not 0 or 1 for {layers} layers")
        return tuple(i for i in range(layers) if not listed[i])
    interval = max(1, config.get("no_rope_layer_interval", int, 4))
    return tuple(range(interval - 1, layers, interval))


def _window(model_type: str, config: Config) -> dict[str, Any]:
    """`window` and the layers that have it, by the family's rule or as `layer_types` lists them."""
    layers = range(config.get("num_hidden_layers", int))
    window = config.get("sliding_window", int, 0)
    asked = config.get("use_sliding_window", bool, False)
    if asked and model_type not in _ASKED:
        raise Unsupported(
            f"{config.where}: use_sliding_window is true, which {model_type} does not have"
        )
    if (asked or model_type in _ALWAYS) and config.values.get("sliding_window") == 0:
        raise DamagedFile(
            f"{config.where}: sliding_window is 0; it must be above 0, or null for none"
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
    if model_type == "smollm3":
        return layer in _no_rope(config)
    if model_type == "gemma3_text":
        return (layer + 1) % max(1, config.get("sliding_window_pattern", int, 6)) != 0
    return model_type in (*_ALWAYS, "qwen3_moe")


def _listed(config: Config, kinds: list[Any], layers: int) -> tuple[int, ...]:
    if other := sorted({str(kind) for kind in kinds} - {SLIDING, FULL}):
        raise Unsupported(
            f"{config.where}: layer_types has {other[0][:60]!r}; supported: {FULL}, {SLIDING}"
        )
    if len(kinds) < layers:
        raise DamagedFile(f"{config.where}: layer_types has {len(kinds)} of {layers} layers")
    return tuple(i for i in range(layers) if kinds[i] == SLIDING)


def config_entries(spec: Any) -> dict[str, Any]:
    """Entries of a config.json that `family_fields` reads back as they are in a ModelSpec."""
    layers = range(spec.layers)
    entries: dict[str, Any] = {
        "attention_bias": set(_ATTENTION) <= set(spec.biases),
        "mlp_bias": set(_MLP) <= set(spec.biases),
        "sliding_window": spec.window or None,
    }
    if spec.model_type in _ASKED:
        entries["use_sliding_window"] = bool(spec.windowed)
    if spec.model_type in _LISTED:
        entries["layer_types"] = [SLIDING if i in spec.windowed else FULL for i in layers]
    if spec.model_type == "gemma3_text":
        entries["hidden_activation"] = "gelu_pytorch_tanh"
        entries["query_pre_attn_scalar"] = spec.attention_scalar
        entries["rope_local_base_freq"] = spec.local_rope_theta
    if spec.model_type == "qwen3_moe":
        entries |= {
            "num_experts": spec.experts,
            "num_experts_per_tok": spec.experts_per_token,
            "moe_intermediate_size": spec.expert_intermediate,
            "norm_topk_prob": spec.experts_normed,
            "mlp_only_layers": list(spec.dense_layers),
        }
    if spec.model_type == "smollm3":
        entries["no_rope_layers"] = [int(i not in spec.no_rope) for i in layers]
    return entries
