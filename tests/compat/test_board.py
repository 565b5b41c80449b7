"""Seed 003, step by step: convert, look at the parts, run the board's program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from dielet.cli import main as cli
from dielet.image import read_manifest
from tests.compat.hub import SIZES, dielet
from tests.data import qwen3_tokenizer_dir
from tests.numbers.measure import judged
from tests.tiny import make

pytestmark = pytest.mark.network
PROGRAM = [sys.executable, "-c", "from dielet.cli.board import main; raise SystemExit(main())"]
PARTS = {
    "decoder_model_fixed.img",
    "norm_head_fixed.img",
    "token_embedding_weight.npy",
    "cos_weight.npy",
    "sin_weight.npy",
}
LADDER = (512, 1024, 2048)


def convert(folder: Path, family: str, **sizes: object) -> tuple[Path, object]:
    """A tiny model of `family` with Qwen3's tokenizer, compiled by the command line."""
    source = folder / f"{family}-source"
    model = make(source, family, spread=4.0, **{**SIZES, "eos_token_id": None, **sizes})
    for path in qwen3_tokenizer_dir().iterdir():
        shutil.copyfile(path, source / path.name)
    out = folder / f"{family}_model_path"
    code = cli.main(["compile", str(source), "-o", str(out), "--max-seq-len", "2048", "-q"])
    assert code == 0
    return out, model


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    return convert(tmp_path_factory.mktemp("board"), "qwen3")


def answer(directory: Path, *words: str) -> str:
    ended = subprocess.run(
        [*PROGRAM, "-d", str(directory), *words], capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_the_converted_directory_has_the_five_parts(qwen3) -> None:
    directory, model = qwen3
    manifest = read_manifest(directory)
    assert {path.name for path in directory.iterdir()} & set(manifest.files) >= PARTS
    cos, sin = np.load(directory / "cos_weight.npy"), np.load(directory / "sin_weight.npy")
    head_dim = model.config.head_dim
    assert cos.shape == sin.shape == (2048, head_dim // 2)
    assert np.allclose(cos**2 + sin**2, 1, atol=1e-6) and (cos[0] == 1).all()


def test_tie_embedding_mode_stores_one_table(qwen3, tmp_path: Path) -> None:
    directory, model = qwen3
    assert read_manifest(directory).tied and model.config.tie_word_embeddings
    table = model.config.vocab_size * model.config.hidden_size * 2
    head = (directory / "norm_head_fixed.img").stat().st_size
    assert table <= (directory / "token_embedding_weight.npy").stat().st_size < 1.01 * table
    assert head < 0.05 * table, "the graph of the head, without weights of its own"
    untied, _ = convert(tmp_path, "qwen3", tie_word_embeddings=False)
    assert (untied / "norm_head_fixed.img").stat().st_size > table


def test_the_ladder_of_subgraphs(qwen3, capsys) -> None:
    directory, _ = qwen3
    wanted = [f"prefill_128_kv{rung}" for rung in LADDER]
    wanted += [f"decode_1_kv{rung}" for rung in LADDER]
    programs = json.loads((directory / "manifest.json").read_text())["programs"]
    assert [p["name"] for p in programs][: len(wanted)] == wanted
    assert cli.main(["explain", str(directory)]) == 0
    shown = capsys.readouterr()
    assert ", ".join(wanted) in shown.err
    assert "decode_1_kv512" in shown.out
    for name in ("prefill_128_kv1024", "norm_head"):
        code = cli.main(["explain", str(directory), "--program", name])
        assert (code == 0) == (name in wanted)


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_the_answer_is_that_of_the_checkpoint(family: str, qwen3, tmp_path: Path) -> None:
    """The same program runs qwen3, qwen2 and qwen2.5; it says what transformers would say."""
    directory, model = qwen3 if family == "qwen3" else convert(tmp_path, family)
    ended = dielet("run", str(directory), "-p", "who are you", "--temperature", "0", "--json",
                   "--max-new-tokens", "30", home=tmp_path, cwd=tmp_path)  # fmt: skip
    found = json.loads(ended.stdout)
    tokenizer = AutoTokenizer.from_pretrained(qwen3_tokenizer_dir())
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "who are you"}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    tokens = np.array(found["tokens"], np.int32)
    ties = judged(model, np.array(prompt, np.int32), tokens)
    assert all(tie.gap < 0.1 for tie in ties) and len(ties) < 3
    spoken = answer(directory, "-p", "who are you")
    assert spoken.endswith("\n") and spoken.lstrip("\n")[:10] == found["text"].lstrip("\n")[:10]


def test_it_streams(qwen3) -> None:
    """The first words are there long before the last ones."""
    directory, _ = qwen3
    process = subprocess.Popen(
        [*PROGRAM, "-d", str(directory), "-p", "who are you"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1 << 16)
    running = process.poll() is None
    rest = process.stdout.read()
    assert process.wait(300) == 0
    assert first and running and len(rest) > 10 * len(first)
