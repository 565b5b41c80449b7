"""stdin, stdout and stderr as they come: closed, full, of another encoding, or given up."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from dielet.errors import DieletError


class OutputLost(DieletError):
    """What the command is for could not be written to stdout."""


class ReaderGone(Exception):
    """Whoever read stdout has seen enough (`| head`): the end of the command, but no error."""


def prepare() -> None:
    """Make all three usable; every program of ours begins with this.

    One that is closed (`>&-`) leads nowhere, as /dev/null does.  Characters that an encoding lacks
    are replaced: a terminal without emoji still gets its answer.  Bytes of stdin that are no text
    stay what they are, for whoever reads them to refuse.
    """
    for name, mode, errors in (
        ("stdin", "r", "surrogateescape"),
        ("stdout", "w", "replace"),
        ("stderr", "w", "replace"),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def to_stdout(text: str) -> None:
    """Write now.  Raises ReaderGone or OutputLost; whatever comes later then leads nowhere."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
        raise ReaderGone from None
    except OSError as error:
        _silence(sys.stdout)
        raise OutputLost(
            f"cannot write to stdout: {error.strerror or error}; the output is not complete, "
            "send it somewhere else"
        ) from error


def to_stderr(text: str) -> None:
    """Write now.  A stderr that fails is given up: nobody is left who could be told."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Lead to /dev/null, so that what is still buffered does not fail again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
