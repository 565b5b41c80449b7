"""Odd sizes are refused by name; the smallest that are taken give the numbers of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dielet.errors import Unsupported
from dielet.host import load_runtime
from dielet.image import compile_model
from tests.models import QWEN, options, plan
from tests.tiny import make


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden": 80}, "hidden size is 80"),
        ({"intermediate": 100}, "intermediate size is 100"),
        ({"head_dim": 40}, "head size is 40"),
        ({"head_dim": 16, "heads": 3, "kv_heads": 1}, "times head size is 48"),
        ({"head_dim": 16, "heads": 4, "kv_heads": 1}, "KV heads times head size is 16"),
    ],
)
def test_odd_sizes_are_refused(change: dict[str, int], complaint: str) -> None:
    with pytest.raises(Unsupported, match=complaint):
        plan(msgspec.structs.replace(QWEN, **change), weights="bf16")


@pytest.mark.parametrize(
    "sizes",
    [
        {"head_dim": 16, "num_key_value_heads": 2},
        {"head_dim": 48, "num_attention_heads": 4, "num_key_value_heads": 4},
        {"hidden_size": 96, "intermediate_size": 32, "head_dim": 80},
        {"head_dim": 112, "vocab_size": 333},
    ],
)
def test_small_and_unusual_sizes(tmp_path: Path, sizes: dict[str, Any]) -> None:
    oracle = make(tmp_path / "hf", "qwen3", **sizes)
    out = compile_model(tmp_path / "hf", tmp_path / "m", options(weights="bf16", chiplets=2))
    runtime = load_runtime(out)
    ids = (np.arange(24) * 17 % 331).astype(np.int32)
    state = runtime.new_state()
    runtime.forward(state, ids[:16])
    found = [runtime.forward(state, ids[n : n + 1]).values.copy() for n in range(16, 24)]
    runtime.close()
    with torch.no_grad():
        expected = oracle(torch.tensor(ids[None].astype(np.int64))).logits[0, 16:].numpy()
    spread = expected.max() - expected.min()
    assert np.abs(np.array(found) - expected).max() < 0.02 * spread
