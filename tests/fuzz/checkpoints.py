"""Readers of checkpoints: weights, configurations, tokenizers, templates, answers of the hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from dielet.checkpoint.config import config_json
from dielet.checkpoint.gguf import GgufCheckpoint
from dielet.checkpoint.hugging_face import directory_files, directory_spec
from dielet.checkpoint.names import tensor_shapes
from dielet.checkpoint.open import open_checkpoint
from dielet.checkpoint.rope import angles
from dielet.checkpoint.safetensors import SafetensorsFile
from dielet.checkpoint.spec import ModelSpec
from dielet.checkpoint.special_tokens import special_tokens
from dielet.generate.sampling import from_generation_config
from dielet.generate.template import ChatTemplate
from dielet.generate.text import GENERATION_CONFIG, Text, json_object
from dielet.generate.text import TOKENIZER_CONFIG as TOKENIZER_CONFIG_FILE
from dielet.image.names import TOKENIZER
from tests.fuzz.mutate import rewritten, scratch
from tests.fuzz.reader import Ready, file_reader

SMALL = ModelSpec(
    model_type="llama", hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32,
    vocab=12, norm_eps=1e-5, rope_theta=1e4, max_position=128, tied=False, qk_norm=False,
)  # fmt: skip
QUOTED = tuple(f'"{word}"'.encode() for word in (
    "model_type", "gemma3_text", "qwen3_moe", "smollm3", "phi3", "rope_scaling", "rope_type",
    "longrope", "yarn", "dynamic", "llama3", "factor", "text_config", "layer_types",
))  # fmt: skip


def make_safetensors() -> Ready:
    def read(path: Path) -> None:
        file = SafetensorsFile(path)
        for name, shape in file.shapes.items():
            tensor = file.tensor(name)
            if 0 < len(shape) <= 2 and 0 < tensor.N * tensor.K < 1 << 20:
                tensor.rows(0, 1)

    one = {"a": np.ones((2, 4), np.float32), "b.weight": np.zeros((3,), np.float16)}
    two = save({"a": np.ones((2, 2), np.float32)}, metadata={"format": "pt"})
    return Ready(file_reader(read, "model.safetensors"), (save(one), two, save({})))


def small_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json of a tiny model."""
    entries: dict[str, Any] = json.loads(config_json(SMALL))
    return {**entries, "model_type": model_type, **changes}


CONFIGS = tuple(
    small_config(**changes)
    for changes in (
        {},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 64}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "model_type": "mistral"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
        {"model_type": "phi3", "rope_scaling": {
            "type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
         "original_max_position_embeddings": 64},
        {"model_type": "gemma3_text", "layer_types": ["sliding_attention"],
         "query_pre_attn_scalar": 16, "rope_local_base_freq": 1e4},
        {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
        {"model_type": "smollm3", "no_rope_layers": [0], "no_rope_layer_interval": 4},
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0,
         "sliding_window": 16},
        {"model_type": "qwen3", "text_config": small_config("qwen3")},
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32,
                                 "desc_act": False, "sym": True}},
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32,
                                 "version": "gemm", "zero_point": True}},
        {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                 "weight_block_size": [128, 128]}},
    )
)  # fmt: skip


def use_spec(spec: ModelSpec) -> None:
    """What every user of a spec asks it for."""
    if spec.layers <= 4:
        tensor_shapes(spec)
    spec.rotary_frequencies()
    angles(spec.turned, spec.rope_theta, spec.rope_scaling, 32)
    config_json(spec)


def make_config() -> Ready:
    def read(path: Path) -> None:
        use_spec(directory_spec(path.parent))

    samples = tuple(json.dumps(config).encode() for config in CONFIGS)
    return Ready(file_reader(read, "config.json"), samples)


def make_beside_config(name: str, samples: Sequence[object]) -> Ready:
    """A file of a Hugging Face directory whose other files are fine."""
    folder = scratch()
    (folder / "config.json").write_text(json.dumps(CONFIGS[0]))

    def read(data: bytes) -> None:
        rewritten(folder / name, data)
        directory_spec(folder)
        files = directory_files(folder)
        special_tokens(json_object(files, TOKENIZER_CONFIG_FILE, ""), "")
        config = json_object(files, GENERATION_CONFIG, "")
        from_generation_config(config, GENERATION_CONFIG)

    return Ready(read, tuple(json.dumps(sample).encode() for sample in samples))


