"""What is kept on disk: how much of it, and what of it is of no use any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dielet.errors import DieletError, Unsupported


@dataclass(frozen=True)
class Damaged:
    """Something that is in a cache in vain, and what to do about it."""

    path: str
    reason: str
    remedy: str = "delete it, it is made again when it is needed"


def folders(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from sorted(path for path in root.iterdir() if path.is_dir())


def bytes_of(folder: Path) -> int:
    """On disk, links not counted."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(os.path.join(where, name))
            except OSError:
                continue  # somebody removed it meanwhile
            total += stat.st_size * (not os.path.islink(os.path.join(where, name)))
    return total


def damaged_of_ours(root: Path) -> list[Damaged]:
    """In dielet's own cache.  Headers and sizes are looked at; hashes of weights are not."""
    found: list[Damaged] = []
    for name, check in (("models", _check_model), ("downloads", _check_download)):
        for path in folders(root / name):
            found += _complaints(path, check)
    for path in sorted((root / "native").glob("*.o")):
        found += _complaints(path, _check_code)
    device = root / "devices" / "host.toml"
    if device.is_file():
        found += _complaints(device, _check_device)
    return found


def hub_facts(cache: Path) -> tuple[dict[str, Any], list[Damaged]]:
    """Of the cache that dielet shares with Hugging Face's own tools."""
    models = [path for path in folders(cache) if path.name.startswith("models--")]
    parts = [part for model in models for part in (model / "blobs").glob("*.incomplete")]
    facts = {
        "cached_models": len(models),
        "size": bytes_of(cache),
        "unfinished": len(parts),
        "unfinished_size": sum(part.stat().st_size for part in parts if part.exists()),
    }
    damaged = [
        replace(one, remedy=f"delete {model}, it is fetched again")
        for model in models
        for path in sorted(model.glob("snapshots/*/**/*"))
        for one in _complaints(path, _check_fetched)
    ]
    return facts, damaged


def _complaints(path: Path, check: Callable[[Path], str]) -> list[Damaged]:
    try:
        reason = check(path)
    except Unsupported:
        return []  # it may be whole, and for somebody else
    except (DieletError, OSError) as error:
        reason = str(error)
    return [Damaged(str(path), reason)] if reason else []


def _check_model(directory: Path) -> str:
    """A compiled model: its manifest, and that every file has the size that this says."""
    from dielet.image import read_manifest

    for name, entry in read_manifest(directory).files.items():
        path = directory / name
        seen = path.stat().st_size if path.is_file() else None
        if seen != entry.nbytes:
            there = "is missing" if seen is None else f"has {seen:,} bytes"
            return f"{name} {there}, {entry.nbytes:,} are expected"
    return ""


def _check_download(directory: Path) -> str:
    from dielet.checkpoint.gguf_file import GgufFile

    for path in directory.glob("*.gguf"):
        GgufFile(path)
    return ""


def _check_code(path: Path) -> str:
    from dielet.codegen import cache

    return "" if cache.read(path.parent, path.stem) is not None else "its hash is another"


def _check_device(path: Path) -> str:
    from dielet.simulator.calibrated import calibrated_host

    calibrated_host()
    return ""


def _check_fetched(path: Path) -> str:
    """A file of a snapshot: a link to its blob."""
    from dielet.checkpoint.gguf_file import GgufFile
    from dielet.checkpoint.safetensors import SafetensorsFile

    if path.is_symlink() and not path.exists():
        return "it leads to a file that is not there"
    if path.suffix == ".safetensors":
        SafetensorsFile(path)
    if path.suffix == ".gguf":
        GgufFile(path)
    return ""
