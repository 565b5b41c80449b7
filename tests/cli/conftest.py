"""The command line over a runtime without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dielet.cli import main as cli
from tests.generate.fake import FakeRuntime, byte_level_tokenizer, write_text_files

TOKENIZER = byte_level_tokenizer()
END = 1  # <|im_end|>


class Spoken:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        """The one object on stdout."""
        assert self.out.count("\n") == 1 and self.out.endswith("\n"), self.out
        return json.loads(self.out)


@pytest.fixture
def dielet(capsys):
    """Call the command line in this process."""

    def call(*argv: object) -> Spoken:
        code = cli.main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return Spoken(code, out, err)

    return call


@pytest.fixture
def saying(monkeypatch, tmp_path):
    """text -> a model directory whose greedy answers are that text; the runtimes are kept."""
    import dielet.host

    script: list[int] = []
    runtimes: list[FakeRuntime] = []

    def load_runtime(
        directory: Path, threads: int | None = None, profiler: bool | None = None
    ) -> FakeRuntime:
        runtimes.append(FakeRuntime(410, script=script, eos=[END]))
        runtimes[-1].threads = threads
        return runtimes[-1]

    monkeypatch.setattr(dielet.host, "load_runtime", load_runtime)
    write_text_files(tmp_path / "model", TOKENIZER)

    def make(text: str) -> Path:
        script[:] = [*TOKENIZER.encode(text, add_special_tokens=False).ids, END]
        return tmp_path / "model"

    make.runtimes = runtimes
    return make