MESSAGES = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"})
TEMPLATES = (
    "{% for m in messages %}{{ m.role }}: {{ m.content|trim }}{% endfor %}",
    "{%- set ns = namespace(n=0) -%}{%- for m in messages[::-1] -%}{%- if loop.first -%}"
    "{{- raise_exception('no') if m.role == 'x' else m['content'] + eos_token -}}{%- endif -%}"
    "{%- set ns.n = ns.n + 1 -%}{%- endfor -%}{{ ns.n }}",
    "{% macro f(x) %}{{ x * 3 }}{% endmacro %}{{ f('a') }}{{ messages|tojson }}{{ '%3s' % 1 }}",
    "{{ strftime_now('%d') }}{% if tools %}{{ tools }}{% else %}{{ 'a'.center(9) }}{% endif %}",
)
TEMPLATE_WORDS = (
    b"{% for i in range(99999) %}", b"{% endfor %}", b"{{", b"}}", b"{%", b"%}", b"messages",
    b"|join", b"|batch(3)", b"*999999", b"**999", b"{% set x = x ~ x %}", b"{% include 'a' %}",
    b"{{ self }}", b"__class__", b".format(", b"%9999s", b"|indent(999)", b"loop", b"namespace",
    b"{% generation %}", b"|sort", b"|replace('a','aa')", b"('a'*99999)", b"{# ", b"recursive",
)  # fmt: skip


def make_template() -> Ready:
    def read(data: bytes) -> None:
        ChatTemplate(data.decode(errors="replace"), "t", {"eos_token": "</s>"}).render(MESSAGES)

    return Ready(read, tuple(template.encode() for template in TEMPLATES))


