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
import torch
from transformers import AutoTokenizer

from dielet.cli import main as cli
from dielet.compat.transformers import DieletForCausalLM
from dielet.image import read_manifest
from tests.compat.hub import ROLES, SIZES, dielet, unknown_family
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


def answer(directory: Path, *words: str, said: str = "context of 2048 tokens is full") -> str:
    """What it says; these models never end an answer, which the context then does."""
    ended = subprocess.run(
        [*PROGRAM, "-d", str(directory), *words], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0 and (said in ended.stderr if said else not ended.stderr)
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


def test_a_shorter_answer_and_a_seed(qwen3, tmp_path: Path) -> None:
    """The end that was asked for is no surprise, and the seed chooses the answer."""
    directory = Path(shutil.copytree(qwen3[0], tmp_path / "m"))
    sampled = {"do_sample": True, "temperature": 5.0, "top_k": 0}
    (directory / "generation_config.json").write_text(json.dumps(sampled))
    with DieletForCausalLM.from_pretrained(directory):  # which takes the new file over
        pass
    words = ("-p", "who are you", "--max-new-tokens", "12")
    first, again, other = (answer(directory, *words, "--seed", n, said="") for n in "112")
    assert first == again != other
    tokens = AutoTokenizer.from_pretrained(qwen3_tokenizer_dir())(first)["input_ids"]
    assert len(tokens) < 60


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


def test_a_decoder_of_an_unknown_name_is_run_by_its_role_map(tmp_path: Path, capsys) -> None:
    """The same contract under other names: the answer is that of the model it was renamed from."""
    known, unknown = unknown_family(tmp_path)
    compile_ = ["compile", "--max-seq-len", "512", "-q", "-o"]
    assert cli.main([*compile_, str(tmp_path / "a"), str(known)]) == 0
    assert cli.main([*compile_, str(tmp_path / "b"), str(unknown)]) == 1
    assert "'gptish' is not supported" in capsys.readouterr().err
    assert cli.main([*compile_, str(tmp_path / "b"), str(unknown), "--roles", str(ROLES)]) == 0
    answers = {name: spoken(tmp_path / name, tmp_path) for name in "ab"}
    assert len(answers["a"]) == 40 and answers["a"] == answers["b"]
    assert answer(tmp_path / "b", "-p", "who are you", said="context of 512 tokens is full")


def test_transformers_generates_with_it_too(tmp_path: Path) -> None:
    known, unknown = unknown_family(tmp_path)
    ids = torch.arange(5, 45)[None]
    options = {"max_new_tokens": 10, "do_sample": False}
    found = []
    for source, more in ((known, {}), (unknown, {"roles": str(ROLES)})):
        with DieletForCausalLM.from_pretrained(source, max_seq_len=512, **more) as model:
            found.append(model.generate(ids, **options).tolist())
    assert found[0] == found[1]


def spoken(directory: Path, cwd: Path) -> list[int]:
    """Forty tokens of the greedy answer to the board's question."""
    ended = dielet("run", str(directory), "-p", "who are you", "--temperature", "0", "--json",
                   "--max-new-tokens", "40", home=cwd, cwd=cwd)  # fmt: skip
    return list(json.loads(ended.stdout)["tokens"])
