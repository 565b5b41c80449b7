"""Print a script that completes dielet's commands in a shell.

bash: dielet completion bash > ~/.local/share/bash-completion/completions/dielet;
zsh: dielet completion zsh > a directory of $fpath, as _dielet;
fish: dielet completion fish > ~/.config/fish/completions/dielet.fish
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from dielet.cli.console import Console
from dielet.cli.parser import Parser, place

HELP = "print a script that completes commands and options in bash, zsh or fish"
SHELLS = ("bash", "zsh", "fish")
_DEVICE = "NAME|PATH.toml"
_ONE_OF = re.compile(r"[a-z0-9]+(\|[a-z0-9]+)+")  # 32|64|128
_MANY = (argparse.REMAINDER, "*", "+")


@dataclass(frozen=True)
class Value:
    """What may stand in a place: some `words`, directories, and files with an `ending`.

    paths: "" for none, "dir" for directories alone, "file" for both.  label: what it is called.
    """

    label: str = ""
    words: tuple[str, ...] = ()
    paths: str = ""
    ending: str = ""


@dataclass(frozen=True)
class Option:
    """names: as they are typed.  value: None for one that takes none."""

    names: tuple[str, ...]
    help: str
    value: Value | None
    repeated: bool


@dataclass(frozen=True)
class Command:
    """places: the arguments without names, in order; the last one `repeats` or not."""

    name: str
    help: str
    options: tuple[Option, ...]
    places: tuple[Value, ...]
    repeats: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace, console: Console) -> None:
    from dielet.cli import completion_scripts as scripts

    write: dict[str, Callable[[list[Command]], str]] = {
        "bash": scripts.bash,
        "zsh": scripts.zsh,
        "fish": scripts.fish,
    }
    script = write[args.shell](commands())
    console.result({"shell": args.shell, "script": script})
    console.out(script, end="")


def commands() -> list[Command]:
    """All that can be typed: `dielet` itself first, which has no name here."""
    from dielet.cli.main import make_parser

    parser, subparsers = make_parser()
    first = Value("command", tuple(subparsers))
    top = _command("", "", parser)
    return [
        Command("", "", top.options, (first,), False),
        *(_command(name, _help_of(name), sub) for name, sub in subparsers.items()),
    ]


def _help_of(name: str) -> str:
    return str(import_module(f"dielet.cli.{name}").HELP)


def _command(name: str, about: str, parser: Parser) -> Command:
    formatter = parser._get_formatter()
    options, places, repeats = [], [], False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        if not action.option_strings:
            places.append(_value(action))
            repeats = action.nargs in _MANY
            continue
        text = formatter._expand_help(action) if action.help else ""
        value = None if action.nargs == 0 else _value(action)
        repeated = isinstance(action, argparse._AppendAction)
        options.append(Option(tuple(action.option_strings), text, value, repeated))
    return Command(name, about, tuple(options), tuple(places), repeats)


def _value(action: argparse.Action) -> Value:
    """By what stands in --help for it."""
    label = action.metavar if isinstance(action.metavar, str) else action.dest
    if action.choices is not None:
        return Value(label, tuple(map(str, action.choices)))
    if _ONE_OF.fullmatch(label):
        return Value(label, tuple(label.split("|")))
    if label == _DEVICE:
        from dielet.devices import built_in

        return Value(label, tuple(built_in()), "file", ".toml")
    if label == "DIR":
        return Value(label, paths="dir")
    endings = re.findall(r"\.\w+", label)
    if len(endings) == 1 and "SRC" not in label:
        return Value(label, paths="file", ending=endings[0])
    if action.type is place or label.startswith("FILE") or action.nargs == argparse.REMAINDER:
        return Value(label, paths="file")
    return Value(label)
