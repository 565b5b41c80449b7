"""Panics of the tokenizers library, which Python does not take for errors, made errors of ours."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dielet.errors import DamagedFile

_STDERR = 2
_holding = threading.Lock()


@contextmanager
def panics_caught(
    what: str, more: tuple[type[Exception], ...] | type[Exception] = ()
) -> Iterator[None]:
    """DamagedFile that begins with `what` for a bare Exception or a panic inside, which is what
    the library makes of files that name tokens they do not have, or patterns without an end.

    more: what else inside is a fault of the file.
    """
    try:
        with _report_held():
            yield
    except DamagedFile:
        raise
    except BaseException as error:
        if not (_is_panic(error) or isinstance(error, more)):
            raise
        reason = " ".join(str(error).split())
        raise DamagedFile(f"{what}: {reason}; replace it and compile again") from None


def _is_panic(error: BaseException) -> bool:
    return type(error) is Exception or type(error).__name__ == "PanicException"


@contextmanager
def _report_held() -> Iterator[None]:
    """Keep the report of a panic from stderr, and nothing else that is written there meanwhile."""
    with _holding:
        try:
            aside, stderr = os.memfd_create("stderr"), os.dup(_STDERR)
        except (AttributeError, OSError):
            yield  # not Linux, or stderr is closed
            return
        os.dup2(aside, _STDERR)
        panic = False
        try:
            yield
        except BaseException as error:
            panic = _is_panic(error)
            raise
        finally:
            os.dup2(stderr, _STDERR)
            if not panic and (size := os.lseek(aside, 0, os.SEEK_CUR)):
                os.write(stderr, os.pread(aside, size, 0))
            os.close(aside)
            os.close(stderr)
