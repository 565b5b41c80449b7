"""Guessing from what the text repeats: the same tokens as without, in fewer passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dielet.errors import UsageError
from dielet.generate.speculate import LONGEST, SHORTEST, PromptLookup
from tests.generate.fake import FakeRuntime, fake_model


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 9))
def test_a_guess_is_what_followed_the_longest_repeat_last_time(text: list[int], most: int) -> None:
    expected: list[int] = []
    for size in range(LONGEST, SHORTEST - 1, -1):
        ends = [n for n in range(size, len(text)) if text[n - size : n] == text[-size:]]
        if ends and len(text) >= size:
            expected = text[ends[-1] : ends[-1] + most]
            break
    assert PromptLookup(text).guess(most) == expected


PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 3, 5, 6, 7]
SCRIPT = [8, 9, 10, 11, 12, 99, 5, 6, 7, 8, 9, 10, 42, 43, 44, 42, 43, 44, 42, 43, 44]


def answers(speculate: int, script: list[int], **options: Any) -> tuple[list[int], int, str]:
    runtime = FakeRuntime(400, script=script)
    result = fake_model(runtime).generate(PROMPT, speculate=speculate, **options)
    return result.tokens, result.receipt.decode_passes, result.receipt.logits_sha256


@pytest.mark.parametrize("speculate", [1, 2, 5, 15])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9, "seed": 3},
        {"repetition_penalty": 1.3},
        {"temperature": 1.5, "top_k": 9, "seed": 1, "repetition_penalty": 0.8},
    ],
)
@pytest.mark.parametrize("length", [1, 2, 7, 60])
def test_the_same_tokens(speculate: int, options: dict[str, Any], length: int) -> None:
    given_ = {**options, "max_new_tokens": length}
    plain, passes, sha = answers(0, SCRIPT, **given_)
    guessed, fewer, same = answers(speculate, SCRIPT, **given_)
    assert guessed == plain and same == sha
    assert passes == length - 1 and fewer <= passes


def test_repeated_text_takes_fewer_passes() -> None:
    _, passes, _ = answers(8, SCRIPT, max_new_tokens=len(SCRIPT))
    assert passes <= 12 < len(SCRIPT) - 1


def test_it_ends_at_the_end_of_text_inside_a_guess() -> None:
    runtime = FakeRuntime(400, script=SCRIPT, eos=(10,))
    result = fake_model(runtime).generate(PROMPT, speculate=8)
    assert result.finish_reason == "stop" and result.tokens == [8, 9, 10]


def test_it_fills_the_context_exactly() -> None:
    script = [5, 6, 7, 8, 9, 10, 11, 12] * 9
    runtime = FakeRuntime(400, script=script, max_seq_len=40)
    result = fake_model(runtime).generate(PROMPT, speculate=15)
    assert result.finish_reason == "length" and len(result.tokens) == 40 - len(PROMPT) + 1
    assert result.tokens == script[: len(result.tokens)]


@pytest.mark.parametrize("bad", [-1, 16, 2.0, True])
def test_bad_counts(bad: Any) -> None:
    with pytest.raises(UsageError, match="from 0 to 15"):
        fake_model(FakeRuntime(400)).generate(PROMPT, speculate=bad)
