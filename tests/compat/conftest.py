"""Tiny models that can be told apart from noise, compiled once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dielet import paths
from tests.compat.tiny import NO_TOKENS, Pair, words
from tests.tiny import make


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Models that are compiled into the cache are not left in the user's; native code is."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "dielet").mkdir()
    for kept in ("native", "test-data", "devices"):
        paths.cache_dir(kept).mkdir(parents=True, exist_ok=True)
        (cache / "dielet" / kept).symlink_to(paths.cache_dir(kept))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield


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
                sources[model_type] = make(source, model_type, spread=4.0, **NO_TOKENS)
                words().save_pretrained(source)
            given = {"max_seq_len": 512, "kv_ladder": (64, 512), "prefill_chunk": 32, **options}
            out = folder / f"compiled{len(made)}"
            ours = DieletForCausalLM.from_pretrained(folder / model_type, out=out, **given)
            made[key] = Pair(folder / model_type, sources[model_type], ours)
        return made[key]

    yield pair
    for each in made.values():
        each.ours.close()
