"""Streaming: pieces join to the full decoding, characters stay whole, stop strings cut exactly."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dielet.errors import UsageError
from dielet.generate.stream import (
    ByteDetokenizer,
    StopStrings,
    WindowDetokenizer,
    is_byte_level,
    is_byte_token,
)
from tests.generate import fake

MAKERS = {
    "byte-level": fake.byte_level_tokenizer,
    "llama": fake.llama_tokenizer,
    "gemma": fake.gemma_tokenizer,
    "metaspace": fake.metaspace_tokenizer,
    "wordpiece": fake.wordpiece_tokenizer,
    "no decoder": fake.bare_tokenizer,
}
_made: dict = {}


def text_of(kind):
    if kind not in _made:
        tokenizer = MAKERS[kind]()
        _made[kind] = (tokenizer, fake.text_of(tokenizer))
    return _made[kind]


def pieces_of(text, ids):
    detokenizer = text.detokenizer()
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_full_decoding(kind, data):
    tokenizer, text = text_of(kind)
    top = tokenizer.get_vocab_size() + 5  # models pad their vocabulary past the tokenizer's
    ids = data.draw(st.lists(st.integers(0, top), max_size=60))
    assert "".join(pieces_of(text, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma"])
@settings(max_examples=100, deadline=None)
@given(words=st.text(max_size=40))
@example(words="👩‍👩‍👧‍👦 and 🇩🇪")
@example(words="\ufffd is a character too")
@example(words="  two  spaces ")
def test_no_piece_ever_shows_half_a_character(kind, words):
    _, text = text_of(kind)
    ids = text.encode(words, special=False)
    pieces = pieces_of(text, ids)
    assert sum(p.count("\ufffd") for p in pieces) == words.count("\ufffd")
    assert "".join(pieces) == text.decode(ids)


def test_pieces_come_as_soon_as_they_are_final():
    _, text = text_of("byte-level")
    ids = text.encode("a😊b", special=False)
    pieces = pieces_of(text, ids)
    assert pieces[0] == "a"
    assert [p for p in pieces if p] == ["a", "😊", "b"]


def test_bytes_cut_off_at_the_end_are_not_lost():
    tokenizer, text = text_of("byte-level")
    ids = text.encode("x😊", special=False)[:-1]
    pieces = pieces_of(text, ids)
    assert pieces[-1] == "\ufffd"
    assert "".join(pieces) == tokenizer.decode(ids)


def test_byte_tokens_at_the_end_are_not_lost():
    tokenizer, text = text_of("llama")
    ids = [tokenizer.token_to_id("▁Hello"), tokenizer.token_to_id("<0xF0>")]
    assert pieces_of(text, ids) == ["Hello", "", "\ufffd"]


def test_a_long_answer_is_not_decoded_again_and_again():
    tokenizer, _ = text_of("llama")
    longest = 0

    class Counting:
        def id_to_token(self, token):
            return tokenizer.id_to_token(token)

        def decode(self, ids, skip_special_tokens):
            nonlocal longest
            longest = max(longest, len(ids))
            return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    detokenizer = WindowDetokenizer(Counting(), frozenset())
    ids = [tokenizer.token_to_id("▁Hello"), tokenizer.token_to_id("ing")] * 200
    assert "".join(detokenizer.push(i) for i in ids) + detokenizer.finish() == tokenizer.decode(ids)
    assert longest <= 20


def test_the_decoder_is_told_apart_by_what_it_does():
    assert is_byte_level({"type": "ByteLevel"})
    assert is_byte_level({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})
    assert not is_byte_level(None)
    strips = {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip"}]}
    assert not is_byte_level(strips)
    assert isinstance(text_of("byte-level")[1].detokenizer(), ByteDetokenizer)
    assert isinstance(text_of("llama")[1].detokenizer(), WindowDetokenizer)
    assert is_byte_token("<0xAf>")
    assert not is_byte_token("<0xZZ>")
    assert not is_byte_token("<0x0AF>")


def cut(stops, pieces):
    """(all text, whether stopped) for `pieces` pushed one by one."""
    matcher = StopStrings(stops)
    out = ""
    for piece in pieces:
        text, met = matcher.push(piece)
        out += text
        if met:
            return out, True
    return out + matcher.finish(), False


def cut_by_character(stops, text):
    """The specification: the first stop string to be complete cuts the text where it begins."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


short = st.text(alphabet="ab\n", max_size=4)


@settings(max_examples=500, deadline=None)
@given(st.lists(short.filter(bool), min_size=1, max_size=4), st.lists(short, max_size=12))
@example(["aab"], ["aa", "a", "b"])
@example(["abab", "b"], ["a", "ba", "b"])
def test_stop_strings_cut_alike_however_the_text_is_divided(stops, pieces):
    assert cut(stops, pieces) == cut_by_character(stops, "".join(pieces))


def test_only_what_may_begin_a_stop_string_is_held_back():
    matcher = StopStrings(["</end>"])
    assert matcher.push("hello") == ("hello", False)
    assert matcher.push(" </e") == (" ", False)
    assert matcher.push("x") == ("</ex", False)
    assert matcher.push("</en") == ("", False)
    assert matcher.finish() == "</en"


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([""], "stop is ''; a stop string needs at least one character"),
        ([3], "stop is 3; a stop string"),
        (["x"] * 65, "65 stop strings were given; the limit is 64"),
    ],
)
def test_stop_strings_are_checked(stops, message):
    with pytest.raises(UsageError) as error:
        StopStrings(stops)
    assert message in str(error.value)


def test_one_stop_string_may_be_given_alone():
    assert cut("END", ["the EN", "D here"]) == ("the ", True)
