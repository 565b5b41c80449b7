"""Whole models in .gguf files, written by the reference package, against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dielet.checkpoint import open_checkpoint, open_config
from dielet.checkpoint.gguf_split import GgufModel
from dielet.errors import DamagedFile, Unsupported
from dielet.image import open_directory
from tests.tiny import CLASSES, make

from . import greedy
from .make import interleaved

MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
       "norm_topk_prob": True}  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
# A block's float16 numbers by byte: drawn at random like all of it, they would be of any size.
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
          "IQ4_NL": (0,), "IQ4_XS": (0,)}  # fmt: skip
# The same spread for every type: what a block's numbers are multiplied by.
SIZES = {"Q2_K": 6e-3, "Q3_K": 1e-3, "Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 5e-5, "IQ4_NL": 1e-3,
         "IQ4_XS": 3e-5}  # fmt: skip


def random_blocks(kind: str, N: int, K: int, rng: np.random.Generator) -> np.ndarray:
    block = gguf.GGMLQuantizationType[kind]
    weights, nbytes = gguf.GGML_QUANT_SIZES[block]
    raw = rng.integers(0, 256, (N * K // weights, nbytes), np.uint8)
    for i, place in enumerate(HALVES[kind]):
        size = SIZES[kind] * (1 if i == 0 else {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}[kind])
        d = (size * rng.uniform(0.5, 1, len(raw))).astype(np.float16)
        raw[:, place : place + 2] = d[:, None].view(np.uint8)
    return raw.reshape(N, -1)


def write(
    folder: Path, arch: str, model_type: str, kinds: dict[str, str], split: int = 0, **sizes: Any
) -> tuple[Path, Any]:
    """A tiny model in a .gguf file, its linears of the type that `kinds` has for a part of their
    name; and transformers' model with the dequantised weights, rounded to bfloat16, in f32."""
    rng = np.random.default_rng(1)
    source = folder / "source"
    make(source, model_type, spread=4.0, **sizes)
    config = json.loads((source / "config.json").read_text())
    tensors = {n: t.float().numpy() for n, t in load_file(source / "model.safetensors").items()}
    layers = config["num_hidden_layers"]
    family = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(family, layers)
    path = folder / "m.gguf"
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    if model_type == "qwen3_moe":
        writer.add_expert_count(sizes["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    plain = dict(tensors)
    stacked: dict[str, list[str]] = {}
    for name in tensors:
        stem = name.rpartition(".")[0]
        before, experts, after = stem.partition(".experts.")
        whole = f"{before}.experts.{after.partition('.')[2]}" if experts else stem
        stacked.setdefault(whole, []).append(name)
    for stem, members in stacked.items():
        members.sort(key=lambda name: int(name.split(".experts.")[1].split(".")[0])
                     if ".experts." in name else 0)  # fmt: skip
        kind = next((k for part, k in kinds.items() if part in stem), "F32")
        values = np.stack([tensors[name] for name in members])
        raw, plain_values = values, values
        if kind in HALVES:
            N, K = values.shape[-2:]
            raw = np.stack([random_blocks(kind, N, K, rng) for _ in members])
            block = gguf.GGMLQuantizationType[kind]
            plain_values = np.stack([gguf.quants.dequantize(r, block) for r in raw])
        elif kind != "F32":
            block = gguf.GGMLQuantizationType[kind]
            raw = np.stack([gguf.quants.quantize(v, block) for v in values])
            plain_values = np.stack([gguf.quants.dequantize(r, block) for r in raw])
        plain |= dict(zip(members, plain_values, strict=True))
        if model_type == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"]
            raw = interleaved(raw[0], heads)[None]
        raw = raw if ".experts." in stem else raw[0]
        target = f"{names.get_name(stem)}.{members[0].rpartition('.')[2]}"
        if kind == "F32":
            writer.add_tensor(target, np.ascontiguousarray(raw))
        else:
            writer.add_tensor(target, np.ascontiguousarray(raw), raw_dtype=block)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    other = folder / "plain"
    other.mkdir()
    for file in ("config.json", "generation_config.json"):
        shutil.copy(source / file, other)
    rounded = {n: torch.from_numpy(np.ascontiguousarray(a)).to(torch.bfloat16)
               for n, a in plain.items()}  # fmt: skip
    save_file(rounded, other / "model.safetensors")
    model = CLASSES[model_type][1].from_pretrained(other, dtype=torch.float32).eval()
    return path, model


K_QUANTS = {"q_proj": "Q2_K", "k_proj": "Q3_K", "v_proj": "IQ4_NL", "o_proj": "IQ4_XS",
            "gate_proj": "Q5_K", "up_proj": "Q4_K", "down_proj": "Q6_K"}  # fmt: skip


@pytest.mark.parametrize(("arch", "model_type"), [("llama", "llama"), ("qwen3", "qwen3")])
def test_every_other_type_gives_the_tokens_of_transformers(tmp_path, arch, model_type):
    path, model = write(tmp_path, arch, model_type, K_QUANTS, **WIDE)
    found = {entry.block.name for entry in GgufModel(path).entries.values()}
    assert found == {"F32", *K_QUANTS.values()}
    greedy.check(path, tmp_path / "out", model, weights="bf16")


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_mixture_gives_the_tokens_of_transformers(tmp_path, kind):
    kinds = {"_proj": kind}
    path, model = write(tmp_path, "qwen3moe", "qwen3_moe", kinds, split=9, **MOE)
    first = next(tmp_path.glob("m-00001-of-*.gguf"))
    assert not path.exists() and open_config(first).model_type == "qwen3_moe"
    greedy.check(first, tmp_path / "out", model, weights="bf16")


def test_experts_are_the_same_as_in_a_directory(tmp_path):
    path, _ = write(tmp_path, "qwen3moe", "qwen3_moe", {}, **MOE)
    ours, theirs = open_checkpoint(path), open_checkpoint(tmp_path / "source")
    assert ours.names() == theirs.names()
    for name in ours.names():
        assert np.array_equal(ours.tensor(name).array(), theirs.tensor(name).array()), name
    for field in ours.spec.__struct_fields__:
        if field not in ("name", "eos_ids", "bos_id", "windowed", "window"):
            assert getattr(ours.spec, field) == getattr(theirs.spec, field), field


def test_blocks_of_experts_are_taken_over_exactly(tmp_path):
    path, _ = write(tmp_path, "qwen3moe", "qwen3_moe", {"experts": "Q4_0"}, **MOE)
    checkpoint = open_checkpoint(path)
    name = "model.model.layers.1.mlp.experts.down_proj.weight"
    source = checkpoint.tensor(name)
    assert source.shape == (6 * 64, 96) and source.exact_format is not None
    assert source.exact_format.name == "int4g32"
    raw = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_down_exps.weight")
    expected = gguf.quants.dequantize(raw.data, raw.tensor_type).reshape(source.shape)
    assert np.array_equal(source.array(), expected)


def test_mixtures_of_other_architectures_are_refused(tmp_path):
    path, _ = write(tmp_path, "qwen3moe", "qwen3_moe", {}, **MOE)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"qwen3moe", b"qwen2moe"))
    with pytest.raises(Unsupported, match="architecture 'qwen2moe' is not supported; supported: "):
        open_checkpoint(path)
    few = content.replace(b"blk.1.ffn_down_exps.weight", b"blk.1.ffn_down_expx.weight")
    path.write_bytes(few)
    with pytest.raises(DamagedFile, match=r"1 missing: blk\.1\.ffn_down_exps\.weight; 1 unexpect"):
        open_checkpoint(path)


def test_int8_keeps_what_it_can_hold(tmp_path):
    path, _ = write(tmp_path, "llama", "llama", {"_proj": "IQ4_NL"}, **WIDE)
    from dielet.image import CompileOptions, compile_model

    compile_model(path, tmp_path / "out", CompileOptions(max_seq_len=128))
    manifest = open_directory(tmp_path / "out").manifest
    assert manifest.weights == "int8" and manifest.formats == {"int8g32": 14}
