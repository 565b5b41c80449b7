"""NaN and infinity are an error that says so, never a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from dielet.errors import NumericError
from dielet.host import load_runtime
from dielet.image import CompileOptions, compile_model
from tests.numbers import measure
from tests.numbers.models import Tiny

TOKENS = np.arange(20, dtype=np.int32)
HUGE = 3e38  # finite in bf16 and f32; not much more can be added to it
SIZES: dict[str, Any] = {"tie_word_embeddings": False}


def poisoned(tiny: Tiny, folder: Path, tensor: str, index: Any, value: float) -> Path:
    """A copy of the tiny checkpoint with some numbers of one tensor replaced."""
    checkpoint, _ = tiny.make("qwen3", **SIZES)
    weights = load_file(checkpoint / "model.safetensors")
    weights[tensor][index] = value
    (folder / "config.json").write_text((checkpoint / "config.json").read_text())
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_not_compiled(
    tiny: Tiny, tmp_path: Path, weights: str, value: float
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    checkpoint = poisoned(tiny, tmp_path, name, (5, 7), value)
    with pytest.raises(NumericError, match=r"layers\.1\.mlp\.up_proj.*NaN or infinite"):
        compile_model(checkpoint, tmp_path / "out", CompileOptions(weights=weights))
    assert not (tmp_path / "out").exists()


ALL = slice(None)
LAYER = "model.layers.{}.{}.weight"
OVERFLOWS = [
    pytest.param("lm_head.weight", 200, HUGE, "bf16", id="one-logit"),
    pytest.param("lm_head.weight", 330, -HUGE, "bf16", id="last-logit"),
    pytest.param(LAYER.format(0, "self_attn.v_proj"), ALL, HUGE, "bf16", id="values"),
    pytest.param(LAYER.format(0, "self_attn.q_norm"), ALL, HUGE, "bf16", id="queries"),
    pytest.param(LAYER.format(1, "self_attn.k_norm"), ALL, HUGE, "int8", id="keys"),
    pytest.param(LAYER.format(1, "mlp.down_proj"), ALL, HUGE, "bf16", id="feed-forward"),
    # Activations that overflow on their way to int8 must not come back as numbers.
    pytest.param(LAYER.format(0, "input_layernorm"), ALL, HUGE, "int8", id="attention-norm"),
    pytest.param(LAYER.format(1, "post_attention_layernorm"), 3, HUGE, "int4", id="norm-weight"),
    pytest.param("model.norm.weight", ALL, HUGE, "int8", id="head-norm"),
]


@pytest.mark.parametrize("steps", [[1], [20], [7, 1, 12]])
@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize(("tensor", "index", "value", "weights"), OVERFLOWS)
def test_overflow_at_run_time_is_an_error(
    tiny: Tiny,
    tmp_path: Path,
    tensor: str,
    index: Any,
    value: float,
    weights: str,
    kv: str,
    steps: list[int],
) -> None:
    checkpoint = poisoned(tiny, tmp_path, tensor, index, value)
    options = CompileOptions(weights=weights, kv=kv, chiplets=4)
    rt = load_runtime(compile_model(checkpoint, tmp_path / "out", options))
    state = measure.fresh(rt)
    with pytest.raises(NumericError, match=r"\d+ of 331 logits are NaN or infinite"):
        for step in steps:
            rt.forward(state, TOKENS[state.past : state.past + step])
    rt.close()


@pytest.mark.parametrize("chiplets", [1, 4])
@pytest.mark.parametrize(
    ("tensor", "index", "value"),
    [
        # The sums are finite, their squares are not: norms of them are 0, and all that follows.
        pytest.param("model.embed_tokens.weight", ALL, HUGE, id="overflow"),
        pytest.param("model.norm.weight", ALL, 0.0, id="norm"),
        pytest.param("lm_head.weight", ALL, 0.0, id="head"),
    ],
)
def test_logits_that_are_all_zero_are_an_error(
    tiny: Tiny, tmp_path: Path, tensor: str, index: Any, value: float, chiplets: int
) -> None:
    checkpoint = poisoned(tiny, tmp_path, tensor, index, value)
    options = CompileOptions(weights="bf16", chiplets=chiplets)
    rt = load_runtime(compile_model(checkpoint, tmp_path / "out", options))
    for step in (1, 5):
        with pytest.raises(NumericError, match="all 331 logits are 0"):
            rt.forward(measure.fresh(rt), TOKENS[:step])
    with pytest.raises(NumericError, match="all 331 logits are 0"):
        rt.forward_all(measure.fresh(rt), TOKENS[:5])
    rt.close()


@pytest.mark.parametrize(("weights", "kv"), [("bf16", "bf16"), ("int8", "bf16"), ("bf16", "int8")])
@pytest.mark.parametrize("step", [1, 5])
def test_nan_in_the_used_cache_is_seen(tiny: Tiny, weights: str, kv: str, step: int) -> None:
    """So the NaN that every other test leaves in the unused cache would be, if it were read."""
    checkpoint, _ = tiny.make("qwen3", **SIZES)
    rt = tiny.load(checkpoint, weights=weights, kv=kv, chiplets=4, max_seq_len=512)
    state = measure.fresh(rt)
    rt.forward(state, TOKENS[:10])
    state.kv[:] = 0xFF
    with pytest.raises(NumericError, match="NaN or infinite"):
        rt.forward(state, TOKENS[10 : 10 + step])
