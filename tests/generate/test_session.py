"""Model, Stream and Chat over a runtime without a model: what is promised to a caller."""

import hashlib

import numpy as np
import pytest

import dielet
from dielet.errors import CapacityError, DamagedFile, MissingFile, UsageError
from dielet.generate import session
from dielet.generate.chat import Chat
from dielet.generate.sampling import Sampling
from tests.generate.fake import FakeRuntime, byte_level_tokenizer, fake_model, write_text_files

TOKENIZER = byte_level_tokenizer()
VOCAB = 410
START, END = 0, 1  # <|im_start|>, <|im_end|>
THINK = TOKENIZER.token_to_id("<think>")


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def saying(text, **settings):
    """A model whose greedy answer is `text` and then the end-of-text token."""
    return fake_model(eos=[END], script=[*ids_of(text), END], **settings)


# --- the answer ---------------------------------------------------------------------------------


def test_the_answer_is_streamed_and_ends_at_the_end_of_text():
    model = saying("Grüße 😊!")
    stream = model.stream("hi")
    assert "".join(stream) == "Grüße 😊!"
    assert stream.result.text == "Grüße 😊!"
    assert stream.result.tokens == [*ids_of("Grüße 😊!"), END]
    assert stream.result.finish_reason == "stop"


def test_every_end_of_text_id_ends_the_answer_even_one_that_is_not_special():
    model = fake_model(eos=[END, THINK], script=[*ids_of("a"), THINK])
    result = model.generate("hi")
    assert (result.text, result.finish_reason) == ("a", "stop")


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_new_tokens_ends_the_answer(count):
    result = fake_model().generate("hi", max_new_tokens=count)
    assert len(result.tokens) == count
    assert result.finish_reason == "length"


def test_an_answer_cut_inside_a_character_still_shows_that_there_was_something():
    ids = ids_of("a😊")
    result = fake_model(script=ids).generate("hi", max_new_tokens=len(ids) - 1)
    assert result.text == TOKENIZER.decode(ids[:-1]) == "a\ufffd"


def test_a_stop_string_over_several_tokens_is_left_out():
    model = saying("one two STOP three")
    stream = model.stream("hi", stop=["TOP t", "never"])
    assert "".join(stream) == "one two S"
    assert stream.result.finish_reason == "stop_string"
    assert stream.result.text == "one two S"


def test_held_back_text_that_was_no_stop_string_comes_at_the_end():
    model = saying("wait for it: EN")
    stream = model.stream("hi", stop="END")
    assert "".join(stream) == "wait for it: EN"
    assert stream.result.finish_reason == "stop"


def test_the_prompt_is_the_chat_template_and_ids_and_raw_text_are_taken_as_they_are():
    model = fake_model()
    expected = ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert model.encode("hi", {}) == expected
    assert model.encode([{"role": "user", "content": "hi"}], {}) == expected
    assert model.encode("hi", {"raw": True}) == ids_of("hi")
    assert model.encode(np.array([3, 4, 5]), {}) == [3, 4, 5]
    assert model.encode("hi", {"system": "be kind"}) == [
        *ids_of("<|im_start|>system\nbe kind<|im_end|>\n"),
        *expected,
    ]
    assert model.encode("hi", {"thinking": False}) == [*expected, *ids_of("<think></think>")]


def test_a_base_model_continues_text():
    model = fake_model(template=None)
    assert model.encode("once", {}) == model.encode("once", {"raw": True}) == ids_of("once")


# --- how it is computed -------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 40])
def test_the_prompt_is_computed_in_chunks_and_the_answer_token_by_token(length):
    runtime = FakeRuntime(VOCAB, chunk=16)
    prompt = list(range(2, 2 + length))
    result = fake_model(runtime).generate(prompt, max_new_tokens=3)
    chunks = [prompt[i : i + 16] for i in range(0, length, 16)]
    # The last token chosen is never computed: nothing comes after it.
    assert runtime.executed == [*chunks, [result.tokens[0]], [result.tokens[1]]]


def test_nothing_is_computed_before_the_first_piece_is_asked_for():
    runtime = FakeRuntime(VOCAB)
    fake_model(runtime).stream("hi").close()
    assert runtime.executed == [] and runtime.states == []


