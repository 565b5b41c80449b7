"""How a command ends: exit codes, one-line errors, interrupts, and readers that went away."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from dielet.cli.console import Console
from dielet.cli.parser import CommandLineError
from dielet.errors import DieletError, UsageError

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def finish(program: str, console: Console, command: Callable[[], int], debug: bool = False) -> int:
    """Run `command` and turn whatever ends it into an exit code and a message on stderr."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has seen enough (`| head`).  Later flushes must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return report(program, console, "interrupted", INTERRUPTED)
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        if isinstance(error, CommandLineError):
            console.error(error.usage)
        code = USAGE if isinstance(error, UsageError) else FAILED
        return report(program, console, describe(error), code, type(error).__name__)


def report(program: str, console: Console, message: str, code: int, kind: str = "") -> int:
    console.error(f"{program}: {'' if code == INTERRUPTED else 'error: '}{message}")
    console.result({"error": message, "kind": kind or message})
    return code


def describe(error: Exception) -> str:
    """One line: what was wrong and what to do next."""
    if isinstance(error, DieletError):
        return one_line(error)
    if isinstance(error, MemoryError):
        return "out of memory; use a smaller model, int4 weights, or a smaller --max-seq-len"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return (
        f"internal error, a bug in dielet: {type(error).__name__}: {one_line(error)}; "
        "run again with --debug and report what it prints"
    )


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
