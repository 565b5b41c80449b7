"""Kept keys and values on real programs: the bits of a cold run, in every format and family."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dielet
from dielet.generate.context import left_out, without
from dielet.generate.receipt import sha256
from dielet.generate.session import Model
from dielet.generate.text import NoText
from dielet.host import Runtime, load_runtime
from tests.families import spec_of
from tests.models import LLAMA, QWEN, compiled
from tests.profiler.talking import talking

LADDER = (64, 128, 256)
TOKENS = [int(n) for n in np.random.default_rng(5).integers(0, 331, 300)]

# The window of mistral is 50, that of some layers of gemma3 is 40; qwen3_moe chooses experts.
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-bf16": {"spec": QWEN, "weights": "bf16"},
    "qwen3-int8-kv-int8": {"spec": QWEN, "weights": "int8", "kv": "int8", "chiplets": 2},
    "llama-int4": {"spec": LLAMA, "weights": "int4", "group": 32},
    "mistral-kv-int8": {"spec": spec_of("mistral"), "weights": "bf16", "kv": "int8"},
    "gemma3": {"spec": spec_of("gemma3"), "weights": "bf16"},
    "qwen3_moe": {"spec": spec_of("qwen3_moe"), "weights": "bf16"},
}


@pytest.fixture(scope="module", params=MODELS)
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    folder = tmp_path_factory.mktemp("model") / "m"
    options = {"max_seq_len": 256, "kv_ladder": LADDER, "chiplets": 1, **MODELS[request.param]}
    compiled(folder, **options)
    loaded = load_runtime(folder, threads=2)
    yield loaded
    loaded.close()


def model_on(runtime: Runtime, prefix_cache_mb: int = 0) -> Model:
    return Model(runtime, NoText(), runtime.files.path, prefix_cache_mb=prefix_cache_mb)


def one_by_one(runtime: Runtime, tokens: list[int]) -> list[str]:
    """The hash of the logits after each token, fed alone: no chunks, nothing taken over."""
    state = runtime.new_state()
    return [sha256(runtime.forward(state, np.array([t], np.int32)).values) for t in tokens]


def test_hits_of_every_length_have_the_bits_of_a_cold_run(runtime: Runtime) -> None:
    """At, before and after the edges of chunks (16), panels (32), rungs (64) and windows."""
    prompt = TOKENS[:140]
    expected = one_by_one(runtime, prompt)
    assert len(set(expected)) == len(expected), "they would show a wrong cache"
    model = model_on(runtime, 64)
    model.generate(prompt, max_new_tokens=1)
    for length in [
        *range(1, 36),
        39,
        40,
        41,
        49,
        50,
        51,
        63,
        64,
        65,
        95,
        96,
        97,
        127,
        128,
        139,
        140,
    ]:
        receipt = model.generate(prompt[:length], max_new_tokens=1).receipt
        assert receipt.reused_tokens == length - 1 and receipt.prefill_passes == 1
        assert receipt.logits_sha256 == expected[length - 1], length


@pytest.mark.parametrize("at", [1, 15, 16, 17, 31, 32, 33, 77, 111, 112, 113, 127, 128, 138, 139])
def test_prompts_that_differ_have_the_bits_of_a_cold_run(runtime: Runtime, at: int) -> None:
    """And so do 30 tokens more, over the next rung."""
    model, cold = model_on(runtime, 64), model_on(runtime)
    model.generate(TOKENS[:140], max_new_tokens=20)
    prompt = [*TOKENS[:at], *TOKENS[150 : 290 - at]]
    ours = model.generate(prompt, max_new_tokens=30)
    theirs = cold.generate(prompt, max_new_tokens=30)
    assert ours.receipt.reused_tokens == at
    assert ours.receipt.prefill_passes == -(-(140 - at) // 16) <= theirs.receipt.prefill_passes
    assert ours.tokens == theirs.tokens
    assert ours.receipt.logits_sha256 == theirs.receipt.logits_sha256


def test_a_file_has_the_bits_too(runtime: Runtime, tmp_path: Path) -> None:
    path = runtime.files.path
    expected = model_on(runtime).generate(TOKENS[:100], max_new_tokens=20)
    for reused in (0, 99):
        with dielet.load(path, threads=1) as model:
            found = model.generate(TOKENS[:100], max_new_tokens=20, prompt_cache=tmp_path / "c")
        assert found.receipt.reused_tokens == reused
        assert found.tokens == expected.tokens
        assert found.receipt.logits_sha256 == expected.receipt.logits_sha256


def test_a_shift_has_the_bits_of_a_fresh_run_on_what_stays(runtime: Runtime) -> None:
    model = model_on(runtime)
    prompt, keep = TOKENS[:200], 7
    result = model.generate(prompt, max_new_tokens=230, context_shift=True, keep=keep)
    text = [*prompt, *result.tokens]
    assert result.receipt.dropped_tokens == left_out(429, keep, 256) == 250
    for end in (256, 257, 300, 381, 382, 420, 429):
        stays = without(text[:end], keep, left_out(end, keep, 256))
        assert model.generate(stays, max_new_tokens=1).tokens == [text[end]]
    fresh = model.generate(stays, max_new_tokens=1)
    assert fresh.receipt.logits_sha256 == result.receipt.logits_sha256


def test_threads_get_what_one_after_the_other_gets(runtime: Runtime) -> None:
    cases: list[tuple[list[int], dict[str, Any]]] = [
        (TOKENS[:90], {}),
        (TOKENS[:90], {"speculate": 5}),
        ([*TOKENS[:60], 3, 4], {"temperature": 0.9, "seed": 2}),
        (TOKENS[:33], {"repetition_penalty": 1.2}),
        (TOKENS[:250], {"context_shift": True}),
        ([*TOKENS[:5] * 12], {"speculate": 8}),
    ]
    cold = model_on(runtime)
    expected = [cold.generate(p, max_new_tokens=25, **o).tokens for p, o in cases]
    model = model_on(runtime, 1)
    found: dict[int, list[int]] = {}

    def answer(number: int) -> None:
        prompt, options = cases[number % len(cases)]
        found[number] = model.generate(prompt, max_new_tokens=25, **options).tokens

    threads = [threading.Thread(target=answer, args=(n,)) for n in range(2 * len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [found.get(n) for n in range(len(threads))] == [*expected, *expected]


def test_a_file_of_another_format_is_not_taken(tmp_path: Path) -> None:
    for kv in ("bf16", "int8"):
        compiled(tmp_path / kv, QWEN, weights="bf16", kv=kv)
    with dielet.load(tmp_path / "bf16", threads=1) as model:
        model.generate(TOKENS[:50], max_new_tokens=1, prompt_cache=tmp_path / "file")
    with dielet.load(tmp_path / "int8", threads=1) as model:
        cold = model.generate(TOKENS[:50], max_new_tokens=1)
        with pytest.warns(UserWarning, match="bf16 keys and values, this model has int8"):
            found = model.generate(TOKENS[:50], max_new_tokens=1, prompt_cache=tmp_path / "file")
    assert found.receipt.logits_sha256 == cold.receipt.logits_sha256
    compiled(tmp_path / "other", QWEN, weights="int8", kv="int8")
    with (
        dielet.load(tmp_path / "other", threads=1) as model,
        pytest.warns(UserWarning, match="another model"),
    ):
        model.generate(TOKENS[:50], max_new_tokens=1, prompt_cache=tmp_path / "file")


def test_a_closed_model_is_gone_at_once_and_its_results_stay(tmp_path: Path) -> None:
    """Its files are no longer open or mapped: nothing waits for the garbage collector."""
    talking(tmp_path / "m", weights="int8")

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path / "m"))

    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    results, files = [], opened()
    gc.disable()
    try:
        for _ in range(3):
            with dielet.load(tmp_path / "m", threads=2) as model:
                assert mapped() and opened() > files
                results.append(model.generate(TOKENS[:40], max_new_tokens=3, speculate=2))
                stream = model.stream(TOKENS[:40])
                next(stream)
                stream.close()
            del model, stream
            assert not mapped() and opened() == files
    finally:
        gc.enable()
    assert all(result.receipt.share_of_bandwidth > 0 for result in results)


@pytest.mark.usefixtures("usual_signals")
def test_interrupts_at_any_moment_leave_a_model_that_answers(tmp_path: Path) -> None:
    """As by Ctrl-C, some hundred times, while other threads use the model too."""
    compiled(tmp_path / "m", QWEN, weights="bf16")
    with dielet.load(tmp_path / "m", threads=2, prefix_cache_mb=1) as model:
        prompt, options = TOKENS[:80], {"max_new_tokens": 20}
        expected = model.generate(prompt, **options).tokens
        ended = threading.Event()

        def beside() -> None:
            while not ended.is_set():
                model.generate(TOKENS[100:130], max_new_tokens=3)

        def interrupt(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        others = [threading.Thread(target=beside) for _ in range(2)]
        before = signal.signal(signal.SIGALRM, interrupt)
        interrupted = 0
        try:
            for thread in others:
                thread.start()
            for attempt in range(200):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 + 1e-4 * (attempt % 100))
                    model.generate(prompt, **options)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            ended.set()
            for thread in others:
                thread.join(60)
        assert not any(thread.is_alive() for thread in others)
        assert interrupted > 20
        assert model.generate(prompt, **options).tokens == expected
