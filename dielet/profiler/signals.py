"""What ends processes while a session runs: signals become exceptions, and wait for the writing.

Python lets only the main thread say what a signal does.  For sessions of other threads there is
`faulthandler`: it writes to a file when a signal comes, and a thread can wait for that.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
]  # which by themselves would end the process at once


_busy = threading.RLock()  # held by whoever writes, so that none ends the process meanwhile
_pipes: dict[int, int] = {}  # by signal: where faulthandler writes to


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def catch(end: Callable[[], None]) -> None:
    """Let signals that end the process do it as an exception does; others' handlers stay.

    Outside of the main thread they call `end` first, in a thread of their own.
    """
    main = threading.current_thread() is threading.main_thread()
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_DFL:
            continue
        if main:
            signal.signal(number, _ended)
        elif number not in _pipes:
            reader, _pipes[number] = os.pipe()
            faulthandler.register(number, _pipes[number], all_threads=False)
            threading.Thread(target=_watch, args=(number, reader, end), daemon=True).start()


def _watch(number: int, reader: int, end: Callable[[], None]) -> None:
    """Wait for a signal, or for the pipe to be closed."""
    with open(reader, "rb", 0) as pipe:
        if pipe.read(1):
            with _busy:
                end()
                release()
                os.kill(os.getpid(), number)


def release() -> None:
    """Undo `catch`."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is _ended:
                signal.signal(number, signal.SIG_DFL)
    while _pipes:
        number, writer = _pipes.popitem()
        if signal.getsignal(number) is signal.SIG_DFL:  # not if there is another handler by now
            faulthandler.unregister(number)
        os.close(writer)


def _before_fork() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:  # nobody reads the pipes there
    release()
    _after_fork()


_masks = threading.local()
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Hold back the first signal that would end the block; the second one does.

    what: is happening, for the message.  Afterwards the signal has its usual effect.
    """
    if threading.current_thread() is not threading.main_thread():
        with _busy:
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
        with _busy:
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
