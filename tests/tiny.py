"""Tiny random models made by transformers, as checkpoints on disk and as the oracle itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}

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
    folder: Path, model_type: str, seed: int = 0, dtype: torch.dtype = torch.bfloat16, **sizes: Any
) -> Any:
    """Save a random model of `model_type` in `folder`; return it in f32, with the same values.

    Weights are spread so that logits are far apart, as in trained models.
    """
    torch.manual_seed(seed)
    config_class, model_class = CLASSES[model_type]
    model = model_class(config_class(**{**BASE, **sizes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 1.0 if "norm" in name else 1.5 / parameter.shape[-1] ** 0.5
            centre = 1.0 if "norm" in name else 0.0
            parameter.copy_(centre + spread * 0.3 * torch.randn_like(parameter)) if centre else (
                parameter.copy_(spread * torch.randn_like(parameter))
            )
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model.float().eval()
