"""The same bits whatever the chiplets, threads, chunks, rungs, and however often it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dielet.host import Runtime
from tests.numbers import measure
from tests.numbers.models import Tiny

LENGTH = 300
LADDER = (128, 256, 384)
TOKENS = np.random.default_rng(5).integers(0, 331, LENGTH).astype(np.int32)

# Eleven panels of feed-forward, six of the hidden size, three KV heads: no chiplet count fits all.
SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 352,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
}
# Weights, and after a stroke the number format of the cache if it is not bf16.
MODELS = [("qwen3", "bf16"), ("llama", "int8"), ("qwen3", "int4"), ("qwen3", "bf16/int8")]

pytestmark = pytest.mark.parametrize(("model_type", "weights"), MODELS)


def load(tiny: Tiny, model_type: str, weights: str, threads: int = 2, **more: Any) -> Runtime:
    checkpoint, _ = tiny.make(model_type, **SIZES)
    weights, _, kv = weights.partition("/")
    options = {"chiplets": 1, "kv_ladder": LADDER, "prefill_chunk": 128, **more}
    return tiny.load(checkpoint, threads=threads, weights=weights, kv=kv or None, **options)


def one_by_one(tiny: Tiny, model_type: str, weights: str) -> measure.F32:
    """f32 [LENGTH, vocab]: what one chiplet on one thread says, fed one token at a time."""
    rt = load(tiny, model_type, weights, threads=1)
    return np.stack(list(measure.one_by_one(rt, TOKENS)))


def assert_same(rt: Runtime, steps: list[int], expected: measure.F32) -> None:
    state = measure.fresh(rt)
    for step in steps:
        ours = measure.scores(rt, state, TOKENS[state.past : state.past + step])
        same = ours.view(np.uint32) == expected[state.past - 1].view(np.uint32)
        assert same.all(), f"{(~same).sum()} logits differ at {state.past} after steps {steps}"
    assert state.past == LENGTH


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chiplets", [1, 2, 3, 4, 8])
def test_chiplets_and_threads(
    tiny: Tiny, model_type: str, weights: str, chiplets: int, threads: int
) -> None:
    expected = one_by_one(tiny, model_type, weights)
    rt = load(tiny, model_type, weights, threads, chiplets=chiplets)
    assert rt.threads == threads
    assert_same(rt, [1] * 20 + [128, 1, 100, 1, 50], expected)


def test_repeated_runs(tiny: Tiny, model_type: str, weights: str) -> None:
    expected = one_by_one(tiny, model_type, weights)
    rt = load(tiny, model_type, weights, threads=3, chiplets=4)
    for _ in range(5):
        assert_same(rt, [128, 1, 1, 128, *[1] * 42], expected)


@pytest.mark.parametrize("chunk", [16, 64, 128, 256])
def test_chunked_equals_unchunked(tiny: Tiny, model_type: str, weights: str, chunk: int) -> None:
    expected = one_by_one(tiny, model_type, weights)
    rt = load(tiny, model_type, weights, chiplets=2, prefill_chunk=chunk)
    full = [chunk] * (LENGTH // chunk)
    assert_same(rt, [*full, LENGTH - sum(full)], expected)
    for seed in range(4):
        assert_same(rt, measure.splits(LENGTH, seed, chunk), expected)


def test_every_rung_equals_the_largest(tiny: Tiny, model_type: str, weights: str) -> None:
    ladder = load(tiny, model_type, weights, chiplets=2)
    largest = load(tiny, model_type, weights, chiplets=2, kv_ladder=LADDER[-1:])
    steps = [128, *[1] * 20, 120, *[1] * 32]
    here, there, rungs = measure.fresh(ladder), measure.fresh(largest), set()
    for step in steps:
        tokens = TOKENS[here.past : here.past + step]
        ours, theirs = measure.scores(ladder, here, tokens), measure.scores(largest, there, tokens)
        assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
        rungs.add(measure.rung(here))
        assert measure.rung(there) == LADDER[-1]
    assert rungs == set(LADDER)


def test_batch_and_all_logits(tiny: Tiny, model_type: str, weights: str) -> None:
    """Rows that share a step with others, in one sequence or in several, do not feel them."""
    expected = one_by_one(tiny, model_type, weights)
    rt = load(tiny, model_type, weights, chiplets=2, batch_sizes=(1, 4))
    states = [measure.fresh(rt) for _ in range(4)]
    for state, length in zip(states, (1, 97, 128, 250), strict=True):
        for lo in range(0, length, 128):
            rt.forward(state, TOKENS[lo : min(length, lo + 128)], want_logits=False)
    for _ in range(40):
        tokens = np.array([TOKENS[state.past] for state in states], np.int32)
        for state, logits in zip(states, rt.forward_batch(states, tokens), strict=True):
            assert np.array_equal(logits.values, expected[state.past - 1])
    state = measure.fresh(rt)
    while state.past < 160:
        lo = state.past
        rows = rt.forward_all(state, TOKENS[lo : lo + 16])
        assert np.array_equal(np.stack([row.values for row in rows]), expected[lo : lo + 16])
