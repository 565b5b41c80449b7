"""Tiny random models made by transformers, as checkpoints on disk and as the oracle itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

STEMS = {
    "gemma3_text": "Gemma3",
    "llama": "Llama",
    "mistral": "Mistral",
    "olmo2": "Olmo2",
    "phi3": "Phi3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "smollm3": "SmolLM3",
}
CLASSES = {
    model_type: (
        getattr(transformers, f"{stem}{'Text' * (stem == 'Gemma3')}Config"),
        getattr(transformers, f"{stem}ForCausalLM"),
    )
    for model_type, stem in STEMS.items()
}

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # not hidden / heads
    "intermediate_size": 160,
    "vocab_size": 331,  # no multiple of a panel
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def make(
    folder: Path,
    model_type: str,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    spread: float = 1.0,
    **sizes: Any,
) -> Any:
    """Save a random model of `model_type` in `folder`; return it in f32, with the same values.

    `spread` multiplies the weights of transformers' own initialisation.
    """
    torch.manual_seed(seed)
    config_class, model_class = CLASSES[model_type]
    model = model_class(config_class(**{**BASE, **sizes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # made as ones, which would hide a norm left out
                centre = 0 if model_type == "gemma3_text" else 1
                parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
            elif name.endswith(".bias"):  # made as zeros
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(parameter * spread)
    model.to(dtype).save_pretrained(folder)
    # Read back, not cast back: a cast to bfloat16 also rounds the rotary frequencies, for good.
    return model_class.from_pretrained(folder, dtype=torch.float32).eval()
