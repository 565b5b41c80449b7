"""The independent oracle: transformers in f32, with weights that the `gguf` package dequantises.

Nothing of dielet is used here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {"token_embd": "embed_tokens", "output_norm": "norm"}


def llama_from_gguf(path: Path) -> LlamaForCausalLM:
    """The tied llama in a .gguf file, dequantised to f32."""
    reader = GGUFReader(path)

    def field(key: str) -> Any:
        return reader.get_field(f"llama.{key}").contents()

    tensors = {t.name.removesuffix(".weight"): t for t in reader.tensors}
    assert "output" not in tensors, "the head is the embedding"
    config = LlamaConfig(
        hidden_size=field("embedding_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        intermediate_size=field("feed_forward_length"),
        vocab_size=field("vocab_size"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_theta=field("rope.freq_base"),
        tie_word_embeddings=True,
    )
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for name, tensor in tensors.items():
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        part = name.rsplit(".", 1)[-1]
        if part in heads:
            values = _unpermuted(values, heads[part])
        state[_hf_name(name)] = torch.from_numpy(values)
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm_head.weight"], (missing, unexpected)
    return model.float().eval()


def _hf_name(name: str) -> str:
    if name in _WHOLE:
        return f"model.{_WHOLE[name]}.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_PARTS[part]}.weight"


def _unpermuted(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo what llama.cpp's converter does to q and k: halves of a head side by side again."""
    pairs = weights.reshape(heads, -1, 2, weights.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weights.shape))


def all_logits(model: Any, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """f32 [n, vocab]: the scores after each of the tokens."""
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    scores: NDArray[np.float32] = logits.numpy()
    return scores


def generate(model: Any, prompt: NDArray[np.int32], new: int) -> NDArray[np.int32]:
    """The `new` tokens of transformers' own greedy answer, going on after EOS."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new,
        eos_token_id=-1,
        pad_token_id=0,
    )
    return answer[0, len(prompt) :].numpy().astype(np.int32)
