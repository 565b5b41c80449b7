"""argparse with our manners: errors are raised, options are never abbreviated, typos are met."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from dielet.cli import streams
from dielet.errors import UsageError


class CommandLineError(UsageError):
    """A command line that cannot be understood; `usage` shows how it is written."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """After --help and --version, whose text argparse leaves in the buffer."""
        streams.to_stdout("")
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            # It may have had one that looks like an option.
            message += "; one that begins with - is written with =, as in --option=-1"
        raise CommandLineError(message, self.format_usage().strip())

    def refuse(self, extra: Sequence[str]) -> NoReturn:
        """Raise for arguments that are not known, with the nearest option for each."""
        options = [o for action in self._actions for o in action.option_strings]
        parts = []
        for word in extra:
            if not word.startswith("-"):
                continue
            name = word.split("=", 1)[0]
            parts.append(f"unknown option {name}{did_you_mean(name, options)}")
        self.error("; ".join(parts) or f"unexpected argument {extra[0]!r}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    # Without the dashes, which any two options have in common.
    bare = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), bare, 1, 0.6)
    return f"; did you mean {bare[near[0]]}?" if near else ""


def add_compress(parser: argparse.ArgumentParser) -> None:
    """How the files of --profile are written."""
    parser.add_argument(
        "--compress", action=argparse.BooleanOptionalAction,
        help="with --profile: write compressed packets; default: into files that are large",
    )  # fmt: skip


def add_revision(parser: argparse.ArgumentParser) -> None:
    """Which state of a model of the hub."""
    parser.add_argument(
        "--revision", metavar="REV", help="of a hub id: branch, tag or commit; default: main"
    )


def at_revision(src: str, revision: str | None) -> str:
    """`src` at the revision asked for, as one name."""
    if revision is None:
        return src
    if os.path.exists(src) or "@" in src:
        why = "names one already" if "@" in src else "is here, not on the hub"
        raise UsageError(f"--revision {revision} means nothing: {src} {why}; leave it out")
    return f"{src}@{revision}"


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that every subcommand has."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout")
    loudness = group.add_mutually_exclusive_group()
    loudness.add_argument(
        "-v", "--verbose", dest="verbosity", action="store_const", const=1, default=0,
        help="details on stderr",
    )  # fmt: skip
    loudness.add_argument(
        "-q", "--quiet", dest="verbosity", action="store_const", const=-1,
        help="only results and errors",
    )  # fmt: skip
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def whole_numbers(text: str) -> tuple[int, ...]:
    """argparse type of a comma-separated list."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers such as 512,1024"
        ) from None


def percent(text: str) -> float:
    """argparse type of a share: 10 or 10%."""
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage such as 10%") from None


def place(text: str) -> str:
    """argparse type of a path or hub id.  Path("") would be the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; the current directory is written .")
    return os.path.expanduser(text)  # unlike Path's, it leaves the ~ of an unknown user alone
