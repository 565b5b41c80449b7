"""What later answers take over from earlier ones: how much, and that nothing else changes by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dielet.errors import NumericError
from dielet.generate.chat import Chat
from tests.generate.fake import FakeRuntime, fake_model

VOCAB = 410
CHUNK = 16
PROMPT = [int(n) for n in np.random.default_rng(3).integers(2, VOCAB, 100)]


def warm(runtime: FakeRuntime, first: list[int] = PROMPT) -> Any:
    """A model that has answered `first` with one token."""
    model = fake_model(runtime, prefix_cache_mb=1)
    model.generate(first, max_new_tokens=1)
    return model


def changed_at(position: int, length: int) -> list[int]:
    """The first `length` tokens with another one at `position`, if that is within."""
    tokens = PROMPT[:length]
    if position < length:
        tokens[position] = (tokens[position] + 1) % VOCAB
    return tokens


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 99, 100])
def test_a_hit_of_any_length(length: int) -> None:
    """The prompt is known for all but its last token, which has to be computed for its logits."""
    runtime = FakeRuntime(VOCAB, chunk=CHUNK)
    model = warm(runtime)
    before = len(runtime.executed)
    result = model.generate(PROMPT[:length], max_new_tokens=1)
    assert runtime.executed[before:] == [PROMPT[length - 1 : length]]
    assert result.receipt.reused_tokens == length - 1
    assert result.receipt.prefill_passes == 1
    cold = fake_model(FakeRuntime(VOCAB)).generate(PROMPT[:length], max_new_tokens=1)
    assert result.receipt.logits_sha256 == cold.receipt.logits_sha256


@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 63, 64, 80, 95, 96, 97, 98, 99])
def test_prompts_that_differ_anywhere(at: int) -> None:
    """In the last panel, at its edges, inside the last chunk, in the very last token."""
    runtime = FakeRuntime(VOCAB, chunk=CHUNK)
    model = warm(runtime)
    prompt = changed_at(at, 100)
    before = len(runtime.executed)
    result = model.generate(prompt, max_new_tokens=5)
    assert result.receipt.reused_tokens == at
    assert sum(map(len, runtime.executed[before:])) == 100 - at + 4
    assert result.receipt.prefill_passes == -(-(100 - at) // CHUNK)
    cold = fake_model(FakeRuntime(VOCAB)).generate(prompt, max_new_tokens=5)
    assert result.tokens == cold.tokens
    assert result.receipt.logits_sha256 == cold.receipt.logits_sha256


@pytest.mark.parametrize("more", [1, 2, 28, 29, 60])
def test_prompts_that_go_on(more: int) -> None:
    """The answer before is part of what is known."""
    runtime = FakeRuntime(VOCAB, chunk=CHUNK)
    model = fake_model(runtime, prefix_cache_mb=1)
    answer = model.generate(PROMPT, max_new_tokens=10).tokens
    prompt = [*PROMPT, *answer, *PROMPT[:more]]
    result = model.generate(prompt, max_new_tokens=2)
    assert result.receipt.reused_tokens == 109, "the last token of the answer was not computed"
    cold = fake_model(FakeRuntime(VOCAB)).generate(prompt, max_new_tokens=2)
    assert result.receipt.logits_sha256 == cold.receipt.logits_sha256


def test_nothing_is_kept_without_memory_for_it() -> None:
    runtime = FakeRuntime(VOCAB)
    model = fake_model(runtime)
    for _ in range(2):
        receipt = model.generate(PROMPT, max_new_tokens=1).receipt
        assert receipt.reused_tokens == 0 and "prefixes" not in receipt.peak_rss_bytes


def test_the_receipt_has_the_memory() -> None:
    model = warm(FakeRuntime(VOCAB))
    owners = model.generate(PROMPT, max_new_tokens=1).receipt.peak_rss_bytes
    assert owners["prefixes"] == 4 * 128


def test_an_answer_that_fails_leaves_nothing_behind() -> None:
    def fail(state: Any) -> None:
        if state.past >= 64:
            raise NumericError("NaN")

    runtime = FakeRuntime(VOCAB, chunk=CHUNK, before_forward=fail)
    model = fake_model(runtime, prefix_cache_mb=1)
    with pytest.raises(NumericError):
        model.generate(PROMPT)
    runtime._before_forward = None
    assert model.generate(PROMPT, max_new_tokens=1).receipt.reused_tokens == 0


def test_an_answer_that_is_given_up_leaves_what_it_computed() -> None:
    def interrupt(state: Any) -> None:
        if state.past >= 64:
            raise KeyboardInterrupt

    runtime = FakeRuntime(VOCAB, chunk=CHUNK, before_forward=interrupt)
    model = fake_model(runtime, prefix_cache_mb=1)
    with pytest.raises(KeyboardInterrupt):
        model.generate(PROMPT)
    runtime._before_forward = None
    assert model.generate(PROMPT, max_new_tokens=1).receipt.reused_tokens == 64
    stream = model.stream(PROMPT[::-1])
    next(stream)
    del stream  # dropped, not closed
    assert model.generate(PROMPT[::-1], max_new_tokens=1).receipt.reused_tokens == 99


def test_guessed_tokens_that_were_wrong_are_not_kept_as_right() -> None:
    script = [8, 9, 10, 11, 12, 99, 5, 6, 7, 8, 9, 10, 42, 43, 44, 42, 43, 44, 42, 43, 44]
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 3, 5, 6, 7]
    runtime = FakeRuntime(VOCAB, script=script)
    model = fake_model(runtime, prefix_cache_mb=1)
    first = model.generate(prompt, speculate=8, max_new_tokens=len(script))
    assert first.receipt.decode_passes < len(script) - 1
    runtime.script = []
    again = model.generate([*prompt, *script, 7], max_new_tokens=1).receipt
    assert again.reused_tokens == len(prompt) + len(script) - 1
    cold = fake_model(FakeRuntime(VOCAB)).generate([*prompt, *script, 7], max_new_tokens=1)
    assert again.logits_sha256 == cold.receipt.logits_sha256


def test_a_trace_is_of_whole_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = warm(FakeRuntime(VOCAB))
    monkeypatch.setattr("dielet.profiling.listener", lambda *work: None)
    assert model.generate(PROMPT, max_new_tokens=1).receipt.reused_tokens == 0
    monkeypatch.undo()
    assert model.generate(PROMPT, max_new_tokens=1).receipt.reused_tokens == 99


def test_a_chat_after_a_reset_has_its_system_message_still() -> None:
    runtime = FakeRuntime(VOCAB, max_seq_len=1024, chunk=CHUNK)
    chat = Chat(fake_model(runtime, prefix_cache_mb=1), max_new_tokens=4, system="be kind " * 20)
    reused = []
    for text in ("hello", "more", None, "hello", "other"):
        if text is None:
            chat.reset()
            continue
        stream = chat.ask(text)
        list(stream)
        reused.append(stream.result.receipt.reused_tokens)
    first = chat._model.encode("hello", {"system": "be kind " * 20})
    assert reused[0] == 0 and reused[1] > 40
    assert reused[2] == len(first) - 1
    assert reused[3] > 40


def test_a_chat_has_fewer_passes_and_every_turn_the_logits_of_a_cold_run() -> None:
    runtime = FakeRuntime(VOCAB, max_seq_len=1024, chunk=CHUNK)
    model = fake_model(runtime)  # no memory of prefixes: a chat has its own cache
    chat = Chat(model, max_new_tokens=6)
    for turn in range(5):
        stream = chat.ask(f"a question of some length, number {turn}, and what follows from it")
        list(stream)
        receipt = stream.result.receipt
        cold = fake_model(FakeRuntime(VOCAB, max_seq_len=1024, chunk=CHUNK))
        expected = cold.generate(chat.messages[:-1], max_new_tokens=6).receipt
        assert receipt.logits_sha256 == expected.logits_sha256
        assert receipt.prompt_tokens == expected.prompt_tokens
        new = receipt.prompt_tokens - receipt.reused_tokens
        assert receipt.prefill_passes == -(-new // CHUNK)
        assert (receipt.prefill_passes < expected.prefill_passes) == bool(turn)
