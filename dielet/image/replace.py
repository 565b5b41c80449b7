"""What a compilation may replace: a directory that dielet compiled and nobody added to."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec

from dielet.errors import UsageError
from dielet.files import UNDECODABLE, what_is
from dielet.image.manifest import NAME, SCHEMA
from dielet.image.names import COMPANION_SUFFIX, COMPANIONS, DEVICE, FILES

_NAMED = 5  # strangers that a message names
_OURS = {NAME, DEVICE, *FILES, *COMPANIONS}


def is_replaceable(target: Path) -> bool:
    """Whether a compilation may replace `target`: see `check_replaceable`."""
    try:
        check_replaceable(target)
    except UsageError:
        return False
    return True


class _Manifest(msgspec.Struct):
    """What tells dielet's manifest from other programs' files of that name."""

    schema: int
    dielet_version: str
    files: dict[str, Any]


def check_replaceable(target: Path) -> None:
    """Raise UsageError unless `target` is nothing yet, an empty directory, or all dielet's."""
    remedy = "name another directory or remove it"
    if _leads_nowhere(target):
        raise UsageError(f"{target} is a link that leads back to itself; {remedy}")
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UsageError(f"{target} cannot be made, for {above} is {what_is(above)}; {remedy}")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / NAME).is_file():
        raise UsageError(f"{target} exists and is no compiled model; {remedy}")
    try:
        manifest = msgspec.json.decode((target / NAME).read_bytes(), type=_Manifest)
    except (OSError, *UNDECODABLE) as error:
        raise UsageError(
            f"{target} exists, and its {NAME} is not one that dielet wrote ({error}); {remedy}"
        ) from None
    if manifest.schema > SCHEMA:
        raise UsageError(
            f"{target} exists, and its {NAME} has schema {manifest.schema}, not {SCHEMA}, so "
            f"another dielet wrote it; {remedy}"
        )
    if strangers := sorted(p.name for p in target.iterdir() if not _is_ours(p, manifest.files)):
        more = f" and {len(strangers) - _NAMED} more" if len(strangers) > _NAMED else ""
        raise UsageError(
            f"{target} holds {', '.join(strangers[:_NAMED])}{more}, which dielet did not write and "
            "which replacing it would delete; move that away or name another directory"
        )


def _leads_nowhere(path: Path) -> bool:
    """Whether following links from `path` never ends, which `exists` takes for nothing there."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _is_ours(path: Path, listed: dict[str, Any]) -> bool:
    known = path.name in _OURS or path.name in listed or path.suffix == COMPANION_SUFFIX
    return known and path.is_file()