def test_the_context_can_be_filled_to_the_last_position():
    runtime = FakeRuntime(VOCAB, max_seq_len=64)
    result = fake_model(runtime).generate([5] * 64)
    assert len(result.tokens) == 1 and result.finish_reason == "length"
    result = fake_model(runtime).generate([5] * 60)
    assert len(result.tokens) == 5 and result.finish_reason == "length"
    assert runtime.states[-1].past == 64


def test_a_prompt_of_one_too_many_is_an_error_before_any_work():
    runtime = FakeRuntime(VOCAB, max_seq_len=64)
    with pytest.raises(CapacityError) as error:
        fake_model(runtime).stream([5] * 65)
    assert "65 tokens" in str(error.value) and "64" in str(error.value)
    assert runtime.states == []


def test_the_same_seed_gives_the_same_text():
    model = fake_model()
    settings = {"temperature": 1.2, "max_new_tokens": 30}
    one = model.generate("hi", seed=1, **settings)
    assert model.generate("hi", seed=1, **settings).tokens == one.tokens
    assert model.generate("hi", seed=2, **settings).tokens != one.tokens
    unseeded = model.generate("hi", **settings)
    again = model.generate("hi", seed=unseeded.seed, **settings)
    assert again.tokens == unseeded.tokens


def test_the_models_own_defaults_hold_where_nothing_is_said():
    model = fake_model(sampling=Sampling(temperature=0.8, top_k=5))
    assert model.generate("hi", max_new_tokens=2).seed is not None
    assert model.generate("hi", max_new_tokens=2, temperature=0).seed is None


# --- the receipt --------------------------------------------------------------------------------


def test_the_receipt_has_its_fields_in_order():
    result = fake_model().generate("hi", max_new_tokens=5)
    receipt = result.receipt.as_dict()
    assert list(receipt) == [
        "load_s", "prompt_tokens", "ttft_s", "prefill_tok_s", "new_tokens", "decode_tok_s",
        "program_switches", "weight_bytes_per_token", "read_gb_s", "share_of_bandwidth",
        "peak_rss_bytes", "decode_passes", "logits_sha256", "finish_reason", "reused_tokens",
        "prefill_passes", "dropped_tokens",
    ]  # fmt: skip
    assert receipt["load_s"] == 0.5
    assert receipt["new_tokens"] == 5
    assert receipt["finish_reason"] == "length"
    assert receipt["program_switches"] == 1
    assert receipt["read_gb_s"] == pytest.approx(receipt["decode_tok_s"] * 1e6 / 1e9)
    assert receipt["share_of_bandwidth"] == pytest.approx(receipt["read_gb_s"] / 10)
    assert list(receipt["peak_rss_bytes"]) == ["weights", "kv", "shared", "other", "total"]
    assert receipt["peak_rss_bytes"]["total"] > 10_000_000
    in_use = receipt["prompt_tokens"] + 4
    assert receipt["peak_rss_bytes"]["kv"] == 2560 * in_use // 256


