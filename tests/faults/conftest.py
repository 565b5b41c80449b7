"""What breaks in these tests: a checkpoint, a model that talks, a trace."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.numpy

from dielet.checkpoint.names import hugging_face_name
from tests.checkpoint.make import spec, weights
from tests.faults.disk import Act, Ended, nothing, process
from tests.fuzz.checkpoints import small_config
from tests.generate.fake import TEMPLATE, byte_level_tokenizer

Dielet = Callable[..., Ended]
_USED = (
    "cli.main", "cli.compile", "cli.run", "cli.analyze", "cli.simulate", "cli.bench", "cli.explain",
    "analysis.api", "analysis.html", "analysis.export", "analysis.show", "analysis.scan", "host",
    "host.measure", "generate.session", "generate.chat", "generate.sandbox", "profiler.session",
    "profiler.modelled", "image", "simulator", "codegen.jit",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of one layer whose tokenizer knows every byte."""
    folder = tmp_path_factory.mktemp("faults") / "checkpoint"
    folder.mkdir()
    sizes = {"hidden": 32, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 32,
             "intermediate": 32, "vocab": 410, "max_position": 128}  # fmt: skip
    small = spec(**sizes)
    tensors = {hugging_face_name(name): array for name, array in weights(small).items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    config = small_config(vocab_size=410, tie_word_embeddings=True, rms_norm_eps=1e-5)
    (folder / "config.json").write_text(json.dumps(config))
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


SMALL = ("--max-seq-len", "64", "--kv-ladder", "64", "--prefill-chunk", "16", "--weights", "int8")


@pytest.fixture(scope="session")
def model(checkpoint: Path, dielet: Dielet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "model"
    assert dielet("compile", checkpoint, "-o", folder, *SMALL).code == 0
    return folder


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.analysis.make import toy

    return toy().write(tmp_path_factory.mktemp("faults") / "toy.pb")


@pytest.fixture(scope="session")
def dielet() -> Dielet:
    """The command line in a process of its own, with `act` before everything done with files."""
    from dielet.cli import main

    for name in _USED:  # once, and not in every process that is forked from this one
        importlib.import_module(f"dielet.{name}")

    def call(*argv: object, act: Act = nothing) -> Ended:
        return process(lambda: main.main([str(word) for word in argv]), act)

    return call


def assert_one_line(ended: Ended, code: int = 1) -> None:
    """A failure as all failures are: its code, and one line that says why."""
    assert ended.code == code, (ended.code, ended.err)
    assert "Traceback" not in ended.err and "internal error" not in ended.err, ended.err
    lines = [line for line in ended.err.splitlines() if ": error: " in line]
    assert len(lines) == 1, ended.err
