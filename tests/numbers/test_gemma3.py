"""Gemma-3-270M against transformers in f32 on the weights that the `gguf` package dequantises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import Tokenizer
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tests.data import gemma3_gguf, gemma3_tokenizer_dir
from tests.numbers import measure, oracle
from tests.numbers.models import Compiled

pytestmark = [pytest.mark.network, pytest.mark.slow]

_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_WHOLE = {"token_embd": "embed_tokens", "output_norm": "norm"}


def gemma_from_gguf(path: Path) -> Any:
    """The model in a .gguf file, dequantised to f32; files keep norms' weights with one added."""
    reader = GGUFReader(path)

    def field(key: str) -> Any:
        return reader.get_field(f"gemma3.{key}").contents()

    config = Gemma3TextConfig(
        hidden_size=field("embedding_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        head_dim=field("attention.key_length"),
        intermediate_size=field("feed_forward_length"),
        vocab_size=262144,
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        sliding_window=field("attention.sliding_window"),
        query_pre_attn_scalar=256,
    )
    state = {}
    for tensor in reader.tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        name = tensor.name.removesuffix(".weight")
        if name not in _WHOLE:
            _, layer, part = name.split(".")
            name = f"layers.{layer}.{_PARTS[part]}"
        else:
            name = _WHOLE[name]
        state[f"model.{name}.weight"] = torch.from_numpy(values - (values.ndim == 1))
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config)
    del model
    model = Gemma3ForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm_head.weight"], (missing, unexpected)
    return model.float().eval()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiled = Compiled(tmp_path_factory.mktemp("gemma3"))
    yield compiled
    compiled.close()


@pytest.fixture(scope="module")
def model() -> Any:
    return gemma_from_gguf(gemma3_gguf())


@pytest.fixture(scope="module")
def text(models: Compiled) -> measure.Tokens:
    rt = models.load(gemma3_gguf(), weights="bf16", max_seq_len=1024)
    tokenizer = Tokenizer.from_file(str(rt.files.path / "tokenizer.json"))
    return np.array(tokenizer.encode(measure.TEXT).ids[:700], np.int32)


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_teacher_forced_agreement(
    models: Compiled, model: Any, text: measure.Tokens, weights: str
) -> None:
    """Over 700 tokens, past the window of 512."""
    rt = models.load(gemma3_gguf(), weights=weights, max_seq_len=1024)
    score = measure.compare(text, oracle.all_logits(model, text), measure.forced(rt, text))
    assert score.agreement >= {"bf16": 0.98, "int8": 0.94}[weights]
    assert score.perplexity == pytest.approx(score.oracle_perplexity, rel=0.02)


def test_greedy_answer_past_the_window(models: Compiled, model: Any, text: measure.Tokens) -> None:
    rt = models.load(gemma3_gguf(), weights="bf16", max_seq_len=1024)
    prompt = text[:480]
    answer = measure.answer(rt, prompt, 60)
    found = measure.judged(model, prompt, answer)
    assert all(difference.gap < 0.3 for difference in found), found
    same = found[0].position if found else len(answer)
    np.testing.assert_array_equal(answer[:same], oracle.generate(model, prompt, same or 1)[:same])


def test_chiplets_and_chunks_give_the_same_bits(models: Compiled, text: measure.Tokens) -> None:
    rt = models.load(gemma3_gguf(), weights="int8", max_seq_len=1024)
    expected = list(measure.forced(rt, text[:600]))
    for chiplets, steps in ((1, [128] * 4 + [60, 1, 1]), (3, [500, 40])):
        rt = models.load(
            gemma3_gguf(), weights="int8", max_seq_len=1024, chiplets=chiplets, prefill_chunk=512
        )
        state = measure.fresh(rt)
        for step in steps:
            ours = measure.scores(rt, state, text[state.past : state.past + step])
            assert np.array_equal(ours, expected[state.past - 1])


TEXTS = [
    measure.TEXT,
    "Hello world",
    "  two spaces, and   three\n\n\nnewlines\t\ttabs ",
    "def f(x):\n    return x ** 2  # squared\n",
    "naïve café — 東京へ行きました。 Привет! 🙂👩‍👩‍👧 \u0001\x7f",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "1234567890 0x7f 3.14159",
    "",
]


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_the_tokenizer_is_the_published_one(models: Compiled, number: int) -> None:
    """Token for token as Gemma 3's own tokenizer.json, and back to the text."""
    rt = models.load(gemma3_gguf(), weights="bf16", max_seq_len=1024)
    ours = Tokenizer.from_file(str(rt.files.path / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(gemma3_tokenizer_dir() / "tokenizer.json"))
    text = TEXTS[number]
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.encode(text).ids == [2, *ids]