def test_the_first_token_and_the_reader_do_not_count_as_decoding(monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr("dielet.generate.answer.perf_counter", lambda: float(next(ticks)))
    stream = fake_model(chunk=16).stream([5] * 20, max_new_tokens=6)
    for _ in stream:
        next(ticks)  # a slow reader
    receipt = stream.result.receipt
    # Every execution takes one tick of this clock: two for the prompt, one per further token.
    assert receipt.prefill_tok_s == 10
    assert receipt.ttft_s >= 2
    assert receipt.decode_tok_s == 1


def test_figures_that_one_token_cannot_give_are_none_and_no_bandwidth_is_measured():
    runtime = FakeRuntime(VOCAB)
    receipt = fake_model(runtime).generate("hi", max_new_tokens=1).receipt
    assert receipt.decode_tok_s is receipt.read_gb_s is receipt.share_of_bandwidth is None
    assert runtime.bandwidth_measured == 0


def test_the_hash_is_of_the_logits_that_gave_the_last_token():
    class Recording(FakeRuntime):
        def forward(self, state, tokens, want_logits=True):
            logits = super().forward(state, tokens, want_logits)
            self.hash = hashlib.sha256(logits.values.tobytes()).hexdigest() if logits else None
            return logits

    runtime = Recording(VOCAB)
    receipt = fake_model(runtime).generate("hi", max_new_tokens=4).receipt
    assert receipt.logits_sha256 == runtime.hash


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("hi", {"max_new_tokens": 0}, "max_new_tokens is 0; it must be 1 or more"),
        ("hi", {"max_new_tokens": 2.5}, "max_new_tokens is 2.5; it must be a whole number"),
        ("hi", {"temprature": 1}, "unknown option temprature; did you mean temperature?"),
        ("hi", {"temperature": -1}, "temperature is -1"),
        ("hi", {"raw": True, "system": "x"}, "system needs the chat template, but raw text"),
        ("hi", {"raw": True, "thinking": False}, "thinking needs the chat template"),
        ("hi", {"stop": [""]}, "a stop string needs at least one character"),
        ("hi \ud83d", {}, "the prompt has half a character (surrogate) at position 3"),
        ("hi \udcff", {}, "the prompt has a byte that could not be decoded at position 3"),
        ("hi", {"system": "x\ud83d"}, "the system message has half a character (surrogate) at p"),
        (
            [{"role": "user", "content": "ok"}, {"role": "user", "content": "x\ud83d"}],
            {},
            "content of message 2 has half a character (surrogate) at position 1",
        ),
        (None, {}, "neither a string, nor messages (dicts), nor token ids (integers): None is"),
        (5, {}, "neither a string, nor messages (dicts), nor token ids (integers): 5 is none"),
        (b"hi", {}, "nor token ids (integers): b'hi' is none of them"),
        ([3, True], {}, "nor token ids (integers): True is none of them"),
        (np.array([True]), {}, "is none of them"),
        ([3, "x"], {}, "nor token ids (integers): 'x' is none of them"),
        ({"role": "user", "content": "x"}, {}, "give a list of messages, even of one"),
        ([{"content": "x"}], {}, "message {'content': 'x'} is not a dict with a 'role'"),
        ("hi", {"stop": 5}, "stop is 5; it must be a string or several"),
        ("hi", {"stop": b"x"}, "a stop string needs at least one character"),
        ("hi", {"thinking": "no"}, "thinking is 'no'; it must be True or False"),
        ("hi", {"raw": 1}, "raw is 1; it must be True or False"),
        ("hi", {"system": 5}, "system is 5; it must be a string"),
        ("", {"raw": True}, "the prompt has no tokens"),
        ([], {}, "the prompt has no tokens"),
        ([410], {}, "token id 410 is outside the model's vocabulary of 410"),
        ([-1], {}, "token id -1 is outside"),
        ([1.5], {}, "neither a string, nor messages (dicts), nor token ids"),
        ([1], {"system": "x"}, "system has no meaning for a prompt of token ids"),
        ([{"role": "user", "content": "x"}], {"raw": True}, "raw takes plain text, not messages"),
        ([{"role": "system", "content": "x"}], {"system": "y"}, "system is given twice"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_work(prompt, options, message):
    runtime = FakeRuntime(VOCAB)
    with pytest.raises(UsageError) as error:
        fake_model(runtime).stream(prompt, **options)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert "chat_template" not in str(error.value)
    assert runtime.states == []


def test_token_ids_may_come_from_an_iterator():
    assert fake_model().encode(iter([3, 4]), {}) == [3, 4]


def test_messages_need_a_template():
    with pytest.raises(UsageError, match="this model has no chat template"):
        fake_model(template=None).stream([{"role": "user", "content": "hi"}])


# --- chat ---------------------------------------------------------------------------------------


def test_a_chat_remembers_and_computes_only_what_is_new():
    runtime = FakeRuntime(VOCAB, chunk=64)
    model = fake_model(runtime)
    chat = Chat(model, max_new_tokens=8)
    first = chat.ask("hello")
    answer = "".join(first)
    assert chat.messages == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answer},
    ]
    before = len(runtime.executed)
    second = chat.ask("more")
    list(second)
    prompt = model.encode([*chat.messages[:2], {"role": "user", "content": "more"}], {})
    computed = [t for tokens in runtime.executed[before:] for t in tokens][: -(8 - 1)]
    assert len(computed) < len(prompt)
    assert prompt[len(prompt) - len(computed) :] == computed
    # What was kept is what a fresh prompt would have computed, so the answer is the same.
    assert second.result.tokens == model.generate(prompt, max_new_tokens=8).tokens
    assert second.result.receipt.prompt_tokens == len(prompt)


