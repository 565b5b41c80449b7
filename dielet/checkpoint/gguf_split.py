"""A model in one .gguf file, or in several that are called NAME-00001-of-00003.gguf and so on.

The first of several has the metadata; each says which part it is, of how many.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dielet.checkpoint.config import Entries
from dielet.checkpoint.gguf_file import Entry, GgufFile
from dielet.checkpoint.names import shown
from dielet.checkpoint.source import FileTensor
from dielet.errors import DamagedFile, MissingFile, Unsupported

PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_MOST = 99999


class GgufModel:
    """All parts of the model that the file at `path`, any of them, belongs to.

    `metadata` by key, and `entries` by name of tensor.  Raises DamagedFile, MissingFile or
    Unsupported when opened.
    """

    def __init__(self, path: Path) -> None:
        self._parts = _open_parts(path)
        self.path = self._parts[0].path
        self.metadata: dict[str, Any] = self._parts[0].metadata
        self._home: dict[str, GgufFile] = {}
        for part in self._parts:
            for name in part.entries:
                if name in self._home:
                    raise DamagedFile(
                        f"{part.path}: tensor {shown(name)} is in {self._home[name].path.name} too"
                    )
                self._home[name] = part
        self.entries: dict[str, Entry] = {n: p.entries[n] for n, p in self._home.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    @property
    def stamp(self) -> bytes:
        """Changes when any of the files does."""
        return b", ".join(part.file.stamp for part in self._parts)

    def tensor(self, name: str) -> FileTensor:
        """The tensor; raises Unsupported for a block format that cannot be read."""
        return self._home[name].tensor(name)


def _open_parts(path: Path) -> list[GgufFile]:
    one = GgufFile(path)
    count = _entry(one, "split.count", 1, least=1, most=_MOST)
    if count == 1:
        return [one]
    match = PART.fullmatch(path.name)
    if match is None:
        raise Unsupported(
            f"{path}: one of {count} parts, which are found only by their names, "
            f"NAME-00001-of-{count:05d}.gguf and so on; give them back their names"
        )
    if int(match[3]) != count:
        raise DamagedFile(f"{path}: one of {count} parts by its metadata, {match[3]} by its name")
    paths = [path.with_name(name) for name in part_names(match[1], count)]
    missing = [other.name for other in paths if not other.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise MissingFile(
            f"{path}: one of {count} parts, but {missing[0]}{more} is not beside it; fetch all"
        )
    parts = [one if other == path else GgufFile(other) for other in paths]
    for number, part in enumerate(parts):
        _check_part(part, number, parts[0])
    tensors = sum(len(part.entries) for part in parts)
    stated = _entry(parts[0], "split.tensors.count", tensors)
    if stated != tensors:
        raise DamagedFile(
            f"{parts[0].path}: the {count} parts have {tensors} tensors, not {stated} as it says; "
            "they are not parts of one model"
        )
    return parts


def part_names(stem: str, count: int) -> list[str]:
    """What the files are called that a model is divided over."""
    return [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _check_part(part: GgufFile, number: int, first: GgufFile) -> None:
    """Refuse a part that is another one, or another model's, by what it says of itself."""
    if (found := _entry(part, "split.no", number)) != number:
        raise DamagedFile(
            f"{part.path}: part {found + 1} by its metadata, {number + 1} by its name"
        )
    for key in ("split.count", "split.tensors.count", "general.architecture"):
        seen, wanted = part.metadata.get(key), first.metadata.get(key)
        if seen != wanted and not (key.startswith("general") and seen is None):
            raise DamagedFile(
                f"{part.path}: its {key} is {shown(seen)}, but {shown(wanted)} in "
                f"{first.path.name}; they are not parts of one model"
            )


def _entry(file: GgufFile, key: str, default: int, least: int = 0, most: int = 1 << 31) -> int:
    value: int = Entries(str(file.path), file.metadata).get(key, int, default)
    if not least <= value <= most:
        raise DamagedFile(f"{file.path}: {key} is {value}; it must be from {least} to {most}")
    return value
