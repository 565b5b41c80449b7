"""A full context: the end of the answer, or a shift, which is a fresh run on what stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dielet.errors import CapacityError, UsageError
from dielet.generate.chat import Chat
from dielet.generate.context import left_out, most_kept, without
from tests.generate.fake import FakeRuntime, byte_level_tokenizer, fake_model

VOCAB = 410
LIMIT = 40
TOKENIZER = byte_level_tokenizer()


@given(st.integers(8, 60), st.data())
def test_a_growing_text_is_cut_as_if_it_had_come_at_once(limit: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, most_kept(limit)))
    text: list[int] = []
    gone = 0
    for token in range(400):
        text.append(token)
        count = left_out(len(text), keep, limit)
        if count:
            # The oldest half of what is there beside the kept ones, rounded down.
            assert count == (len(text) - keep) // 2
        text = without(text, keep, count)
        gone += count
        assert gone == left_out(token + 1, keep, limit)
        assert 0 < len(text) <= limit
        assert text == [*range(min(keep, token + 1)), *range(keep + gone, token + 1)]


def shifted(prompt: list[int], count: int, keep: int, **options: Any) -> Any:
    """An answer of `count` tokens over the end of the context, and the runtime that gave it."""
    runtime = FakeRuntime(VOCAB, max_seq_len=LIMIT, chunk=16)
    model = fake_model(runtime)
    given_ = {"context_shift": True, "keep": keep, "max_new_tokens": count, **options}
    return model.generate(prompt, **given_), runtime


@pytest.mark.parametrize("speculate", [0, 5])
@pytest.mark.parametrize("keep", [0, 1, 4, 20, LIMIT - 2])
def test_every_token_is_that_of_a_fresh_run_on_what_stays(keep: int, speculate: int) -> None:
    prompt = [5, 6, 7, 8, 9, 10, 11]
    result, runtime = shifted(prompt, 90, keep, speculate=speculate)
    assert len(result.tokens) == 90 and result.finish_reason == "length"
    text = [*prompt, *result.tokens]
    for end in range(len(prompt), len(text)):
        gone = left_out(end, keep, LIMIT)
        # A fresh runtime, whose cache never held anything else.
        fresh = FakeRuntime(VOCAB, max_seq_len=LIMIT, chunk=LIMIT)
        stays = without(text[:end], keep, gone)
        assert fake_model(fresh).generate(stays, max_new_tokens=1).tokens == [text[end]]
    assert result.receipt.dropped_tokens == left_out(len(text) - 1, keep, LIMIT)
    assert result.receipt.prefill_passes == 1, "what is computed anew belongs to the answer"
    # What it costs: at most one token computed again for every token that is dropped.
    computed = sum(map(len, runtime.executed)) - len(text) + 1
    if not speculate:
        assert computed <= result.receipt.dropped_tokens + LIMIT - keep


def test_without_it_the_answer_ends_and_its_text_stays() -> None:
    runtime = FakeRuntime(VOCAB, max_seq_len=LIMIT)
    result = fake_model(runtime).generate([5] * 30, max_new_tokens=100)
    assert result.finish_reason == "length" and len(result.tokens) == LIMIT - 30 + 1
    assert result.text == TOKENIZER.decode(result.tokens) != ""
    assert result.receipt.dropped_tokens == 0


def test_an_endless_answer_ends_after_a_context_of_tokens() -> None:
    result, _ = shifted([5, 6], None, 4)
    assert result.finish_reason == "length" and len(result.tokens) == LIMIT


def test_a_prompt_that_is_too_long_is_cut() -> None:
    prompt = list(range(100))
    with pytest.raises(CapacityError, match="context_shift"):
        fake_model(FakeRuntime(VOCAB, max_seq_len=LIMIT)).stream(prompt)
    result, runtime = shifted(prompt, 3, 6)
    stays = [*range(6), *range(6 + 68, 100)]  # steps of 17, which is half of 40 - 6
    assert [token for tokens in runtime.executed for token in tokens][: len(stays)] == stays
    assert result.receipt.prompt_tokens == len(stays)
    assert result.receipt.dropped_tokens == 68
    fresh = fake_model(FakeRuntime(VOCAB, max_seq_len=LIMIT)).generate(stays, max_new_tokens=3)
    assert result.tokens == fresh.tokens


def test_the_same_seed_gives_the_same_text_over_a_shift() -> None:
    sampled = {"temperature": 1.2, "seed": 3, "repetition_penalty": 1.2}
    one, _ = shifted([5, 6, 7], 100, 4, **sampled)
    assert one.tokens == shifted([5, 6, 7], 100, 4, **sampled)[0].tokens


def test_cancelling_while_old_tokens_are_computed_anew() -> None:
    runtime = FakeRuntime(VOCAB, max_seq_len=200, chunk=16)
    stream = fake_model(runtime).stream([5] * 190, context_shift=True)
    next(stream)
    runtime._before_forward = lambda state: stream.cancel() if state.past < 100 else None
    list(stream)
    assert stream.result.finish_reason == "cancelled"
    assert len(runtime.executed[-1]) == 16, "one chunk, and no more of them"
    assert len(stream.result.tokens) == 11


def test_the_system_message_stays_unless_something_else_is_said() -> None:
    model = fake_model(max_seq_len=LIMIT * 2)
    lead = model.encode("x", {"system": "be kind"})
    words = len(lead) - len(TOKENIZER.encode("x<|im_end|>\n<|im_start|>assistant\n").ids)
    for system in ({"system": "be kind"}, {}):
        messages = [] if system else [{"role": "system", "content": "be kind"}]
        prompt = [*messages, {"role": "user", "content": "word " * 100}]
        decoding = model.prepare(prompt, {**system, "context_shift": True})
        assert decoding.request.keep == words
        assert list(decoding.request.prompt[:words]) == lead[:words]
        assert decoding.request.dropped > 0
    assert model.prepare("word " * 100, {"raw": True, "context_shift": True}).request.keep == 4
    assert model.prepare([5] * 200, {"context_shift": True}).request.keep == 4
    assert model.prepare([5] * 200, {"context_shift": True, "keep": 0}).request.keep == 0
    long = {"system": "be kind " * 100, "context_shift": True}
    assert model.prepare("x", long).request.keep == LIMIT * 2 - 2


def test_a_chat_goes_on_over_the_end_of_the_context_and_still_reuses_what_stays() -> None:
    runtime = FakeRuntime(VOCAB, max_seq_len=128, chunk=32)
    model = fake_model(runtime)
    chat = Chat(model, max_new_tokens=12, context_shift=True, system="be kind")
    dropped, last, reusing = [0], 0, 0
    for turn in range(12):
        before = len(runtime.executed)
        stream = chat.ask(f"question {turn}")
        list(stream)
        receipt = stream.result.receipt
        computed = sum(map(len, runtime.executed[before:]))
        fresh = fake_model(FakeRuntime(VOCAB, max_seq_len=128, chunk=32))
        options = {"max_new_tokens": 12, "context_shift": True, "system": "be kind"}
        expected = fresh.generate(chat.messages[:-1], **options)
        assert stream.result.tokens == expected.tokens
        assert receipt.reused_tokens + computed >= receipt.prompt_tokens
        gone = stream._decoding.request.dropped
        if turn and gone == dropped[-1]:  # no more than at the end of the last turn
            assert receipt.reused_tokens > last - gone - 2, "all, but for where texts join"
            reusing += 1
        dropped.append(receipt.dropped_tokens)
        last = receipt.prompt_tokens + gone
    assert reusing > 3
    assert len(chat.messages) == 24 and dropped[-1] > dropped[1] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 4}, "keep has no meaning without context_shift; leave it out"),
        ({"context_shift": True, "keep": -1}, "keep is -1; it must be from 0 to 38"),
        ({"context_shift": True, "keep": 39}, "keep is 39; it must be from 0 to 38"),
        ({"context_shift": True, "keep": 2.0}, "keep is 2.0; it must be from 0 to 38"),
        ({"context_shift": True, "keep": True}, "keep is True; it must be from 0 to 38"),
        ({"context_shift": 1}, "context_shift is 1; it must be True or False"),
        ({"context_shift": True, "max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    runtime = FakeRuntime(VOCAB, max_seq_len=LIMIT)
    with pytest.raises(UsageError) as error:
        fake_model(runtime).stream([5, 6], **options)
    assert message in str(error.value) and runtime.states == []
