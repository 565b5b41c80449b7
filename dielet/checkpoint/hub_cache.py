"""One model's part of the hub's cache, laid out as huggingface_hub does, which reads it too.

models--ORGANISATION--NAME/refs/REVISION            the commit that a branch or tag is at
                          /snapshots/COMMIT/FILE    a link to ../../blobs/ETAG
                          /blobs/ETAG               content; ETAG.incomplete: a part of it
                          /.no_exist/COMMIT/FILE    empty: the repository has no such file
.locks/models--ORGANISATION--NAME/ETAG.lock         held while a blob is fetched
"""

import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dielet.errors import DieletError, MissingFile

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # of file systems without links
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # nor locks
_POLL = 0.1  # seconds between two looks at a lock that somebody holds


@dataclass(frozen=True)
class CachedModel:
    """cache: the folder of all models.  hub_id: ORGANISATION/NAME."""

    cache: Path
    hub_id: str

    @property
    def name(self) -> str:
        return "models--" + self.hub_id.replace("/", "--")

    @property
    def folder(self) -> Path:
        return self.cache / self.name

    def commit(self, revision: str) -> str | None:
        """The commit that `revision` was at when it was last fetched."""
        if COMMIT.fullmatch(revision):
            return revision
        try:
            text = (self.folder / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return text if COMMIT.fullmatch(text) else None

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def bytes_of(self, etag: str) -> int:
        """How much of a blob is here."""
        blob = self.blob(etag)
        for path in (blob, blob.with_name(f"{etag}.incomplete")):
            with suppress(OSError):
                return path.stat().st_size
        return 0

    def has(self, commit: str, name: str) -> bool:
        return (self.snapshot(commit) / name).is_file()

    def lacks(self, commit: str, name: str) -> bool:
        """Whether it is known that the repository has no such file."""
        return (self.folder / ".no_exist" / commit / name).is_file()

    def note_lacking(self, commit: str, names: Iterable[str]) -> None:
        for name in names:
            path = self.folder / ".no_exist" / commit / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def note_revision(self, revision: str, commit: str) -> None:
        """Written last: a revision that is named here has everything that was asked for."""
        if revision == commit or self.commit(revision) == commit:
            return
        path = self.folder / "refs" / revision
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path)
        temporary.write_text(commit, encoding="ascii")
        os.replace(temporary, path)

    def link(self, commit: str, name: str, etag: str) -> None:
        """Let the snapshot's `name` lead to the blob."""
        pointer, blob = self.snapshot(commit) / name, self.blob(etag)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(pointer)
        temporary.unlink(missing_ok=True)  # of a process that was killed
        try:
            os.symlink(os.path.relpath(blob, pointer.parent), temporary)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.replace(blob, pointer)  # the file itself, as huggingface_hub does
            return
        os.replace(temporary, pointer)

    @contextmanager
    def locked(self, etag: str) -> Iterator[None]:
        """While inside, nobody else fetches this blob; huggingface_hub keeps to the same lock."""
        path = self.cache / ".locks" / self.name / f"{etag}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquired(path)
        try:
            yield
        finally:
            os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")


def _acquired(path: Path) -> int:
    """The descriptor of the lock file, locked.  Waits for as long as somebody holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o664)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_POLL)
                except OSError as error:
                    if error.errno not in _NO_LOCKS:
                        raise
                    return descriptor  # contents are checked in any case
            with suppress(FileNotFoundError):  # whoever held it may have removed the file
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def writing(cache: Path) -> Iterator[None]:
    """MissingFile saying what to do for what the cache's file system refuses inside."""
    try:
        yield
    except DieletError:
        raise
    except OSError as error:
        raise MissingFile(
            f"cannot write to the Hugging Face cache {cache}: {error.strerror or error}; free some "
            "space there, or set HF_HUB_CACHE to a directory that can be written"
        ) from error
