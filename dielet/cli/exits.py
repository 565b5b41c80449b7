"""How a command ends: exit codes, one-line errors, signals, and readers that went away."""

from __future__ import annotations

import itertools
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from dielet.cli import streams
from dielet.cli.console import Console
from dielet.cli.parser import CommandLineError
from dielet.errors import CapacityError, DieletError, UsageError

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
SCRIPTS, SIMULATE = "dielet exec", "dielet simulate"
# Arguments by their Python names: those with a _ anywhere, words only where they are meant.
_LONG = (
    "max_new_tokens|top_k|top_p|min_p|repetition_penalty|max_seq_len|prefill_chunk|kv_ladder|"
    "batch_sizes|num_devices|random_weights|int8_budget|prefix_cache_mb|context_shift"
)
_WORDS = (
    "temperature|seed|stop|system|thinking|raw|speculate|keep|threads|group|minimum|layers|chiplets|"
    "calibrate"
)
_ARGUMENT = re.compile(
    rf"\b({_LONG}|(?:weights|kv|chiplets)(?==))\b"
    rf"|^({_WORDS})(?= (is|has|needs|takes|goes|must|\d))|(?<=leave )({_WORDS})(?= out)"
)
_SETTING = re.compile(
    r"\b(weights|kv|max_seq_len|prefill_chunk|batch_sizes|chiplets|num_devices)=(?=\w)"
)
_TYPED = {"thinking": "--no-thinking"}
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """SIGTERM or SIGHUP came.  Raised so that what was begun is cleaned up, as by Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.code = 128 + number  # what a shell says of a process that a signal ended


def finish(program: str, console: Console, command: Callable[[], int], debug: bool = False) -> int:
    """Run `command` and turn whatever ends it into an exit code and a message on stderr."""
    streams.prepare()
    try:
        with _signals_raised():
            code = command()
            streams.to_stdout("")  # argparse leaves what it prints in the buffer
        return code
    except streams.ReaderGone:
        return DONE
    except KeyboardInterrupt:
        return report(program, console, "interrupted", INTERRUPTED)
    except Terminated as end:
        return report(program, console, f"ended by {end.name}", end.code)
    except Exception as error:
        if debug:
            import traceback

            console.error(traceback.format_exc().rstrip("\n"))
        if isinstance(error, CommandLineError):
            console.error(error.usage)
        code, message = FAILED, describe(error)
        if isinstance(error, UsageError):
            code = USAGE
        # A script's own words are Python.
        if isinstance(error, UsageError | CapacityError) and program != SCRIPTS:
            message = as_set(message) if program == SIMULATE else as_typed(message)
        return report(program, console, message, code, type(error).__name__)


def as_typed(message: str) -> str:
    """An error about an argument in Python, as it is for one on the command line."""

    def typed(match: re.Match[str]) -> str:
        name = match[0]
        return _TYPED.get(name, "--" + name.replace("_", "-"))

    return _ARGUMENT.sub(typed, message)


def as_set(message: str) -> str:
    """The same for `dielet simulate`, where options of the compiler are a matter of --set."""
    settings = {"num_devices": "devices", "batch_sizes": "batch"}
    parts = _SETTING.split(message)  # text, name, text, name, ...
    texts = [as_typed(text) for text in parts[::2]]
    names = [f"--set {settings.get(name, name)}=" for name in parts[1::2]]
    return "".join(itertools.chain(*itertools.zip_longest(texts, names, fillvalue="")))


@contextmanager
def _signals_raised() -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP raise Terminated, unless somebody else handles them."""
    taken: list[signal.Signals] = []

    def end(number: int, frame: FrameType | None) -> None:
        for other in taken:
            signal.signal(other, signal.SIG_IGN)  # one is enough, and leaves time to clean up
        raise Terminated(number)

    if threading.current_thread() is threading.main_thread():
        # `nohup` has SIGHUP ignored, and that stays so.
        taken += [s for s in _ENDING if signal.getsignal(s) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def report(program: str, console: Console, message: str, code: int, kind: str = "") -> int:
    console.error(f"{program}: {'error: ' if kind else ''}{message}")
    with suppress(streams.ReaderGone, streams.OutputLost):  # stderr has it already
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
