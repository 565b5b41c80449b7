"""A disk that fails, or a process that dies, at the k-th thing that is done with files.

`happening(act)` counts what Python code does to files: opening to write, every write, making,
renaming and removing.  `act` is called before each, with its number from 0 and what it is.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Act = Callable[[int, str], None]
_CHANGING = (
    "mkdir",
    "rename",
    "replace",
    "link",
    "symlink",
    "unlink",
    "rmdir",
    "write",
    "truncate",
)


@contextmanager
def happening(act: Act) -> Iterator[list[int]]:
    """While inside, `act(k)` is called before the k-th operation.  Yields [how many there were]."""
    count = [0]

    def step(what: str) -> None:
        number, count[0] = count[0], count[0] + 1
        act(number, what)

    class File(io.FileIO):
        def write(self, data: Any) -> int | None:
            step("write")
            return super().write(data)

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            step(name)
            return original(*args, **kwargs)

        return call

    real_open, real_os_open = io.open, os.open

    def open_file(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None,
                  errors: Any = None, newline: Any = None, closefd: bool = True,
                  opener: Any = None) -> Any:  # fmt: skip
        if not set(mode) & set("wax+"):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        step("open")
        raw = File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if "b" in mode and buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
        buffered: Any = kind(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)

    def os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            step("open")
        return real_os_open(path, flags, *args, **kwargs)

    before = {name: getattr(os, name) for name in _CHANGING}
    for name, original in before.items():
        setattr(os, name, counted(name, original))
    io.open = builtins.open = open_file  # type: ignore[assignment]
    os.open = os_open
    try:
        yield count
    finally:
        io.open = builtins.open = real_open
        os.open = real_os_open
        for name, original in before.items():
            setattr(os, name, original)


def full_from(k: int) -> Act:
    """The disk is full from the k-th operation on; what makes room still works."""

    def act(number: int, what: str) -> None:
        if number >= k and what not in ("unlink", "rmdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return act


def killed_at(k: int) -> Act:
    """The process is killed at the k-th operation."""

    def act(number: int, what: str) -> None:
        if number == k:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def chosen(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`: the first, the last, and some between."""
    if count <= most:
        return list(range(count))
    return sorted({round(n * (count - 1) / (most - 1)) for n in range(most)})


def nothing(number: int, what: str) -> None:
    """All is well."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or less than 0 by a signal, and what it said."""

    code: int
    out: str
    err: str
    operations: int

    @property
    def last(self) -> str:
        """The last line on stderr."""
        return (self.err.strip().splitlines() or [""])[-1]


def process(run: Callable[[], int | None], act: Act = nothing) -> Ended:
    """Run `run` in a forked process under `act`."""
    pipes = [os.pipe() for _ in range(3)]
    child = os.fork()
    if not child:
        code = 99
        try:
            for (_, put), number in zip(pipes[:2], (1, 2), strict=True):
                os.dup2(put, number)
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "utf-8", write_through=True)
            sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", write_through=True)
            write = os.write
            with happening(act) as count:
                try:
                    code = int(run() or 0)
                except BaseException:
                    traceback.print_exc()
            write(pipes[2][1], json.dumps(count[0]).encode())
        finally:
            os._exit(code)
    texts = []
    for _, put in pipes:
        os.close(put)
    for get, _ in pipes:  # little enough to fit into the pipes
        with os.fdopen(get, "rb") as pipe:
            texts.append(pipe.read().decode(errors="replace"))
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), texts[0], texts[1], int(texts[2] or 0))
