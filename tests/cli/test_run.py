"""`dielet run` and `prog_llm_qwen3`: the answer, the receipt, chat, and how they end."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dielet.cli import board

RECEIPT = [
    "load_s", "prompt_tokens", "ttft_s", "prefill_tok_s", "new_tokens", "decode_tok_s",
    "program_switches", "weight_bytes_per_token", "read_gb_s", "share_of_bandwidth",
    "peak_rss_bytes", "decode_passes", "logits_sha256", "finish_reason", "reused_tokens",
    "prefill_passes", "dropped_tokens",
]  # fmt: skip
ROOT = Path(__file__).parents[2]


def test_the_answer_is_on_stdout_and_the_receipt_on_stderr(dielet, saying):
    spoken = dielet("run", saying("Grüße 😊"), "-p", "hi")
    assert spoken.code == 0
    assert spoken.out == "Grüße 😊\n"
    assert "tokens/s" in spoken.err and "sha256" in spoken.err


def test_quiet_is_only_the_answer(dielet, saying):
    spoken = dielet("run", "-d", saying("yes"), "-p", "hi", "-q")
    assert (spoken.out, spoken.err) == ("yes\n", "")


def test_json_is_the_receipt_the_text_and_the_tokens(dielet, saying):
    spoken = dielet("run", saying("yes"), "-p", "hi", "--json")
    found = spoken.json
    assert list(found)[: len(RECEIPT)] == RECEIPT
    assert found["text"] == "yes" and found["tokens"][-1] == 1
    assert found["finish_reason"] == "stop" and found["seed"] is None


def test_options_reach_the_answer(dielet, saying):
    model = saying("one two three")
    assert dielet("run", model, "-p", "x", "--stop", "two", "--stop", "9").out == "one \n"
    assert dielet("run", model, "-p", "x", "--max-new-tokens", 1, "--json").json["new_tokens"] == 1
    sampled = ["--temperature", 1.5, "--top-k", 50, "--top-p", 0.9, "--min-p", 0.01]
    sampled += ["--repetition-penalty", 1.1, "--seed", 7, "--max-new-tokens", 20, "--json"]
    one, two = (dielet("run", model, "-p", "x", *sampled).json for _ in range(2))
    assert one["text"] == two["text"] and one["seed"] == 7
    plain = dielet("run", model, "-p", "x", "--json").json["prompt_tokens"]
    system = dielet("run", model, "-p", "x", "--json", "--system", "be kind").json
    quick = dielet("run", model, "-p", "x", "--json", "--no-thinking").json
    raw = dielet("run", model, "-p", "x", "--json", "--raw").json
    assert system["prompt_tokens"] > quick["prompt_tokens"] > plain > raw["prompt_tokens"] == 1
    dielet("run", model, "-p", "x", "--threads", 3)
    assert saying.runtimes[-1].threads == 3
    assert all(runtime.closed for runtime in saying.runtimes)


def test_the_prompt_may_come_from_stdin(dielet, saying, monkeypatch):
    model = saying("yes")
    monkeypatch.setattr("sys.stdin", io.StringIO("a long prompt from a file"))
    given = dielet("run", model, "-p", "-", "--json").json["prompt_tokens"]
    assert (
        given
        == dielet("run", model, "-p", "a long prompt from a file", "--json").json["prompt_tokens"]
    )


def test_a_prompt_that_is_too_long_is_an_error_with_both_numbers(dielet, saying):
    spoken = dielet("run", saying("yes"), "-p", "word " * 300)
    assert spoken.code == 1
    assert "the context of this model holds 256" in spoken.err
    assert "compile with a larger --max-seq-len" in spoken.err
    assert saying.runtimes[-1].executed == []


def test_options_without_effect_are_said(dielet, saying):
    model = saying("yes")
    assert (
        "--top-k: no effect on a greedy answer" in dielet("run", model, "-p", "x", "--top-k", 3).err
    )
    assert (
        "no effect"
        not in dielet(
            "run", model, "-p", "x", "--top-k", 3, "--temperature", 1, "--max-new-tokens", 2
        ).err
    )


def test_chat_answers_line_by_line_and_remembers(dielet, saying, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n  /reset \nagain\n/exit\nnever\n"))
    spoken = dielet("run", saying("yes"), "-q")
    assert spoken.code == 0
    assert spoken.out == "yes\n\nyes\n\n"
    state = saying.runtimes[-1].states
    assert len(state) == 2  # /reset forgot the first


def test_chat_ends_at_the_end_of_its_input(dielet, saying, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nmore"))
    spoken = dielet("run", saying("yes"), "-q")
    assert (spoken.code, spoken.out) == (0, "yes\n\nyes\n\n")
    assert len(saying.runtimes[-1].states) == 1


def test_a_prompt_cache_spares_the_next_run_the_prompt(dielet, saying, tmp_path):
    model, file = saying("yes"), tmp_path / "cache"
    first = dielet("run", model, "-p", "a long question", "--prompt-cache", file, "--json").json
    again = dielet("run", model, "-p", "a long question", "--prompt-cache", file)
    assert first["reused_tokens"] == 0 and again.out == "yes\n"
    known = f"{first['prompt_tokens']} tokens, {first['prompt_tokens'] - 1} of them known, first"
    assert known in again.err
    saying.runtimes.clear()
    file.write_bytes(file.read_bytes()[:-1])
    spoken = dielet("run", model, "-p", "a long question", "--prompt-cache", file, "--json")
    assert spoken.json["reused_tokens"] == 0 and spoken.code == 0
    said = f"prompt cache {file}: it is damaged; the prompt is computed, and the file replaced\n"
    assert spoken.err == said
    quiet = dielet("run", model, "-p", "a long question", "--prompt-cache", file, "-q")
    assert (quiet.out, quiet.err) == ("yes\n", "")


def test_a_prompt_cache_that_would_overwrite_something_else(dielet, saying, tmp_path):
    (tmp_path / "novel.txt").write_text("Chapter One")
    spoken = dielet("run", saying("yes"), "-p", "x", "--prompt-cache", tmp_path / "novel.txt")
    assert spoken.code == 1 and spoken.out == ""
    assert spoken.err.startswith("dielet run: error: ") and spoken.err.count("\n") == 1
    assert "is no prompt cache; name another file, or remove this one" in spoken.err
    assert (tmp_path / "novel.txt").read_text() == "Chapter One"


def test_a_full_context_ends_the_answer_or_shifts(dielet, saying):
    model = saying("word " * 200)  # of 256
    full = dielet("run", model, "-p", "x " * 60, "--json").json
    assert full["finish_reason"] == "length" and full["text"].startswith("word word")
    assert full["prompt_tokens"] + full["new_tokens"] == 257 and full["dropped_tokens"] == 0
    shift = ["--context-shift", "--keep", 10, "--max-new-tokens", 300]
    spoken = dielet("run", model, "-p", "x " * 60, *shift)
    assert "ended by: length" in spoken.err and "300 tokens" in spoken.err
    assert f"74 tokens, {(256 - 10) // 2} dropped from the context, first" in spoken.err
    long = dielet("run", model, "-p", "x " * 600, *shift, "--json").json
    assert long["new_tokens"] == 300 and long["dropped_tokens"] == 123 * 6
    assert long["prompt_tokens"] <= 256


def test_a_chat_says_what_it_reused_and_keeps_its_memory_over_a_reset(dielet, saying, monkeypatch):
    model = saying("yes")
    for memory, known in (([], True), (["--prefix-cache-mb", 0], False)):
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\nmore\n/reset\nhello\n"))
        spoken = dielet("run", model, "-v", *memory)
        turns = [line for line in spoken.err.splitlines() if "prompt" in line]
        assert [" known" in turn for turn in turns] == [False, True, known]


def test_the_board_program_prints_the_answer_and_nothing_else(saying, capsys):
    model = saying("<think>\nOkay, the user asked.\n</think>\n\nHello! 😊")
    assert board.main(["-d", str(model), "-p", "who are you"]) == 0
    out, err = capsys.readouterr()
    assert out == "Okay, the user asked.\n\n\nHello! 😊\n"
    assert err == ""


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], 2, "prog_llm_qwen3: error: the following arguments are required: -d"),
        (["-d", "x", "--prompt", "y"], 2, "unknown option --prompt"),
        (["-d", "/nowhere"], 1, "prog_llm_qwen3: error: /nowhere does not exist"),
    ],
)
def test_the_board_program_fails_like_the_others(capsys, argv, code, message):
    assert board.main(argv) == code
    assert message in capsys.readouterr().err


def start(tmp_path, *argv):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cli.slow_model", tmp_path / "model", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,  # a folder that has both dielet and tests
    )


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("program", ["run", "board"])
def test_an_interrupt_ends_with_130_and_the_text_so_far(tmp_path, program):
    with start(tmp_path, program) as process:
        first = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=20)
    assert process.returncode == 130
    text = (first + rest).decode()  # no character was cut in two
    assert text.endswith("\n") and text.startswith("ééé")
    assert set(text.rstrip()[:-1]) == {"é"}  # the last one may have come by half
    assert b"Traceback" not in err


@pytest.mark.usefixtures("usual_signals")
def test_an_interrupted_answer_is_still_one_json_object(tmp_path):
    import json

    with start(tmp_path, "run", "--json") as process:
        assert process.stderr.readline() == b"answering\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    found = json.loads(out)
    assert found["finish_reason"] == "cancelled"
    assert found["text"].strip("é") in ("", "\ufffd")


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    with start(tmp_path, "run", "-q") as process:
        process.stdout.read(4)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=20) == 0
    assert err == b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--raw", "--no-thinking"], None),
        (["--raw", "--system", "x"], "--system needs the chat template, but raw text goes without"),
        (["--top-k", -1, "--temperature", 1], "--top-k is -1"),
        (["--top-p", 2], "--top-p is 2.0"),
        (["--max-new-tokens", 0], "--max-new-tokens is 0"),
        (["--speculate", 99], "--speculate is 99"),
        (["--keep", 4], "--keep has no meaning without --context-shift; leave it out"),
        (["--context-shift", "--keep", 300], "--keep is 300; it must be from 0 to 254, two less"),
        (["--prefix-cache-mb", -1], "--prefix-cache-mb is -1; it must be a whole number of meg"),
        (["--prefix-cache-mb", 1 << 31], "--prefix-cache-mb is 2147483648; it must be a whole"),
    ],
)
def test_errors_name_options_as_they_are_typed(dielet, saying, options, message):
    spoken = dielet("run", saying("yes"), "-p", "x", *options)
    if message is None:
        message = "--no-thinking needs the chat template, but raw text goes without it; leave "
        assert "leave --no-thinking out" in spoken.err
    assert spoken.code == 2
    assert spoken.err.startswith(f"dielet run: error: {message}")  # and no hint before it
    assert spoken.err.count("\n") == 1


def test_a_model_directory_without_its_manifest_is_told_from_a_checkpoint(dielet, tmp_path):
    (tmp_path / "decoder_model_fixed.img").touch()
    (tmp_path / "config.json").write_text("{}")
    spoken = dielet("run", tmp_path, "-p", "x")
    assert spoken.code == 1
    assert "has decoder_model_fixed.img but no manifest.json" in spoken.err
