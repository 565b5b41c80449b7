"""Directories that appear whole or not at all, beside other processes and after crashes.

A directory is made under a hidden name beside its target and takes the target's name at the end, in
one step even when there is something to replace.  The maker holds a lock on it: hidden directories
that nobody holds were left by a process that was killed, and are removed by the next.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dielet.errors import DieletError

_LOCK = ".being-made"
_ABANDONED_S = 3600.0
_AT_FDCWD, _EXCHANGE = -100, 2  # of Linux's renameat2


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield a directory that becomes `target`, replacing it, when the block ends without error.

    Raises DieletError for what the disk refuses; then nothing is left and `target` is as before.
    """
    temporary: Path | None = None
    lock = -1
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        temporary, lock = _make(target)
        temporary.chmod(0o755)
        yield temporary
        (temporary / _LOCK).unlink()
        _move(temporary, target)
    except DieletError:
        raise  # MissingFile is an OSError too, and not about this directory
    except OSError as error:
        reason = error.strerror or str(error)
        raise DieletError(
            f"cannot write {target}: {reason}; nothing was left there, name another place"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _make(target: Path) -> tuple[Path, int]:
    """A new hidden directory, and the descriptor that holds its lock while this process lives."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        lock = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / _LOCK).exists():
            return directory, lock
        os.close(lock)  # another process took it for abandoned before it was locked


def _sweep(target: Path) -> None:
    """Remove what killed processes left of earlier attempts at the same target."""
    for path in target.parent.glob(f".{target.name}.*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR)
        except OSError:
            if _age(path) > _ABANDONED_S:  # killed while it removed what it had replaced
                shutil.rmtree(path, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # another process is at work on it
        finally:
            os.close(lock)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


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
    aside = Path(tempfile.mkdtemp(prefix=f".{b.name}.", dir=b.parent)) / "old"
    try:
        os.rename(b, aside)
    except FileNotFoundError:
        aside.parent.rmdir()
        return False
    except OSError:
        aside.parent.rmdir()
        raise
    try:
        os.rename(a, b)
    except BaseException:
        os.rename(aside, b)
        aside.parent.rmdir()
        raise
    os.rename(aside, a)
    aside.parent.rmdir()
    return True
