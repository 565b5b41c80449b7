"""stdin, stdout and stderr that are closed, full, or of an encoding that lacks characters."""

import io
import sys
from pathlib import Path

import pytest

from dielet.cli import board
from dielet.cli import main as cli

PROGRAMS = {
    "run": lambda model: cli.main(["run", str(model), "-p", "hi"]),
    "run --json": lambda model: cli.main(["run", str(model), "-p", "hi", "--json"]),
    "board": lambda model: board.main(["-d", str(model), "-p", "hi"]),
}


@pytest.fixture(params=PROGRAMS)
def program(request):
    return PROGRAMS[request.param]


@pytest.fixture
def full(monkeypatch):
    """Replaces a stream by one that cannot be written to."""
    # Leaving the block fails when something is left in the buffer that would fail again at exit.
    with Path("/dev/full").open("w") as stream:
        yield lambda name: monkeypatch.setattr(sys, name, stream)
        monkeypatch.undo()


def test_characters_that_the_encoding_lacks_are_replaced(saying, program, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert program(saying("é 😊")) == 0
    assert b"\xe9 ?" in raw.getvalue() or rb"\u00e9 \ud83d" in raw.getvalue()


def test_a_full_stdout_is_one_line(saying, program, full, capsys):
    full("stdout")
    assert program(saying("yes")) == 1
    err = capsys.readouterr().err.splitlines()
    assert "error: cannot write to stdout: No space left on device" in err[-1]
    assert not any("Traceback" in line or "Error" in line for line in err)


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["run", "--help"], []], ids=" ".join)
def test_a_full_stdout_is_noticed_by_help_too(full, capsys, argv):
    full("stdout")
    assert cli.main(argv) == 1
    assert "cannot write to stdout" in capsys.readouterr().err


def test_an_error_beside_a_full_stdout_is_still_said(full, capsys):
    full("stdout")
    assert cli.main(["run", "/nowhere", "-p", "hi", "--json"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_full_stderr_costs_no_answer(saying, full, capsys):
    full("stderr")
    assert PROGRAMS["run"](saying("yes")) == 0
    assert capsys.readouterr().out == "yes\n"


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_leads_nowhere(saying, program, monkeypatch, capsys, name):
    monkeypatch.setattr(sys, name, None)
    assert program(saying("yes")) == 0
    out, err = capsys.readouterr()
    assert ("yes" in out) == (name != "stdout")
    assert "internal error" not in err


def test_a_chat_without_stdin_is_over(dielet, saying, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    spoken = dielet("run", saying("yes"), "-q")
    assert (spoken.code, spoken.out, spoken.err) == (0, "", "")


def test_a_prompt_that_is_no_text_is_refused(dielet, saying, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8"))
    spoken = dielet("run", saying("yes"), "-p", "-")
    assert spoken.code == 2
    assert "the prompt" in spoken.err and "position 2" in spoken.err
