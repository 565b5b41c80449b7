"""Object code on disk, named by the hash of everything that decides its content.

An entry is `<sha256 of the recipe>.o`: 8 bytes of magic, the sha256 of the code, the code. It is
written beside and renamed into place, so a reader sees all of it or nothing; a damaged entry reads
as absent and is built again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import llvmlite

if TYPE_CHECKING:
    from dielet.codegen.targets.base import Target

MAGIC = b"dielet\x00\x01"
_warned: set[str] = set()


@cache
def generator_hash() -> str:
    """Hash of the generator's own sources: any change to it changes every name in the cache."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def recipe(what: str, target: Target) -> str:
    """The name of the entry for one module of code."""
    machine = (target.name, target.triple, target.cpu, target.features)
    parts = [generator_hash(), llvmlite.__version__, *machine, what]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read(cache_dir: Path, name: str) -> bytes | None:
    """The code of an entry, or None when there is none or it is damaged."""
    try:
        content = (cache_dir / f"{name}.o").read_bytes()
    except OSError:
        return None
    head, digest, code = content[:8], content[8:40], content[40:]
    whole = head == MAGIC and hashlib.sha256(code).digest() == digest
    return code if whole else None


def write(cache_dir: Path, name: str, code: bytes) -> None:
    """Store an entry; a directory that cannot be written costs a warning, once, not a failure."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cache_dir, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + hashlib.sha256(code).digest() + code)
            entry = cache_dir / f"{name}.o"
            if entry.is_dir():
                shutil.rmtree(entry)
            os.replace(temporary, entry)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as problem:
        if str(cache_dir) not in _warned:
            _warned.add(str(cache_dir))
            warnings.warn(
                f"compiled kernels are not kept: cannot write {cache_dir} ({problem.strerror}); "
                "every start will compile them again",
                RuntimeWarning,
                stacklevel=3,
            )
