"""The first layers of a model: what is compiled is what its config.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from dielet.checkpoint.config import first_layers
from dielet.compat.transformers import DieletForCausalLM
from tests.compat.test_transformers import GREEDY
from tests.compat.tiny import NO_TOKENS, prompts, words
from tests.tiny import make

SLIDING, FULL = "sliding_attention", "full_attention"
# Four layers, of which the first two are unlike the last two.
SIZES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
    "qwen3_moe": {"mlp_only_layers": [3]},
    "smollm3": {"no_rope_layers": [1, 0, 0, 1]},
    "gemma3_text": {"sliding_window": 64, "layer_types": [FULL, SLIDING, SLIDING, SLIDING]},
}


@pytest.mark.parametrize("model_type", SIZES)
@pytest.mark.parametrize("layers", [1, 2])
def test_first_layers(model_type: str, layers: int, tmp_path: Path) -> None:
    """transformers' own model of those layers, by the config.json that was written, agrees."""
    sizes = {"num_hidden_layers": 4, **SIZES[model_type], **NO_TOKENS}
    make(tmp_path / "source", model_type, spread=4.0, **sizes)
    words().save_pretrained(tmp_path / "source")
    with DieletForCausalLM.from_pretrained(
        tmp_path / "source", out=tmp_path / "m", layers=layers, max_seq_len=128, prefill_chunk=32
    ) as ours:
        assert ours.config.num_hidden_layers == ours.runtime.spec.layers == layers
        own = AutoConfig.from_pretrained(tmp_path / "m")
        theirs = AutoModelForCausalLM.from_pretrained(
            tmp_path / "source", config=own, dtype="float32"
        )
        assert len(theirs.model.layers) == layers
        inputs = prompts(1, 80)
        expected = theirs.generate(**inputs, max_new_tokens=6, **GREEDY)
        assert ours.generate(**inputs, max_new_tokens=6, **GREEDY).tolist() == expected.tolist()


def test_of_a_model_inside_of_a_larger_one() -> None:
    decoder = {"num_hidden_layers": 3, "layer_types": [FULL, SLIDING, FULL]}
    text = json.dumps({"num_hidden_layers": 9, "text_config": decoder}).encode()
    assert json.loads(first_layers(text, 2)) == {
        "num_hidden_layers": 9,
        "text_config": {"num_hidden_layers": 2, "layer_types": [FULL, SLIDING]},
    }
    for same in (3, 9):
        assert first_layers(text, same) is text, "as it was written"
    assert first_layers(b'{"n_layer": 3}', 1) == b'{"n_layer": 3}', "of a role map"
