"""What is named of the hub, and which of its files a model is made of."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from dielet.checkpoint.config import read_json
from dielet.checkpoint.gguf_split import PART, part_names
from dielet.checkpoint.weight_files import INDEX, WEIGHTS
from dielet.errors import DamagedFile, UsageError

CONFIG = "config.json"
TEXTS = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip
_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_NAME = re.compile(
    rf"(?P<id>{_ID})(?P<file>(/\w[\w.-]*)+\.gguf)?(@(?P<revision>.+))?", re.ASCII | re.DOTALL
)
_REVISION = re.compile(r"(?![/-])(?!.*(\.\.|//|@\{|\.lock(/|$)))[\w./+-]{1,200}(?<![/.])", re.ASCII)
_FOLDER = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_MOST_PARTS = 1000


@dataclass(frozen=True)
class HubName:
    """What `ORGANISATION/NAME[/FILE.gguf][@REVISION]` says.  file: empty for the whole model."""

    hub_id: str
    file: str = ""
    revision: str = "main"

    @staticmethod
    def parse(text: str) -> "HubName | None":
        """None when `text` is no name of the hub's."""
        found = _NAME.fullmatch(text)
        if found is None or "--" in found["id"] or ".." in found["id"]:
            return None
        file = (found["file"] or "").removeprefix("/")
        if not file and found["id"].endswith(".gguf"):
            return None  # a path with a mistake in it
        return HubName(found["id"], file, checked_revision(found["revision"] or "main"))


def checked_revision(revision: str) -> str:
    """`revision`, which becomes a part of paths.  Raises UsageError."""
    if not _REVISION.fullmatch(revision):
        raise UsageError(
            f"{revision[:100]!r} is no revision; give a branch, a tag or a commit, such as main"
        )
    return revision


def checked_folder(folder: str) -> str:
    """A folder of a repository, which becomes a part of paths too; empty for the whole."""
    folder = folder.strip("/")
    if folder and not _FOLDER.fullmatch(folder):
        raise UsageError(f"{folder[:100]!r} is no folder of a repository; give one such as int4")
    return folder


@dataclass(frozen=True)
class Wanted:
    """Which files of a model are asked for.

    weights: its safetensors too.  folder: where in the repository they are.  extras: names of
    further files that are taken if there are any.  fetch: False to look in the cache alone.
    force: fetch again what the cache has.
    """

    name: HubName
    weights: bool = True
    folder: str = ""
    extras: tuple[str, ...] = ()
    fetch: bool = True
    force: bool = False

    @property
    def optional(self) -> list[str]:
        return [] if self.name.file else [self.at(name) for name in (*TEXTS, *self.extras)]

    def at(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def needed(self, names: Collection[str], read_index: Callable[[str], Path]) -> list[str]:
        """The files without which there is no model, of a repository that has `names`.

        read_index: gives the path of the index of shards.
        """
        if self.name.file:
            return parts_of(self.name.file)
        found = [self.at(CONFIG)]
        if not self.weights:
            return found
        if self.at(WEIGHTS) in names:
            return [*found, self.at(WEIGHTS)]
        if self.at(INDEX) in names:
            return [*found, self.at(INDEX), *map(self.at, _shards(read_index(self.at(INDEX))))]
        alone = self.named_alone(names)
        return [*found, *(alone or [self.at(WEIGHTS)])]

    def named_alone(self, names: Iterable[str]) -> list[str]:
        """The one safetensors file, of whatever name, of a folder that has no other."""
        here = [n for n in names if Path(n).parent == Path(self.folder)]
        found = [n for n in here if n.endswith(".safetensors")]
        return found if len(found) == 1 else []


def _shards(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map", dict)
    if not weight_map or not all(isinstance(name, str) for name in weight_map.values()):
        raise DamagedFile(f"{index}: weight_map does not name the files of the weights")
    return sorted(set(weight_map.values()))


def parts_of(file: str) -> list[str]:
    """The files that a .gguf file is made of: itself, or all of NAME-00001-of-00003.gguf."""
    found = PART.fullmatch(file)
    return [file] if found is None else part_names(found[1], int(found[3]))[:_MOST_PARTS]
