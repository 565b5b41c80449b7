"""What the architectures of GGUF files mean: the family's name elsewhere, and what files leave out.

What a file does not say is what the family's published models do.
"""

from __future__ import annotations

from typing import Any

from dielet.checkpoint.config import Entries
from dielet.errors import Unsupported

FAMILIES = {  # general.architecture: model_type
    "gemma3": "gemma3_text",
    "llama": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
}
PAIRED = ("llama", "smollm3")  # files pair neighbouring rows of q and k for the rotary embedding
_LARGEST_GEMMA3 = (
    62  # layers of the one that divides scores by hidden / heads, not by the head size
)


def gguf_fields(family: str, entries: Entries, layers: int, head_dim: int) -> dict[str, Any]:
    """The fields of ModelSpec that only some families have.  Raises Unsupported."""
    model_type = FAMILIES[family]
    window = entries.get(f"{family}.attention.sliding_window", int, 0)
    if window and model_type not in ("gemma3_text", "phi3"):
        raise Unsupported(f"{entries.where}: sliding-window attention in {family} is not supported")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if entries.get(f"{family}.{key}", float, 0.0):
            raise Unsupported(f"{entries.where}: {family}.{key} is not supported")
    turned = entries.get(f"{family}.rope.dimension_count", int, head_dim)
    if turned != head_dim and model_type != "phi3":
        raise Unsupported(
            f"{entries.where}: {family}.rope.dimension_count is {turned}, which must equal the "
            f"head size {head_dim}"
        )
    fields: dict[str, Any] = {
        "qk_norm": model_type in ("gemma3_text", "olmo2", "qwen3", "qwen3_moe"),
        "rotary_dim": 0 if turned == head_dim else turned,
    }
    if window:
        sliding = [i for i in range(layers) if model_type == "phi3" or (i + 1) % 6]
        fields |= {"window": window, "windowed": tuple(sliding)}
    if model_type == "qwen3_moe":
        fields |= {
            "experts": entries.get(f"{family}.expert_count", int),
            "experts_per_token": entries.get(f"{family}.expert_used_count", int),
            "expert_intermediate": entries.get(f"{family}.expert_feed_forward_length", int),
            "experts_normed": True,
        }
    if model_type == "smollm3":
        fields["no_rope"] = tuple(range(3, layers, 4))
    if model_type == "gemma3_text":
        hidden = entries.get(f"{family}.embedding_length", int)
        heads = entries.get(f"{family}.attention.head_count", int)
        large = layers == _LARGEST_GEMMA3 and heads > 0
        fields |= {
            "activation": "gelu_tanh",
            "embedding_scale": max(hidden, 0) ** 0.5,
            "attention_scalar": hidden / heads if large else float(head_dim),
            "local_rope_theta": entries.get(f"{family}.rope.freq_base_swa", float, 1e4),
        }
    return fields
