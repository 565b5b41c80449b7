"""Directories that appear whole or not at all, beside other processes and after crashes.

A directory is made inside of a hidden workshop beside its target and takes the target's name at the
end, in one step even when there is something to replace.  The workshop has a mark on which its
maker holds a lock, and keeps it until everything else in it is gone: marked workshops that nobody
holds were left by a process that was killed, and are removed by the next.  Nothing else ever is.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dielet.errors import DieletError

_MARK = ".dielet-at-work"
_AT_FDCWD, _EXCHANGE = -100, 2  # of Linux's renameat2


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield a directory that becomes `target`, replacing it, when the block ends without error.

    Raises DieletError for what the disk refuses; then nothing is left and `target` is as before.
    """
    with beside(target) as directory:
        yield directory
        _move(directory, target)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """Yield a directory on `target`'s disk that is gone when the block ends; errors as above."""
    workshop: Path | None = None
    lock = -1
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        workshop, lock = _make(target)
        directory = workshop / "new"
        directory.mkdir()
        directory.chmod(0o755)
        yield directory
    except DieletError:
        raise  # MissingFile is an OSError too, and not about this directory
    except OSError as error:
        reason = error.strerror or str(error)
        raise DieletError(
            f"cannot write {target}: {reason}; nothing was left there, name another place"
        ) from error
    finally:
        if workshop is not None:
            _remove(workshop, target)
        if lock >= 0:
            os.close(lock)


def _prefix(target: Path) -> str:
    return f".{target.name}.dielet-"


def _make(target: Path) -> tuple[Path, int]:
    """A new workshop, and the descriptor that holds its lock while this process lives."""
    while True:
        workshop = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
        try:
            lock = os.open(workshop / _MARK, os.O_CREAT | os.O_RDWR, 0o600)
        except FileNotFoundError:
            continue  # another process swept it while it was empty
        except OSError:
            workshop.rmdir()
            raise
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (workshop / _MARK).exists():
            return workshop, lock
        os.close(lock)  # another process took it for abandoned before it was locked


def _sweep(target: Path) -> None:
    """Remove what killed processes left of earlier attempts at the same target."""
    for workshop in target.parent.glob(glob.escape(_prefix(target)) + "*"):
        try:
            lock = os.open(workshop / _MARK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            with suppress(OSError):
                workshop.rmdir()  # killed before the mark was made, or after it was removed
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(workshop, target)
        except OSError:
            pass  # another process is at work in it
        finally:
            os.close(lock)


def _remove(workshop: Path, target: Path) -> None:
    """Remove a workshop, the mark last."""
    if (workshop / "old").exists() and not target.exists():
        os.rename(workshop / "old", target)  # killed when one had gone and the other not yet come
    for entry in ("new", "old"):
        shutil.rmtree(workshop / entry, ignore_errors=True)
    with suppress(OSError):
        if os.listdir(workshop) == [_MARK]:
            (workshop / _MARK).unlink()
            workshop.rmdir()


def _move(source: Path, target: Path) -> None:
    """Give `source` the name of `target`; what had that name has the other one afterwards."""
    for _ in range(100):  # another process may make or remove the target between two looks
        if target.exists():
            if _exchange(source, target):
                return
        else:
            try:
                os.rename(source, target)
                return
            except FileExistsError:
                pass
            except OSError as error:
                if not target.exists():
                    raise error
    raise OSError(f"another process keeps writing {target}")


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names in one step; in two where the system cannot, and False if `b` went away."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return _exchange_in_steps(a, b)
    if not swap(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _EXCHANGE):
        return True
    return _exchange_in_steps(a, b)


def _exchange_in_steps(a: Path, b: Path) -> bool:
    aside = a.with_name("old")
    try:
        os.rename(b, aside)
    except FileNotFoundError:
        return False
    try:
        os.rename(a, b)
    except BaseException:
        os.rename(aside, b)
        raise
    return True
