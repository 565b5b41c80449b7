"""Small checkpoints written by the reference packages, for the readers to read."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from dielet.checkpoint.names import (
    gguf_name,
    hugging_face_name,
    tensor_shapes,
)
from dielet.checkpoint.spec import ModelSpec

SIZES: dict[str, Any] = {
    "hidden": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "intermediate": 96,
    "vocab": 70,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position": 512,
}


def spec(model_type: str = "llama", tied: bool = True, **changes: Any) -> ModelSpec:
    """A tiny model."""
    fields = {**SIZES, "model_type": model_type, "tied": tied, "qk_norm": model_type == "qwen3"}
    if model_type == "qwen2":
        fields["biases"] = tuple(f"self_attn.{name}_proj" for name in "qkv")
    return ModelSpec(**{**fields, **changes})


def weights(of: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors by canonical name."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in tensor_shapes(of).items()}


def config(of: ModelSpec) -> dict[str, Any]:
    """A config.json as older versions of transformers write it."""
    return {
        "model_type": of.model_type,
        "hidden_size": of.hidden,
        "num_hidden_layers": of.layers,
        "num_attention_heads": of.heads,
        "num_key_value_heads": of.kv_heads,
        "head_dim": of.head_dim,
        "intermediate_size": of.intermediate,
        "vocab_size": of.vocab,
        "rms_norm_eps": of.norm_eps,
        "rope_theta": of.rope_theta,
        "max_position_embeddings": of.max_position,
        "tie_word_embeddings": of.tied,
        "hidden_act": "silu",
    }


def hugging_face(
    folder: Path, of: ModelSpec, tensors: dict[str, np.ndarray], **changes: Any
) -> Path:
    """A directory with one model.safetensors; `changes` replace entries of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config(of), **changes}))
    renamed = {hugging_face_name(name): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    return folder


def interleaved(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama GGUF files have them: what their converter does."""
    rows, columns = tensor.shape
    halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def gguf_file(
    path: Path,
    of: ModelSpec,
    tensors: dict[str, np.ndarray],
    kind: str = "F32",
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    split: int = 0,
) -> Path:
    """A GGUF file, matrices in block format `kind`; `metadata` None removes an entry.

    `split`: in parts of so many tensors.
    """
    family = of.model_type
    writer = gguf.GGUFWriter(path, family, split_max_tensors=split)
    entries: dict[str, Any] = {
        f"{family}.block_count": of.layers,
        f"{family}.context_length": of.max_position,
        f"{family}.embedding_length": of.hidden,
        f"{family}.feed_forward_length": of.intermediate,
        f"{family}.attention.head_count": of.heads,
        f"{family}.attention.head_count_kv": of.kv_heads,
        f"{family}.attention.key_length": of.head_dim,
        f"{family}.attention.value_length": of.head_dim,
        f"{family}.attention.layer_norm_rms_epsilon": of.norm_eps,
        f"{family}.rope.freq_base": of.rope_theta,
        f"{family}.rope.dimension_count": of.head_dim,
        **(metadata or {}),
    }
    for key, value in entries.items():
        add(writer, key, value)
    block = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = interleaved(tensor, of.heads if "q_proj" in name else of.kv_heads)
        if tensor.ndim == 2 and kind != "F32":
            data = gguf.quants.quantize(tensor, block)
            writer.add_tensor(gguf_name(name), data, raw_dtype=block)
        else:
            writer.add_tensor(gguf_name(name), tensor)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add one metadata entry of the type that its Python value suggests."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
