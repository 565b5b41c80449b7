"""What ends processes while a session runs: signals become exceptions, and wait for the writing.

Python lets only the main thread say what a signal does: elsewhere all of this does nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
]  # which by themselves would end the process at once


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def catch() -> None:
    """Let signals that end the process do it as an exception does; others' handlers stay."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _ended)


def release() -> None:
    """Undo `catch`."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is _ended:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Hold back the first signal that would end the block; the second one does.

    what: is happening, for the message.  Afterwards the signal has its usual effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known: tuple[object, ...] = (signal.SIG_DFL, signal.default_int_handler, _ended)
    before = {
        number: handler
        for number in (signal.SIGINT, *ENDING)
        if (handler := signal.getsignal(number)) in known
    }
    came: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            _usual(number)
        print(f"dielet: {what}; once more gives it up", file=sys.stderr, flush=True)

    for number in before:
        signal.signal(number, later)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        _usual(came[0])


def _usual(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