def _tokenizer(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    added = {"id": 5, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": model, **parts}  # fmt: skip


_VOCAB = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "▁": 4}
TOKENIZERS = (
    _tokenizer(
        {"type": "BPE", "vocab": _VOCAB, "merges": [["a", "b"]], "byte_fallback": False},
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        decoder={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    ),
    _tokenizer(
        {"type": "BPE", "vocab": _VOCAB, "merges": ["a b"], "unk_token": "a", "fuse_unk": True},
        normalizer={"type": "Prepend", "prepend": "▁"},
        decoder={"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    ),
    _tokenizer(
        {"type": "BPE", "vocab": _VOCAB, "merges": []},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\p{N}|[ab]+"}, "behavior": "Isolated",
             "invert": False}]},
        post_processor={"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
    ),
)  # fmt: skip
TOKENIZER_CONFIG = {
    "eos_token": {"content": "<s>"}, "bos_token": "a", "add_bos_token": True,
    "added_tokens_decoder": {"5": {"content": "<s>", "special": True}},
    "chat_template": [{"name": "default", "template": TEMPLATES[0]}],
    "extra_special_tokens": {"boi_token": "b"},
}  # fmt: skip
GENERATION = {
    "eos_token_id": [2, 3], "bos_token_id": 1, "do_sample": True, "temperature": 0.6, "top_k": 20,
    "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.1,
}  # fmt: skip


def use_tokenizer(data: bytes) -> None:
    text = Text.of({TOKENIZER: data}, "")
    if len(data) < 1 << 14:
        ids = text.encode("ab ba <s>", True)
        text.decode(ids)
        pieces = text.detokenizer()
        for token in [*ids[:8], 3]:
            pieces.push(token)
        pieces.finish()


def make_tokenizer_json() -> Ready:
    samples = tuple(json.dumps(t, ensure_ascii=False).encode() for t in TOKENIZERS)
    return Ready(use_tokenizer, samples)


def make_hub() -> Ready:
    """What a hub answers when it is asked which files a model has."""
    from dielet.checkpoint.hub_client import HubClient
    from dielet.checkpoint.hub_settings import hub_settings

    class Answer(BytesIO):
        status = 200

    client = HubClient(hub_settings(), "a/b")

    def read(data: bytes) -> None:
        client._get = lambda *_: (Answer(data), {})  # type: ignore[method-assign,assignment]
        client.listing("main")

    file = {"rfilename": "x/model.safetensors", "size": 5, "blobId": "e5", "lfs": {"sha256": "ab"}}
    listing = {"sha": "0123456789" * 4, "siblings": [file, {"rfilename": "config.json"}]}
    return Ready(read, (json.dumps(listing).encode(),))


def quantised_config(method: str) -> dict[str, Any]:
    """Of a model whose linears are GPTQ's or AWQ's."""
    return next(
        c for c in CONFIGS if c.get("quantization_config", {}).get("quant_method") == method
    )


def _quantised_tensors(method: str) -> dict[str, np.ndarray[Any, Any]]:
    """All that a model of `quantised_config(method)` has, of one word each."""
    from tests.checkpoint.make import hugging_face, weights

    folder = hugging_face(scratch() / "plain", SMALL, weights(SMALL))
    stored: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if ".layers." not in name or array.ndim == 1:
            stored[name] = array
            continue
        N, K = array.shape
        words = (K // 8, N) if method == "gptq" else (K, N // 8)
        stored[f"{stem}.qweight"] = np.full(words, 0x12345678, np.int32)
        stored[f"{stem}.qzeros"] = np.full((K // 32, N // 8), 0x77777777, np.int32)
        stored[f"{stem}.scales"] = np.ones((K // 32, N), np.float16)
        if method == "gptq":
            stored[f"{stem}.g_idx"] = (np.arange(K) // 32).astype(np.int32)
    return stored


def make_weights() -> Ready:
    """The weights of a directory whose configuration is right: GPTQ's, AWQ's and plain ones."""
    samples = [save(_quantised_tensors(method)) for method in ("gptq", "awq")]
    folders = [scratch() for _ in samples]
    for folder, method in zip(folders, ("gptq", "awq"), strict=True):
        (folder / "config.json").write_text(json.dumps(quantised_config(method)))

    def read(data: bytes) -> None:
        folder = folders[b"g_idx" not in data]
        rewritten(folder / "model.safetensors", data)
        checkpoint = open_checkpoint(folder)
        for name in checkpoint.names():
            tensor = checkpoint.tensor(name)
            if tensor.N * tensor.K < 1 << 20:
                tensor.rows(0, min(tensor.N, 2))
            for fmt in tensor.exact_formats[:1]:
                tensor.blocks(0, min(tensor.N, 2), fmt)

    return Ready(read, tuple(samples))


WEIGHT_WORDS = (
    b'"I32"', b'"F16"', b'"shape":[', b'"data_offsets":[0,', b".qweight", b".qzeros", b".scales",
    b".g_idx", b".weight", b"self_attn.q_proj", b"model.layers.0.", b"model.layers.1.",
)  # fmt: skip


def small_gguf(folder: Path) -> tuple[bytes, ...]:
    """Files as the reference package writes them: with either kind of tokenizer, and none."""
    from tests.checkpoint.make import gguf_file, weights

    byte_level = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*"abcdefgh", "ab", "Ġ", "<s>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * 10 + [3, 3], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 10, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATES[0],
    }  # fmt: skip
    pieces = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [*"abcdefgh", "ab", "▁", "<s>",
                                                                   "<0x41>"],
        "tokenizer.ggml.token_type": [1] * 10 + [3, 6],
        "tokenizer.ggml.scores": [-float(n) for n in range(12)],
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    made = []
    for metadata in (byte_level, pieces, {}):
        path = folder / "made.gguf"
        path.unlink(missing_ok=True)
        gguf_file(path, SMALL, weights(SMALL), "Q8_0", metadata)
        made.append(path.read_bytes())
    return tuple(made)


GGUF_WORDS = (
    b"llama", b"general.architecture", b"gemma3", b"llama.rope.scaling.type", b"rope_freqs.weight",
    b"general.alignment", b"\x08\x00\x00\x00", b"\x09\x00\x00\x00", b"\x04\x00\x00\x00",
    b"\x0a\x00\x00\x00",
)  # fmt: skip


def make_gguf() -> Ready:
    def read(path: Path) -> None:
        checkpoint = GgufCheckpoint(path)
        use_spec(checkpoint.spec)
        checkpoint.tokenizer_files()
        for name in checkpoint.names()[:2]:
            tensor = checkpoint.tensor(name)
            tensor.rows(0, min(tensor.N, 2))

    samples = small_gguf(scratch())
    return Ready(file_reader(read, "model.gguf"), samples)