def test_a_chat_keeps_nothing_that_the_next_prompt_does_not_repeat():
    model = fake_model(max_seq_len=512)
    chat = Chat(model, max_new_tokens=4)
    list(chat.ask("hello"))
    chat.messages[1]["content"] = "something else"
    stream = chat.ask("more")
    list(stream)
    prompt = model.encode(chat.messages[:3], {})
    assert stream.result.tokens == model.generate(prompt, max_new_tokens=4).tokens


def test_a_turn_that_does_not_fit_leaves_the_chat_as_it_was():
    chat = Chat(fake_model(max_seq_len=48), max_new_tokens=4)
    list(chat.ask("hi"))
    before = list(chat.messages)
    with pytest.raises(CapacityError):
        chat.ask("a long story " * 20)
    assert chat.messages == before
    chat.reset()
    assert chat.messages == []
    list(chat.ask("hi"))


def test_a_cancelled_answer_stays_in_the_chat():
    chat = Chat(fake_model(), max_new_tokens=50)
    with chat.ask("hi") as stream:
        next(stream)
    assert [m["role"] for m in chat.messages] == ["user", "assistant"]
    list(chat.ask("go on"))
    assert len(chat.messages) == 4


# --- loading ------------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch):
    """Replaces the loader of the host by one that gives a FakeRuntime."""
    import dielet.host

    loaded = []

    def load_runtime(directory, threads=None, profiler=None):
        loaded.append(FakeRuntime(VOCAB))
        return loaded[-1]

    monkeypatch.setattr(dielet.host, "load_runtime", load_runtime, raising=False)
    return loaded


def test_load_reads_text_and_defaults_beside_the_runtime(host, tmp_path):
    write_text_files(tmp_path, TOKENIZER)
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_k": 3}')
    with dielet.load(tmp_path) as model:
        assert model.sampling == Sampling(temperature=1.0, top_k=3)
        assert model.load_s > 0
        assert len(model.generate("hi", max_new_tokens=3, temperature=0).tokens) == 3
    assert host[0].closed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json: not a usable tokenizer"),
        ("tokenizer.json", '{"model": {"type": "?"}}', "tokenizer.json: not a usable tokenizer"),
        ("generation_config.json", "[1]", "generation_config.json: not a JSON object"),
        ("generation_config.json", '{"top_p": 2}', "generation_config.json: top_p is 2"),
        ("config.json", "nonsense", "config.json: not a JSON object"),
        ("chat_template.jinja", "{% if %}", "chat_template.jinja: line 1: not a valid"),
    ],
)
def test_a_damaged_file_is_named_before_a_runtime_is_made(host, tmp_path, name, content, message):
    write_text_files(tmp_path, TOKENIZER)
    (tmp_path / name).write_text(content)
    with pytest.raises(DamagedFile) as error:
        dielet.load(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not host


def test_what_is_no_model_directory_says_how_to_make_one(tmp_path):
    with pytest.raises(MissingFile, match="does not exist; make it with: dielet compile"):
        dielet.load(tmp_path / "nowhere")
    with pytest.raises(MissingFile, match="is not a model directory"):
        dielet.load(tmp_path)
    with pytest.raises(UsageError, match="threads is 0"):
        (tmp_path / "manifest.json").write_text("{}")
        dielet.load(tmp_path, threads=0)


def test_a_model_without_a_tokenizer_takes_ids(host, tmp_path):
    write_text_files(tmp_path, TOKENIZER)
    (tmp_path / "tokenizer.json").unlink()
    model = dielet.load(tmp_path)
    result = model.generate([1, 2, 3], max_new_tokens=4, stop="x")
    assert (len(result.tokens), result.text, result.finish_reason) == (4, "", "length")
    with pytest.raises(UsageError, match=r"this model has no tokenizer.json"):
        model.generate("hi")


def test_special_tokens_of_the_config_reach_the_template(host, tmp_path):
    write_text_files(tmp_path, TOKENIZER, "{{ bos_token }}+{{ eos_token }}")
    (tmp_path / "config.json").write_text('{"bos_token_id": 0, "eos_token_id": [1, 0]}')
    model = dielet.load(tmp_path)
    assert model.text.chat_prompt([{"role": "user", "content": ""}], None) == (
        "<|im_start|>+<|im_end|>"
    )


def test_options_are_the_documented_ones():
    assert session.Options.__doc__ is not None
    for name in session.Options.__annotations__:
        assert name in session.Options.__doc__
