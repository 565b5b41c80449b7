"""Every length at which something changes: chunks, rungs, the end of the context."""

from __future__ import annotations

import numpy as np
import pytest

from dielet.errors import CapacityError, UsageError
from dielet.host import Runtime
from dielet.program.select import chunks
from tests.numbers import measure, oracle
from tests.numbers.models import Tiny

FULL = 2048
CHUNK = 128
RUNGS = (512, 1024, FULL)
TOKENS = np.random.default_rng(11).integers(0, 331, FULL + CHUNK).astype(np.int32)

EDGES = [1, 2, 127, 128, 129, *(rung + d for rung in RUNGS for d in (-1, 0, 1)), FULL - 37]
RANDOM = [int(n) for n in np.random.default_rng(12).integers(1, FULL, 12)]
LENGTHS = sorted({n for n in EDGES + RANDOM if n <= FULL})

MODELS = ["qwen3", "llama"]
pytestmark = pytest.mark.parametrize("model_type", MODELS)


def load(tiny: Tiny, model_type: str) -> Runtime:
    checkpoint, _ = tiny.make(model_type)
    return tiny.load(checkpoint, weights="bf16", chiplets=4, max_seq_len=FULL)


@pytest.fixture(scope="module")
def expected(tiny: Tiny) -> dict[str, measure.F32]:
    """By model type: f32 [FULL, vocab], the scores after each token, fed one by one."""
    return {
        model_type: np.stack(list(measure.one_by_one(load(tiny, model_type), TOKENS[:FULL])))
        for model_type in MODELS
    }


def test_one_by_one_to_the_last_token(
    tiny: Tiny, expected: dict[str, measure.F32], model_type: str
) -> None:
    """What the other tests compare with is itself within 2 % of transformers everywhere."""
    _, model = tiny.make(model_type)
    theirs = oracle.all_logits(model, TOKENS[:FULL])
    errors = map(measure.relative_error, theirs, expected[model_type])
    assert max(errors) < 0.02


@pytest.mark.parametrize("length", LENGTHS)
def test_prompt_then_decode(
    tiny: Tiny, expected: dict[str, measure.F32], model_type: str, length: int
) -> None:
    """A prompt by chunks and three tokens more (as far as there is room), from a NaN cache."""
    rt = load(tiny, model_type)
    state = measure.fresh(rt)
    for step in [*chunks(length, CHUNK), *[1] * min(3, FULL - length)]:
        ours = measure.scores(rt, state, TOKENS[state.past : state.past + step])
        assert np.array_equal(ours, expected[model_type][state.past - 1]), state.past
        assert measure.rung(state) == min(r for r in RUNGS if r >= state.past)


@pytest.mark.parametrize("room", [127, 65, 37, 2, 1])
def test_room_smaller_than_a_chunk(
    tiny: Tiny, expected: dict[str, measure.F32], model_type: str, room: int
) -> None:
    """The last step fills the context exactly; the chunk's padding has nowhere to go."""
    rt = load(tiny, model_type)
    state = measure.fresh(rt)
    for step in [*chunks(FULL - room, CHUNK), room]:
        ours = measure.scores(rt, state, TOKENS[state.past : state.past + step])
    assert state.past == FULL
    assert np.array_equal(ours, expected[model_type][-1])


@pytest.mark.parametrize(("past", "new"), [(FULL, 1), (FULL - 1, 2), (FULL - 48, 49)])
def test_one_too_many(
    tiny: Tiny, expected: dict[str, measure.F32], model_type: str, past: int, new: int
) -> None:
    """An error that names both numbers, before any work; afterwards the state is as it was."""
    rt = load(tiny, model_type)
    state = measure.fresh(rt)
    for step in chunks(past, CHUNK):
        rt.forward(state, TOKENS[state.past : state.past + step], want_logits=False)
    kv, program = state.kv.copy(), state.program
    executions: list[object] = []
    rt.observer = executions.append
    try:
        with pytest.raises(CapacityError, match=rf"{FULL + 1} tokens.* {FULL}\b"):
            rt.forward(state, TOKENS[past : past + new])
    finally:
        rt.observer = None
    assert not executions
    assert (state.past, state.program) == (past, program)
    assert np.array_equal(state.kv, kv)
    for step in chunks(FULL - past, CHUNK):
        last = measure.scores(rt, state, TOKENS[state.past : state.past + step])
        assert np.array_equal(last, expected[model_type][-1])


def test_a_rewound_state_forgets(
    tiny: Tiny, expected: dict[str, measure.F32], model_type: str
) -> None:
    """What other tokens left in the cache does not show, down to the half of a pair."""
    rt = load(tiny, model_type)
    state = measure.fresh(rt)
    for step in chunks(700, CHUNK):
        rt.forward(state, TOKENS[state.past : state.past + step][::-1].copy(), want_logits=False)
    for past in (0, 129, 130):
        state.rewind(past)
        for step in (1, 128, 1, 64):
            ours = measure.scores(rt, state, TOKENS[state.past : state.past + step])
            assert np.array_equal(ours, expected[model_type][state.past - 1])


@pytest.mark.parametrize("count", [0, CHUNK + 1])
def test_a_step_is_1_to_chunk_tokens(tiny: Tiny, model_type: str, count: int) -> None:
    rt = load(tiny, model_type)
    state = measure.fresh(rt)
    with pytest.raises(UsageError, match=f"{count} tokens.*{CHUNK}"):
        rt.forward(state, TOKENS[:count])
    assert state.past == 0
