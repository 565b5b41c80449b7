"""Sampling: the filters of transformers, one by one and together, and honest draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dielet.errors import UsageError
from dielet.generate.sampling import Sampler, Sampling, _nucleus, draw, from_generation_config, keep
from tests.generate.fake import FakeLogits

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.7, "top_p": 0.5},
    {"temperature": 0.3, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 5, "min_p": 0.2},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.3},
    {"temperature": 1.0, "repetition_penalty": 0.7},
    {"temperature": 1.0, "top_k": 100000},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.0, "min_p": 1.0},
]


@pytest.fixture(scope="module")
def transformers_filters():
    """settings -> the processors that transformers' `generate` would build, in its order."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    model = LlamaForCausalLM(config)

    def build(given):
        given = {"top_k": 0, "top_p": 1.0, **given}
        return model._get_logits_processor(
            GenerationConfig(do_sample=True, **given), input_ids_seq_length=3
        )

    return build


@pytest.mark.parametrize("given", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab", [50, 3000])
def test_filters_are_those_of_transformers(transformers_filters, given, vocab):
    import torch

    random = np.random.default_rng(vocab)
    scores = random.normal(size=vocab).astype(np.float32) * 4
    prompt = random.integers(0, vocab, size=12).tolist()
    theirs = transformers_filters(given)(torch.tensor([prompt]), torch.tensor(scores[None].copy()))[
        0
    ]
    theirs = torch.softmax(theirs, -1).numpy()

    sampler = Sampler(Sampling(**given, seed=0), vocab, prompt)
    ours = chances(sampler, scores)
    assert np.array_equal(ours > 0, theirs > 0)
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-7)


def chances(sampler, scores):
    """The distribution that `sampler` draws from, worked out through its own steps."""
    from dielet.generate.sampling import penalise

    if sampler._seen is not None:
        scores = penalise(scores, sampler._seen, sampler.settings.repetition_penalty)
    ids, kept = keep(scores, sampler.settings)
    weights = np.exp(kept.astype(np.float64))
    result = np.zeros(len(scores))
    result[ids] = weights / weights.sum()
    return result


def test_ties_at_the_border_of_top_k_all_stay():
    scores = np.array([1, 2, 2, 2, 0], dtype=np.float32)
    ids, _ = keep(scores, Sampling(temperature=1.0, top_k=2))
    assert ids.tolist() == [1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3000),
    st.sampled_from([0.0, 0.01, 0.3, 0.9, 0.99, 0.9999]),
    st.sampled_from([0.0, 0.1, 1.0, 6.0]),
    st.booleans(),
    st.integers(0, 9),
)
def test_the_nucleus_is_that_of_a_stable_sort(size, top_p, spread, ties, seed):
    scores = np.random.default_rng(seed).normal(size=size) * spread
    weights = np.exp(np.round(scores) if ties else scores)
    probabilities = (weights / weights.sum()).astype(np.float32)
    order = np.argsort(probabilities, kind="stable")
    removed = np.cumsum(probabilities[order], dtype=np.float64) <= 1 - top_p
    removed[-1] = False
    assert _nucleus(probabilities, top_p).tolist() == sorted(order[~removed].tolist())


def test_draws_follow_the_chances():
    scores = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    counts = np.zeros(4)
    uniform = (np.arange(20000) + 0.5) / 20000
    for u in uniform:
        counts[draw(scores, u)] += 1
    np.testing.assert_allclose(counts / len(uniform), [0.5, 0.3, 0.15, 0.05], atol=1e-3)
    assert draw(scores, 0.0) == 0
    assert draw(scores, 1.0 - 2**-53) == 3


def test_a_token_without_a_chance_is_never_drawn():
    scores = np.array([-np.inf, 0.0, -np.inf], dtype=np.float32)
    assert {draw(scores, u) for u in (0.0, 0.5, 1.0 - 2**-53)} == {1}


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others():
    def tokens(seed):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), 300, [])
        random = np.random.default_rng(5)
        return [
            sampler.choose(FakeLogits(random.normal(size=300).astype(np.float32)))
            for _ in range(30)
        ]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_a_seed_is_made_up_when_sampling_without_one():
    assert Sampling(temperature=1.0).seeded().seed is not None
    assert Sampling(temperature=0.0, seed=3).seeded().seed is None


def test_greedy_takes_the_best_and_of_equals_the_first():
    scores = np.array([0, 3, 3, 1], dtype=np.float32)
    assert Sampler(Sampling(), 4, []).choose(FakeLogits(scores)) == 1


def test_repetition_penalty_counts_the_prompt_and_the_answer_also_when_greedy():
    scores = np.array([3.0, 2.9, 2.8, -1.0], dtype=np.float32)
    sampler = Sampler(Sampling(repetition_penalty=2.0), 4, [0])
    assert [sampler.choose(FakeLogits(scores)) for _ in range(3)] == [1, 2, 0]
    assert scores.tolist() == pytest.approx([3.0, 2.9, 2.8, -1.0])  # never changed in place


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 1e-320])
def test_a_tiny_temperature_is_greedy_and_not_an_overflow(temperature):
    scores = np.array([1e4, 2e4, -1e4], dtype=np.float32)
    sampler = Sampler(Sampling(temperature=temperature, top_p=0.9, seed=0), 3, [])
    assert sampler.choose(FakeLogits(scores)) == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -0.1, "temperature is -0.1; it must be finite and 0 or more"),
        ("temperature", float("nan"), "temperature is nan"),
        ("temperature", 10**400, "temperature is beyond 1e308; it must be finite"),
        ("temperature", "hot", "temperature is 'hot'; it must be a number"),
        ("top_k", -1, "top_k is -1; it must be from 0"),
        ("top_k", 2.5, "top_k is 2.5; it must be a whole number"),
        ("top_k", True, "top_k is True; it must be a whole number"),
        ("top_p", 1.01, "top_p is 1.01; it must be finite and from 0 to 1"),
        ("min_p", -1e-9, "min_p is -1e-09; it must be finite and from 0 to 1"),
        ("repetition_penalty", 0, "repetition_penalty is 0; it must be above 0"),
        ("repetition_penalty", float("inf"), "repetition_penalty is inf"),
        ("seed", -1, "seed is -1; it must be from 0"),
        ("seed", 2**63, "seed is 9223372036854775808; it must be from 0"),
    ],
)
def test_values_out_of_range_are_named_with_their_limit(name, value, message):
    with pytest.raises(UsageError) as error:
        Sampling(**{name: value})
    assert message in str(error.value)


def test_a_models_own_defaults_hold_as_in_transformers():
    qwen3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 1}
    assert from_generation_config(qwen3, "f") == Sampling(temperature=0.6, top_k=20, top_p=0.95)
    assert from_generation_config({"temperature": 0.6}, "f").greedy
    assert from_generation_config({"do_sample": True}, "f").temperature == 1.0
    with pytest.raises(UsageError, match=r"dir/generation_config.json: top_p is 3"):
        from_generation_config({"do_sample": True, "top_p": 3}, "dir/generation_config.json")
