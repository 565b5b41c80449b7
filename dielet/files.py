"""Files that appear whole or not at all, and what stands where one is expected."""

from __future__ import annotations

import hashlib
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from dielet.errors import DamagedFile, DieletError, MissingFile

A_FILE = "a file"
_KINDS = {
    stat.S_IFREG: A_FILE,
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be."""
_BLOCK = 1 << 22  # bytes


class CannotWrite(DieletError, OSError):
    """A file could not be written, and is as it was before."""


def what_is(path: Path) -> str:
    """`a file`, `a directory`, `a device` ..., following links; empty where there is nothing.

    Raises OSError where that cannot be found out.
    """
    if not path.exists():
        return ""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "no file")


def require_file(path: Path, wanted: str) -> None:
    """Raises MissingFile where there is nothing, DamagedFile where there is something else.

    To be asked before a path that a user named is opened: opening a pipe waits, perhaps for ever.
    wanted: what to give instead.
    """
    try:
        found = what_is(path)
    except OSError as error:
        raise MissingFile(f"{path} cannot be read: {error.strerror}; give {wanted}") from None
    if not found:
        raise MissingFile(f"{path} does not exist; give {wanted}")
    if found != A_FILE:
        raise DamagedFile(f"{path} is {found}, not a file; give {wanted}")


def file_sha256(path: Path) -> str:
    """sha256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def toml_values(text: str) -> dict[str, Any]:
    """What a TOML text says.  ValueError for whatever is wrong with it.

    Python's reader takes whole numbers of any length, of which it cannot even say the value.
    """
    try:
        values = tomllib.loads(text)
        _check_numbers(values)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return values


def _check_numbers(value: object) -> None:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_numbers(part)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a whole number in it has more than 64 bits")


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path`, as `whole_file` says."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside `path`, or beside what it links to, to write under: it is renamed at the end.

    After an exception nothing is left of it.  Raises CannotWrite with the system's reason, or
    because what is there is no regular file: renaming would replace a device by a file.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        found = what_is(target)
        if found not in ("", A_FILE):
            raise CannotWrite(f"{path} is {found}, not a file; choose another place")
        yield temporary
        os.replace(temporary, target)
    except CannotWrite:
        raise
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise CannotWrite(f"{path} cannot be written: {reason}; choose another place") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
