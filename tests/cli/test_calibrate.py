"""`compile --calibrate` and `explain --accuracy`, as people type them."""

import json

import numpy as np
import pytest

import dielet as package
from tests import tiny
from tests.generate.fake import byte_level_tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "tiny-qwen3"
    tiny.make(folder, "qwen3", vocab_size=416, spread=4.0)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = np.random.default_rng(1).choice(["hello", "world", "and", "code();"], 400)
    path.write_text(" ".join(words))
    return path


def compiled(dielet, source, out, *more):
    return dielet("compile", source, "-o", out, "--weights", "int4", "--max-seq-len", 256, *more)


def test_compile_says_what_calibration_came_to(dielet, source, text, tmp_path):
    out = tmp_path / "out"
    spoken = compiled(dielet, source, out, "--calibrate", text, "--int8-budget", "30%", "-v")
    assert spoken.code == 0
    assert "of bf16's best tokens, KL" in spoken.out and "int8g32" in spoken.out
    assert "calibrate: 0 % of" in spoken.err and "accumulated" in spoken.err
    stored = json.loads((out / "accuracy.json").read_bytes())
    assert stored["int8_budget"] == 30
    shown = dielet("explain", out, "--accuracy")
    assert shown.out.splitlines()[1].startswith("layer") and len(shown.out.splitlines()) == 4
    assert dielet("explain", out, "--accuracy", "--json").json == stored
    with package.load(out) as model:
        assert len(model.generate([1, 2, 3], max_new_tokens=5).tokens) == 5
    again = compiled(dielet, source, out, "--calibrate", text, "--json", "-q")
    assert again.json["accuracy"]["text_sha256"] == stored["text_sha256"]
    assert again.err == ""


def test_what_cannot_be_is_one_line(dielet, source, text, tmp_path):
    out = tmp_path / "out"
    cases = {
        ("--int8-budget", "5%"): "--int8-budget 5.0 goes with a text to calibrate by",
        ("--calibrate", tmp_path / "none.txt"): "none.txt does not exist; give a text file",
        ("--calibrate", text, "--weights", "int8"): "--calibrate goes with int4 weights",
        ("--calibrate", text, "--int8-budget", "0"): "--int8-budget is 0.0; it must be above 0",
        ("--calibrate", text, "--int8-budget", "many"): "'many' is no percentage such as 10%",
    }
    for words, message in cases.items():
        spoken = compiled(dielet, source, out, *words)
        assert spoken.code in (1, 2) and message in spoken.err, words
        assert not out.exists()


def test_a_dry_run_reads_the_text_but_writes_nothing(dielet, source, text, tmp_path):
    out = tmp_path / "out"
    more = ("--calibrate", text, "--int8-budget", "10%", "--dry-run")
    spoken = compiled(dielet, source, out, *more)
    assert spoken.code == 0 and "up to 10 % more" in spoken.out and not out.exists()
    text_of_nothing = tmp_path / "empty.txt"
    text_of_nothing.touch()
    spoken = compiled(dielet, source, out, "--calibrate", text_of_nothing, "--dry-run")
    assert "empty.txt has 0 tokens, too few to calibrate with" in spoken.err


def test_explain_says_that_there_is_nothing_to_show(dielet, source, tmp_path):
    compiled(dielet, source, tmp_path / "out")
    spoken = dielet("explain", tmp_path / "out", "--accuracy")
    assert spoken.code == 1 and "compiled without --calibrate" in spoken.err
