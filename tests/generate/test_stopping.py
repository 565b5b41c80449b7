"""How an answer is stopped, by whom, and what several at the same time do to each other."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

import dielet
from dielet.errors import UsageError
from tests.generate.fake import FakeRuntime, byte_level_tokenizer, fake_model

ROOT = Path(dielet.__file__).parents[1]
TOKENIZER = byte_level_tokenizer()
VOCAB = 410
END = 1  # <|im_end|>


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def saying(text):
    """A model whose greedy answer is `text` and then the end-of-text token."""
    return fake_model(eos=[END], script=[*ids_of(text), END])


def test_closing_the_iterator_stops_at_once():
    runtime = FakeRuntime(VOCAB)
    stream = fake_model(runtime).stream("hi", max_new_tokens=100)
    text = next(stream) + next(stream)
    done = len(runtime.executed)
    stream.close()
    assert len(runtime.executed) == done
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text.startswith(text)
    assert list(stream) == []


def test_a_stream_that_is_dropped_frees_its_cache():
    runtime = FakeRuntime(VOCAB)
    model = fake_model(runtime)
    gc.disable()
    try:
        for piece in model.stream("hi", max_new_tokens=100):
            del piece
            break
        state = weakref.ref(runtime.states.pop())
        assert state() is None
    finally:
        gc.enable()


def test_a_callback_that_returns_false_stops_at_once():
    got = []

    def callback(piece):
        got.append(piece)
        return len(got) < 3

    result = fake_model().generate("hi", callback=callback, max_new_tokens=100)
    assert len(got) == 3
    assert result.finish_reason == "cancelled"
    assert result.text.startswith("".join(got))


def test_a_callback_that_returns_nothing_goes_on():
    got = []
    result = saying("as you like it").generate("hi", callback=got.append)
    assert "".join(got) == result.text == "as you like it"


def test_an_exception_in_a_callback_stops_and_is_passed_on():
    runtime = FakeRuntime(VOCAB)
    with pytest.raises(RuntimeError, match="enough"):
        fake_model(runtime).generate(
            "hi", callback=lambda piece: (_ for _ in ()).throw(RuntimeError("enough"))
        )
    assert len(runtime.executed) <= 4


def test_cancel_from_elsewhere_ends_after_the_running_program_and_keeps_the_text():
    runtime = FakeRuntime(VOCAB, script=ids_of("EEEEEEEEEE"))
    stream = fake_model(runtime).stream("hi", stop="EN")
    pieces = [next(stream)]
    stream.cancel()
    done = len(runtime.executed)
    pieces += list(stream)
    assert len(runtime.executed) == done
    assert stream.result.finish_reason == "cancelled"
    assert "".join(pieces) == stream.result.text == TOKENIZER.decode(stream.result.tokens)


def test_cancel_between_two_chunks_of_a_long_prompt():
    runtime = FakeRuntime(VOCAB, chunk=16)
    stream = fake_model(runtime).stream([5] * 200)
    runtime._before_forward = lambda state: stream.cancel() if state.past == 32 else None
    assert list(stream) == []
    assert len(runtime.executed) == 3
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.receipt.new_tokens == 0


def test_an_interrupt_inside_a_program_leaves_the_text_so_far():
    def interrupt(state):
        if state.past == 40:
            raise KeyboardInterrupt

    stream = fake_model(before_forward=interrupt).stream([5] * 35)
    pieces = []
    with pytest.raises(KeyboardInterrupt):
        pieces.extend(stream)
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.result.tokens) == 6


@pytest.mark.parametrize("script", ["", "EEEEEEEEEE"])
def test_close_from_another_thread_ends_the_answer_after_the_running_program(script):
    running = threading.Event()
    closed = threading.Event()
    late = time.monotonic() + 10

    def wait(state):
        if state.past == 36:
            running.set()
            while not stream._decoding.cancelled and time.monotonic() < late:
                time.sleep(0.001)

    def close():
        running.wait(10)
        stream.close()
        closed.set()

    runtime = FakeRuntime(VOCAB, before_forward=wait, script=ids_of(script))
    stream = fake_model(runtime).stream([5] * 35, stop="EN")
    thread = threading.Thread(target=close)
    thread.start()
    pieces = list(stream)
    thread.join()
    assert closed.is_set()
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.result.tokens) == 3 and runtime.states[0].past == 37
    assert stream.result.text.startswith("".join(pieces))


def test_close_from_inside_as_by_a_signal_handler_ends_the_answer():
    runtime = FakeRuntime(VOCAB)
    stream = fake_model(runtime).stream([5] * 35)
    runtime._before_forward = lambda state: stream.close() if state.past == 40 else None
    list(stream)
    assert stream.result.finish_reason == "cancelled" and len(stream.result.tokens) == 7


def test_threads_may_read_one_stream_in_turns():
    stream = fake_model().stream("hi", max_new_tokens=60)
    shares = [[], [], []]
    threads = [threading.Thread(target=share.extend, args=(stream,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stream.result.tokens) == 60
    assert sum(map(len, map("".join, shares))) == len(stream.result.text)


def test_a_program_may_end_amid_an_answer():
    code = (
        "from tests.generate.fake import fake_model\n"
        "stream = fake_model().stream('hi')\n"
        "for piece in stream: break\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ended.stderr == ""


def test_the_result_of_an_unfinished_answer_is_an_error():
    stream = fake_model().stream("hi")
    next(stream)
    with pytest.raises(UsageError, match="not finished"):
        _ = stream.result


# --- several at once ----------------------------------------------------------------------------


def test_concurrent_answers_queue_up_and_do_not_mix():
    model = fake_model(max_seq_len=128)
    prompts = [[5 + i] * (3 + i) for i in range(6)]
    alone = [model.generate(p, max_new_tokens=20).tokens for p in prompts]
    together = [None] * len(prompts)

    def answer(i):
        together[i] = model.generate(prompts[i], max_new_tokens=20).tokens

    threads = [threading.Thread(target=answer, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_two_streams_of_one_thread_can_be_read_in_turns():
    model = fake_model()
    one = model.stream([7, 8], max_new_tokens=10)
    two = model.stream([9], max_new_tokens=10)
    for _ in zip(one, two, strict=False):
        pass
    assert model.generate([9], max_new_tokens=3).tokens == two._decoding.tokens[:3]


def test_a_closed_model_says_so_and_a_running_stream_ends():
    runtime = FakeRuntime(VOCAB)
    model = fake_model(runtime)
    stream = model.stream("hi")
    next(stream)
    model.close()
    model.close()
    assert runtime.closed
    with pytest.raises(UsageError, match="the model is closed"):
        list(stream)
    with pytest.raises(UsageError, match="the model is closed"):
        list(model.stream("hi"))
