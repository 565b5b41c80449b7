"""The models that are measured: tiny random ones, and SmolLM2 with what it compiles to."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from dielet.host import Runtime, load_runtime
from dielet.image import CompileOptions, compile_model
from tests.data import smollm2_gguf
from tests.numbers import measure, oracle
from tests.tiny import make

THREADS = 2

ROPE: dict[str, dict[str, Any]] = {
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
    },
}

# Random models: `model_type` and what differs from tests/tiny.py.
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "qwen3-untied-wide-heads": (
        "qwen3",
        {"tie_word_embeddings": False, "head_dim": 128, "hidden_size": 96},
    ),
    "qwen3-yarn": ("qwen3", {"rope_parameters": ROPE["yarn"]}),
    "llama": ("llama", {}),
    "llama-untied-deep": (
        "llama",
        {
            "tie_word_embeddings": False,
            "num_hidden_layers": 6,
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
        },
    ),
    "llama-llama3-rope": ("llama", {"rope_parameters": ROPE["llama3"], "head_dim": 64}),
}


class Compiled:
    """What checkpoints compile to, loaded; each combination of options once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[tuple[str, int], Runtime] = {}

    def load(self, checkpoint: Path, threads: int = THREADS, **options: Any) -> Runtime:
        name = "-".join([checkpoint.name, *(f"{k}={v}" for k, v in sorted(options.items()))])
        out = self.folder / name.replace(" ", "")
        if not out.exists():
            compile_model(checkpoint, out, CompileOptions(**options))
        if (name, threads) not in self._loaded:
            self._loaded[name, threads] = load_runtime(out, threads=threads)
        return self._loaded[name, threads]

    def close(self) -> None:
        for runtime in self._loaded.values():
            runtime.close()
        self._loaded.clear()


class Tiny(Compiled):
    """Random models of transformers, with weights spread so that attention has something to say."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._made: dict[str, tuple[Path, Any]] = {}

    def make(self, model_type: str, **sizes: Any) -> tuple[Path, Any]:
        """The checkpoint in bfloat16, and transformers' model with these weights in f32."""
        key = repr((model_type, sorted(sizes.items())))
        if key not in self._made:
            path = self.folder / f"{model_type}{len(self._made)}"
            self._made[key] = path, make(path, model_type, spread=4.0, **sizes)
        return self._made[key]


class SmolLM2(Compiled):
    """SmolLM2-135M-Instruct out of its .gguf file, and the same in bfloat16 as a HF directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gguf = smollm2_gguf()
        self._scores: dict[tuple[str, str], measure.Score] = {}
        self._expected: dict[str, measure.Tokens] = {}

    def runtime(self, weights: str, chiplets: int = 4, kv: str = "bf16") -> Runtime:
        options = {"weights": weights, "kv": kv, "chiplets": chiplets, "max_seq_len": 4096}
        return self.load(self.gguf, **options)

    def score(self, weights: str, kv: str = "bf16") -> measure.Score:
        """The compiled .gguf file against the oracle, teacher-forced over the text."""
        if (weights, kv) not in self._scores:
            ours = measure.forced(self.runtime(weights, kv=kv), self.text)
            self._scores[weights, kv] = measure.compare(self.text, self.oracle_scores, ours)
        return self._scores[weights, kv]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.runtime("bf16").files.path / "tokenizer.json"))

    def encode(self, text: str) -> measure.Tokens:
        return np.array(self.tokenizer.encode(text).ids, np.int32)

    @cached_property
    def text(self) -> measure.Tokens:
        return self.encode(measure.TEXT)

    @cached_property
    def oracle(self) -> LlamaForCausalLM:
        return oracle.llama_from_gguf(self.gguf)

    @cached_property
    def oracle_scores(self) -> measure.F32:
        return oracle.all_logits(self.oracle, self.text)

    def expected(self, prompt: str) -> measure.Tokens:
        """The oracle's own greedy answer to one of the prompts."""
        if prompt not in self._expected:
            tokens = self.encode(measure.PROMPTS[prompt])
            self._expected[prompt] = oracle.generate(self.oracle, tokens, measure.NEW_TOKENS)
        return self._expected[prompt]

    @cached_property
    def hugging_face(self) -> Path:
        """The dequantised weights as a checkpoint in bfloat16, as Hugging Face gives them out."""
        path = self.folder / "hugging-face"
        oracle.llama_from_gguf(self.gguf).to(torch.bfloat16).save_pretrained(path)
        self.tokenizer.save(str(path / "tokenizer.json"))
        return path

    @cached_property
    def hugging_face_oracle(self) -> LlamaForCausalLM:
        return LlamaForCausalLM.from_pretrained(self.hugging_face, dtype=torch.float32).eval()
