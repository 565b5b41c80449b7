"""Open whatever a user named: a Hugging Face directory or hub id, a .gguf file, a config.json."""

import os
import re
from pathlib import Path

from dielet.checkpoint.base import Checkpoint
from dielet.checkpoint.config import decoder_entries, read_json, spec_from_config
from dielet.checkpoint.gguf import GgufCheckpoint, gguf_spec
from dielet.checkpoint.gguf_file import GgufFile
from dielet.checkpoint.hugging_face import (
    HuggingFaceCheckpoint,
    directory_files,
    directory_spec,
    model_name,
)
from dielet.checkpoint.random import RandomCheckpoint
from dielet.checkpoint.roles import Roles
from dielet.checkpoint.spec import ModelSpec
from dielet.errors import MissingFile, Unsupported, UsageError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
_CONFIG_FILES = ["*.json", "*.jinja"]


def open_checkpoint(source: str | Path, roles: Roles | None = None) -> Checkpoint:
    """A checkpoint with weights: a Hugging Face directory, a hub id, or a .gguf file.

    `roles` names what a directory of an unknown family has.  Nothing large is read yet.  Raises
    MissingFile, DamagedFile or Unsupported.
    """
    path = _locate(source, _HUB_FILES)
    if path.is_dir():
        return HuggingFaceCheckpoint(path, roles)
    if _is_gguf(path):
        if roles is not None:
            raise UsageError(f"roles are for Hugging Face directories; {path} is a .gguf file")
        return GgufCheckpoint(path)
    raise Unsupported(
        f"{path} is not a model: a Hugging Face directory or a .gguf file is expected"
    )


def open_config(source: str | Path) -> ModelSpec:
    """The spec alone: of a config.json, a directory with one, a hub id, or a .gguf file."""
    path = _locate(source, _CONFIG_FILES)
    if path.is_dir():
        return directory_spec(path)
    if _is_gguf(path):
        return gguf_spec(GgufFile(path))
    return spec_from_config(decoder_entries(read_json(path)), model_name(path.parent))


def open_random(source: str | Path, seed: int) -> RandomCheckpoint:
    """Random weights for the spec that `open_config` finds, with the tokenizer beside it if any."""
    spec = open_config(source)
    path = _locate(source, _CONFIG_FILES)
    if path.is_dir():
        return RandomCheckpoint(spec, seed, directory_files(path))
    if _is_gguf(path):
        return RandomCheckpoint(spec, seed, GgufCheckpoint(path).tokenizer_files())
    return RandomCheckpoint(spec, seed)


def _is_gguf(path: Path) -> bool:
    """By its first bytes, since files of the hub's cache may be called anything."""
    if path.suffix == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise MissingFile(f"cannot read {path}: {error.strerror or error}") from error


def _locate(source: str | Path, wanted: list[str]) -> Path:
    """The path of `source`, which may be a hub id; what is in the hub's cache is not fetched."""
    path = Path(os.path.expanduser(source))
    if path.name == "config.json":  # its siblings say more about the model
        path = path.parent
    if path.exists():
        return path
    if not isinstance(source, str) or not _HUB_ID.fullmatch(source):
        raise MissingFile(
            f"{source} does not exist; name a Hugging Face directory, a hub id such as "
            "Qwen/Qwen3-1.7B, or a .gguf file"
        )
    return _from_hub(source, wanted)


def _from_hub(hub_id: str, wanted: list[str]) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingFile(
            f"{hub_id} is not a directory here, and huggingface_hub, which would fetch it, is "
            "not installed; pip install huggingface_hub"
        ) from error
    reason = ""
    for cached_only in (True, False):
        try:
            return Path(
                huggingface_hub.snapshot_download(
                    hub_id, allow_patterns=wanted, local_files_only=cached_only
                )
            )
        except Exception as error:  # many kinds: no network, no such model, no permission, ...
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise MissingFile(
        f"{hub_id} is neither a directory here nor in the Hugging Face cache, and could not be "
        f"fetched: {reason[:200]}; check the name and the connection, or fetch it elsewhere and "
        "name its directory"
    )
