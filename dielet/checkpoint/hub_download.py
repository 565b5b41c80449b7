"""One file of the hub into the cache: resumed where it broke off, there only when it is whole."""

import hashlib
import http.client
import os
import time
from collections.abc import Callable, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import IO, TypeVar

from dielet.checkpoint.hub_cache import CachedModel
from dielet.checkpoint.hub_client import HubClient, NoAnswer, RemoteFile, broken
from dielet.errors import DamagedFile, MissingFile
from dielet.files import file_sha256

PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before each further attempt; bytes that came begin anew
_CHUNK = 1 << 20
_T = TypeVar("_T")

Advance = Callable[[int], None]
"""Called with bytes as they come; with fewer than none when some are taken back."""


def patiently(hub_id: str, attempt: Callable[[], _T], pauses: Sequence[float] | None = None) -> _T:
    """Try again, ever later, for as long as that may help.  Raises MissingFile in the end."""
    left = list(PAUSES if pauses is None else pauses)
    while True:
        try:
            return attempt()
        except NoAnswer as error:
            if error.lasting:
                left.clear()
            _wait(hub_id, left, error)


def _wait(hub_id: str, pauses: list[float], error: NoAnswer, kept: str = "") -> None:
    """Before the next attempt; MissingFile when there is none left."""
    if not pauses:
        raise MissingFile(
            f"{hub_id} is neither a directory here nor in the Hugging Face cache, and cannot be "
            f"fetched: {error}; {kept}{error.remedy}"
        ) from error
    time.sleep(max(pauses.pop(0), error.pause))


def fetch_blob(
    client: HubClient,
    here: CachedModel,
    commit: str,
    file: RemoteFile,
    advance: Advance,
    force: bool = False,
) -> None:
    """Have `file` among the blobs of `here`.

    A part that is there is continued, whoever began it; `force` begins anew, even what is whole.
    Raises DamagedFile when size or hash are not what the hub said, and keeps nothing then.
    """
    target = here.blob(file.etag)
    with here.locked(file.etag):
        if not force and _is_here(target, file):
            advance(file.size)
            return  # somebody else fetched it while the lock was waited for
        partial = target.with_name(f"{file.etag}.incomplete")
        partial.parent.mkdir(parents=True, exist_ok=True)
        if force:
            partial.unlink(missing_ok=True)
        try:
            _complete(client, commit, file, partial, advance)
        except DamagedFile:
            partial.unlink(missing_ok=True)
            raise
        os.replace(partial, target)


def _is_here(target: Path, file: RemoteFile) -> bool:
    """Whether the blob is there and is this file.  An ETag that is no hash may be another's too."""
    if not target.is_file() or target.stat().st_size != file.size:
        return False
    return file.etag in (file.sha256, file.git_oid) or _is_right(target, file)


def _complete(
    client: HubClient, commit: str, file: RemoteFile, partial: Path, advance: Advance
) -> None:
    begun = partial.exists()
    _receive(client, commit, file, partial, advance)
    if begun and not _is_right(partial, file):  # what was there may be what is wrong
        partial.unlink()
        advance(-file.size)
        _receive(client, commit, file, partial, advance)
    if not _is_right(partial, file):
        raise DamagedFile(
            f"{file.name} of {client.hub_id} came with another "
            f"{'sha256' if file.sha256 else 'git hash'} than the hub says it has: it was altered "
            "on the way, and nothing of it is kept; try again, or over another connection"
        )


def _receive(
    client: HubClient, commit: str, file: RemoteFile, partial: Path, advance: Advance
) -> None:
    """Append to `partial` until it has as many bytes as `file`."""
    pauses = list(PAUSES)
    with partial.open("ab") as sink:
        if sink.tell() > file.size:
            _cut(sink, 0)
        advance(sink.tell())
        while (before := sink.tell()) < file.size:
            try:
                _append(client, commit, file, sink, advance)
            except NoAnswer as error:
                if sink.tell() > before:
                    pauses = list(PAUSES)
                sink.flush()
                kept = f"{sink.tell():,} of {file.size:,} bytes of {file.name} are kept; "
                _wait(client.hub_id, pauses, error, kept)
        sink.flush()
        os.fsync(sink.fileno())


def _append(
    client: HubClient, commit: str, file: RemoteFile, sink: IO[bytes], advance: Advance
) -> None:
    """What one request brings.  Raises NoAnswer when that is not all."""
    response, start = client.content(commit, file, sink.tell())
    with response:
        if start < sink.tell():  # a hub that cannot continue
            advance(start - sink.tell())
            _cut(sink, start)
        if response.length is not None and response.length != file.size - start:
            raise _wrong_size(client, file, start + response.length)
        while chunk := _read(client, response):
            if sink.tell() + len(chunk) > file.size:
                raise _wrong_size(client, file, sink.tell() + len(chunk))
            sink.write(chunk)
            advance(len(chunk))
    if sink.tell() < file.size:
        raise NoAnswer(f"the connection broke off at byte {sink.tell():,} of {file.name}")


def _read(client: HubClient, response: HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise broken(error, response.url, client.settings.timeout) from error


def _cut(sink: IO[bytes], size: int) -> None:
    sink.truncate(size)
    sink.seek(size)


def _wrong_size(client: HubClient, file: RemoteFile, seen: int) -> DamagedFile:
    return DamagedFile(
        f"{file.name} of {client.hub_id} has {file.size:,} bytes by the hub's own word, and "
        f"{seen:,} or more are sent; nothing of it is kept; try again later"
    )


def _is_right(path: Path, file: RemoteFile) -> bool:
    """Whether the content has the hash that the hub gave, if it gave one that is known."""
    if file.sha256 is not None:
        return file_sha256(path) == file.sha256
    if file.git_oid is not None:
        content = path.read_bytes()  # git's own files are small
        header = f"blob {len(content)}\0".encode()
        return hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == file.git_oid
    return True
