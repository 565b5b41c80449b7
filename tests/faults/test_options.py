"""Every option of every command that takes a number is given numbers that no number may be."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dielet.cli.main import make_parser
from tests.faults.conftest import SMALL, Dielet

pytestmark = pytest.mark.slow
SENSELESS = ("", "x", "nan", "inf", "-inf", "-1", "0", "1e30", "9" * 30, "9" * 5000, "0x10")
NUMBERS = ("int", "float", "whole_numbers", "percent")
# What may be any number at all, and what makes the rest of a command take no time.
COMMANDS: dict[str, list[str]] = {
    "compile": ["CHECKPOINT", "--dry-run", *SMALL],
    "run": ["MODEL", "-p", "hi", "--max-new-tokens", "1", "--threads", "1"],
    "simulate": ["CHECKPOINT", "--prompt-tokens", "4", "--new-tokens", "2"],
    "bench": ["MODEL", "--rounds", "1", "--prompt-tokens", "8", "--new-tokens", "2",
              "--contexts", "8", "--threads", "1"],
    "explain": ["MODEL"],
    "analyze": ["TRACE"],
}  # fmt: skip
TEXTS: dict[str, dict[str, str]] = {
    "analyze": {"--window": "{}:{}", "--what-if": "Neural DMA={}"},
    "simulate": {"--set": "chiplets={}"},
}
"""Options whose numbers stand inside of a text."""


def options() -> Iterator[tuple[str, str, str]]:
    """(command, option, how its number is written)."""
    for command, parser in make_parser()[1].items():
        if command == "demo":
            continue  # which fetches a model first
        for action in parser._actions:
            if getattr(action.type, "__name__", "") in NUMBERS and action.option_strings:
                yield command, action.option_strings[-1], "{}"
        for option, form in TEXTS.get(command, {}).items():
            yield command, option, form


def test_every_command_with_numbers_is_asked() -> None:
    assert {command for command, _, _ in options()} <= set(COMMANDS)


@pytest.mark.parametrize(("command", "option", "form"), list(options()))
def test_senseless_numbers(
    dielet: Dielet, checkpoint: Path, model: Path, trace: Path, command: str, option: str, form: str
) -> None:
    places = {"CHECKPOINT": str(checkpoint), "MODEL": str(model), "TRACE": str(trace)}
    argv = [places.get(word, word) for word in COMMANDS[command]]
    for value in SENSELESS:
        ended = dielet(command, *argv, f"{option}={form.format(value, value)}", "--json")
        said = f"{option}={value:.20}: {ended.code} {ended.err} {ended.out:.300}"
        assert ended.code in (0, 1, 2), said
        assert "Traceback" not in ended.err and "internal error" not in ended.err, said
        answer = json.loads(ended.out)  # one object, whatever came
        if ended.code:
            assert answer["error"] and len(answer["error"].splitlines()) == 1, said
            assert len(answer["error"]) < 2000, said
        if value in ("x", "nan", "0x10", "-inf"):  # the others may mean something
            assert ended.code, said


def test_there_are_as_many_as_expected() -> None:
    """So that a new kind of number in the parsers does not go unasked."""
    kinds = {
        action.type
        for parser in make_parser()[1].values()
        for action in parser._actions
        if action.type is not None and not isinstance(action, argparse._SubParsersAction)
    }
    assert {kind.__name__ for kind in kinds} == {*NUMBERS, "place"}
    assert len(list(options())) > 25
