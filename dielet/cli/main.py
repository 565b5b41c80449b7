"""`dielet`: find the subcommand, read its options, run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from dielet import __version__
from dielet.cli.console import Console
from dielet.cli.exits import finish
from dielet.cli.parser import Parser, add_common, did_you_mean

COMMANDS = (
    "demo", "compile", "run", "simulate", "analyze", "explain", "bench", "devices",
    "formats", "doctor", "exec", "completion",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    # Before the options are understood there is only what they look like.
    console = Console(as_json="--json" in argv)
    debug = "--debug" in argv

    def run() -> int:
        parser, subparsers = make_parser()
        if not argv:
            parser.print_help()
            return 0
        word = argv[0]
        if not word.startswith("-") and word not in COMMANDS:
            parser.error(f"unknown command {word!r}{did_you_mean(word, COMMANDS)}")
        args, extra = parser.parse_known_args(argv)
        if extra:
            subparsers.get(args.command or "", parser).refuse(extra)
        if args.command is None:
            parser.error("a command is needed")
        console.as_json, console.verbosity = args.json, args.verbosity
        if console.verbosity < 0:  # for downloads, here and in processes of ours
            os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        code = import_module(f"dielet.cli.{args.command}").run(args, console)
        return int(code or 0)

    name = f"dielet {argv[0]}" if argv and argv[0] in COMMANDS else "dielet"
    return finish(name, console, run, debug)


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser of everything, and those of the subcommands by name."""
    parser = Parser(
        prog="dielet",
        description="Compile language models for chiplet accelerators, run them on this machine, "
        "and see where the time goes.",
        epilog="First time here? Try: dielet demo. To complete all this with the Tab key: "
        "dielet completion --help",
    )
    parser.add_argument("--version", action="version", version=f"dielet {__version__}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND")
    subparsers = {}
    for name in COMMANDS:
        module = import_module(f"dielet.cli.{name}")
        subparser = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(subparser)
        add_common(subparser)
        subparsers[name] = subparser
    return parser, subparsers


if __name__ == "__main__":
    sys.exit(main())
