"""Open whatever a user named: a Hugging Face directory or hub id, a .gguf file, a config.json."""

import os
from pathlib import Path

from dielet.checkpoint.base import Checkpoint
from dielet.checkpoint.config import decoder_entries, read_json, spec_from_config
from dielet.checkpoint.gguf import GgufCheckpoint, gguf_spec
from dielet.checkpoint.gguf_split import GgufModel
from dielet.checkpoint.hub_settings import hub_cache_dir
from dielet.checkpoint.hub_wanted import HubName, Wanted
from dielet.checkpoint.hugging_face import (
    HuggingFaceCheckpoint,
    directory_files,
    directory_spec,
    model_name,
)
from dielet.checkpoint.random import RandomCheckpoint
from dielet.checkpoint.roles import Roles
from dielet.checkpoint.spec import ModelSpec
from dielet.checkpoint.weight_files import PICKLES, pickle_refusal
from dielet.errors import DamagedFile, MissingFile, Unsupported, UsageError
from dielet.files import require_file


def open_checkpoint(
    source: str | Path, roles: Roles | None = None, fetch: bool = True
) -> Checkpoint:
    """A checkpoint with weights: a Hugging Face directory, a hub id, or a .gguf file.

    `roles` names what a directory of an unknown family has.  Of the hub, what the cache lacks is
    fetched, or missing where `fetch` is false; nothing large is read yet.  Raises MissingFile,
    DamagedFile or Unsupported.
    """
    path = _locate(source, weights=True, fetch=fetch)
    try:
        return _opened(path, roles)
    except DamagedFile as error:
        folder = next((p for p in path.parents if p.parent == hub_cache_dir()), None)
        if folder is None:
            raise
        raise DamagedFile(f"{error}; to fetch it anew, delete {folder}") from error


def _opened(path: Path, roles: Roles | None) -> Checkpoint:
    if path.is_dir():
        return HuggingFaceCheckpoint(path, roles)
    if _is_gguf(path):
        if roles is not None:
            raise UsageError(f"roles are for Hugging Face directories; {path} is a .gguf file")
        return GgufCheckpoint(path)
    if path.suffix in PICKLES:
        raise Unsupported(pickle_refusal(path))
    raise Unsupported(
        f"{path} is not a model: a Hugging Face directory or a .gguf file is expected"
    )


def open_config(source: str | Path) -> ModelSpec:
    """The spec alone: of a config.json, a directory with one, a hub id, or a .gguf file."""
    path = _locate(source, weights=False)
    if path.is_dir():
        return directory_spec(path)
    if _is_gguf(path):
        return gguf_spec(GgufModel(path))
    return spec_from_config(decoder_entries(read_json(path)), model_name(path.parent))


def open_random(source: str | Path, seed: int) -> RandomCheckpoint:
    """Random weights for the spec that `open_config` finds, with the tokenizer beside it if any."""
    spec = open_config(source)
    path = _locate(source, weights=False)
    if path.is_dir():
        return RandomCheckpoint(spec, seed, directory_files(path))
    if _is_gguf(path):
        return RandomCheckpoint(spec, seed, GgufCheckpoint(path).tokenizer_files())
    return RandomCheckpoint(spec, seed)


def _is_gguf(path: Path) -> bool:
    """By its first bytes, since files of the hub's cache may be called anything."""
    if path.suffix == ".gguf":
        return True
    require_file(path, "a Hugging Face directory or a .gguf file")
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise MissingFile(f"cannot read {path}: {error.strerror or error}") from error


def _locate(source: str | Path, weights: bool, fetch: bool = True) -> Path:
    """The path of `source`, which may name a model of the hub."""
    path = Path(os.path.expanduser(source))
    if path.name == "config.json":  # its siblings say more about the model
        path = path.parent
    if path.exists():
        return path
    name = HubName.parse(source) if isinstance(source, str) else None
    if name is None:
        raise MissingFile(
            f"{source} does not exist; name a Hugging Face directory, a hub id such as "
            "Qwen/Qwen3-1.7B, or a .gguf file"
        )
    from dielet.checkpoint.hub import from_hub  # what speaks HTTP takes 5 MB: most need none

    return from_hub(Wanted(name, weights, fetch=fetch))
