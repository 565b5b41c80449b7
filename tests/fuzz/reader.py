"""A reader of what others wrote: how it is given bytes, and small files that it can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dielet.errors import DieletError
from tests.fuzz.mutate import rewritten, scratch

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Ready:
    """A reader with files to change, and where it keeps the one that it is given."""

    read: Read
    samples: tuple[bytes, ...]


@dataclass(frozen=True)
class Reader:
    """words: of its format, to be put anywhere.  errors: those that it may raise.

    usual: inputs that it is given if nobody says how many; fewer where each takes long.
    """

    make: Callable[[], Ready]
    words: tuple[bytes, ...] = ()
    errors: tuple[type[BaseException], ...] = (DieletError,)
    usual: int = 100_000


def file_reader(read: Callable[[Path], object], name: str) -> Read:
    """A reader of a file as one of bytes."""
    path = scratch() / name
    return lambda data: read(rewritten(path, data))
