"""Say where the time of a trace went, and what to do about it."""

from __future__ import annotations

import argparse

from dielet.cli.console import Console
from dielet.cli.parser import place

HELP = "say where the time of a trace went, and what to do about it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=place, metavar="TRACE.pb", help="of `dielet run --profile`")


def run(args: argparse.Namespace, console: Console) -> None:
    import msgspec

    from dielet.analysis.api import analyze

    found = analyze(args.trace)
    console.result(msgspec.to_builtins(found))
