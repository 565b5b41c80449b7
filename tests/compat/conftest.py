"""Tiny models that can be told apart from noise, compiled once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.compat.tiny import Pair, words
from tests.tiny import make


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Pair]]:
    """model_type and compile options -> transformers' model and ours, with the same weights."""
    from dielet.compat.transformers import DieletForCausalLM

    folder = tmp_path_factory.mktemp("pairs")
    made: dict[str, Pair] = {}
    sources: dict[str, Any] = {}

    def pair(model_type: str = "qwen3", **options: Any) -> Pair:
        key = f"{model_type}{sorted(options.items())}"
        if key not in made:
            if model_type not in sources:
                source = folder / model_type
                sources[model_type] = make(source, model_type, spread=4.0, eos_token_id=None)
                words().save_pretrained(source)
            given = {"max_seq_len": 512, "kv_ladder": (64, 512), "prefill_chunk": 32, **options}
            out = folder / f"compiled{len(made)}"
            ours = DieletForCausalLM.from_pretrained(folder / model_type, out=out, **given)
            made[key] = Pair(folder / model_type, sources[model_type], ours)
        return made[key]

    yield pair
    for each in made.values():
        each.ours.close()
