"""Rope of kind `dynamic` beyond its trained positions, decoded token by token by both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dielet.errors import UsageError
from dielet.host import load_runtime
from dielet.image import CompileOptions, compile_model, read_manifest
from tests import tiny as transformers_models
from tests.numbers import measure

TRAINED, FACTOR = 64, 4.0
ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": FACTOR}


def one_by_one(model: torch.nn.Module, tokens: measure.Tokens) -> list[np.ndarray]:
    cache, found = None, []
    with torch.no_grad():
        for token in tokens:
            out = model(torch.tensor([[int(token)]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            found.append(out.logits[0, -1].numpy())
    return found


def test_beyond_the_trained_positions_as_in_transformers(tmp_path: Path) -> None:
    sizes = {"max_position_embeddings": TRAINED, "rope_parameters": ROPE}
    model = transformers_models.make(tmp_path / "m", "llama", spread=4.0, **sizes)
    unasked = compile_model(tmp_path / "m", tmp_path / "short", CompileOptions())
    assert read_manifest(unasked).max_seq_len == TRAINED
    longest = int(TRAINED * FACTOR)
    with pytest.raises(UsageError, match=r"max_seq_len 288 is beyond the model's 256 positions"):
        compile_model(tmp_path / "m", tmp_path / "o", CompileOptions(max_seq_len=longest + 32))
    out = compile_model(tmp_path / "m", tmp_path / "o", CompileOptions(max_seq_len=longest))

    tokens = np.random.default_rng(5).integers(3, 331, longest).astype(np.int32)
    oracle = one_by_one(model, tokens)
    plain = transformers_models.CLASSES["llama"][1].from_pretrained(
        tmp_path / "m", dtype=torch.float32, rope_parameters={**ROPE, "rope_type": "default"}
    )
    unstretched = one_by_one(plain.eval(), tokens)
    rt = load_runtime(out)
    ours = list(measure.one_by_one(rt, tokens))
    rt.close()
    errors = [measure.relative_error(a, b) for a, b in zip(oracle, ours, strict=True)]
    assert max(errors) < 0.02
    apart = [measure.relative_error(a, b) for a, b in zip(oracle, unstretched, strict=True)]
    assert max(apart[:TRAINED]) < 1e-4 and max(apart[TRAINED:]) > 0.1
