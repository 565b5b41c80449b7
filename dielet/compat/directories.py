"""Model directories as Hugging Face users handle them: made from a name, saved, added to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dielet.checkpoint.base import Checkpoint, content_identity
from dielet.checkpoint.hub import from_hub
from dielet.checkpoint.hub_settings import HubSettings, hub_settings, with_token
from dielet.checkpoint.hub_wanted import HubName, Wanted, checked_folder, checked_revision
from dielet.compat.said import say_once
from dielet.errors import Unsupported, UsageError
from dielet.files import file_sha256
from dielet.generate.compiling import cached_directory, compile_usable
from dielet.generate.session import is_model_directory
from dielet.generate.text import FILES as TEXT_FILES
from dielet.image import CompileOptions, open_source, read_manifest
from dielet.image.appear import beside
from dielet.image.manifest import NAME, FileEntry

HUB = ("revision", "cache_dir", "token", "local_files_only", "force_download", "subfolder")
_HUB_KINDS = {"revision": str, "cache_dir": str | Path, "token": str | bool, "subfolder": str}
# What transformers' own tokenizer classes read beside tokenizer.json; dielet needs none of it.
TOKENIZER_EXTRAS = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model",
)  # fmt: skip


def locate(source: str | Path, hub: Mapping[str, Any]) -> str | Path:
    """`source` as a path, fetched from the hub with the arguments of `from_pretrained`, if any."""
    given = {name: value for name, value in hub.items() if value is not None}
    for key, kinds in _HUB_KINDS.items():
        if not isinstance(given.get(key, ""), kinds):
            raise UsageError(f"{key} is {given[key]!r:.80}; it must be text")
    subfolder = given.get("subfolder", "")
    path = Path(os.path.expanduser(source))
    if path.exists():
        return path / subfolder
    name = HubName.parse(source) if given and isinstance(source, str) else None
    if name is None:
        return source
    if revision := given.get("revision"):
        name = replace(name, revision=checked_revision(revision))
    wanted = Wanted(
        name,
        folder=checked_folder(subfolder),
        extras=TOKENIZER_EXTRAS,
        fetch=not given.get("local_files_only", False),
        force=bool(given.get("force_download", False)),
    )
    return from_hub(wanted, _settings(given))


def _settings(given: Mapping[str, Any]) -> HubSettings:
    """Those of the environment, but for what the caller gives: a cache, and a token or none."""
    settings = hub_settings()
    if cache := given.get("cache_dir"):
        settings = replace(settings, cache=Path(os.path.expanduser(cache)))
    token = given.get("token", True)
    if token is not True:
        settings = with_token(settings, token or None, "the argument token")
    return settings


def compiled(
    source: str | Path,
    options: CompileOptions,
    out: str | Path | None,
    identity: str | None = None,
) -> Path:
    """The directory that `source` is compiled into: `out`, or one in the user's cache.

    What is in the cache is not compiled again.  identity: of the checkpoint, if its files do not
    tell, since they were written just now.
    """
    checkpoint = open_source(source, options)
    directory = Path(out) if out is not None else cached_directory(checkpoint, options, identity)
    if out is None and is_model_directory(directory):
        return directory
    _check_length(checkpoint, options)
    say_once(f"compiling {checkpoint.source} into {directory}")
    _compile(checkpoint, source, directory, options)
    return directory


def compiled_among(source: str | Path, options: CompileOptions, out: Path) -> Path:
    """Compile into the directory `out`, where files of somebody else stay."""
    checkpoint = open_source(source, options)
    _check_length(checkpoint, options)
    say_once(f"compiling {checkpoint.source} into {out}, among what is there")
    with beside(out) as whole:
        _compile(checkpoint, source, whole, options)
        out.mkdir(parents=True, exist_ok=True)
        _merge(whole, out)
    return out


def refuse_itself(source: str | Path, out: str | Path | None) -> None:
    """UsageError when a checkpoint would be compiled into its own directory."""
    here = Path(os.path.expanduser(source))
    if out is not None and here.is_dir() and Path(out).exists() and here.samefile(out):
        raise UsageError(f"{out} is the checkpoint itself; name another directory to compile into")


def folder_identity(folder: Path) -> str:
    """64 hex digits of the names and contents of the files of a folder."""
    return content_identity({p.name: file_sha256(p).encode() for p in sorted(folder.iterdir())})


def _check_length(checkpoint: Checkpoint, options: CompileOptions) -> None:
    """UsageError for a context that cannot be, before a compilation is announced."""
    options.resolved_max_seq_len(checkpoint.spec.max_position, checkpoint.spec.longest_text)


def _compile(
    checkpoint: Checkpoint, source: str | Path, directory: Path, options: CompileOptions
) -> None:
    compile_usable(checkpoint, directory, options)
    _copy_extras(Path(os.path.expanduser(source)), directory)
    take_over_texts(directory)


def _copy_extras(source: Path, directory: Path) -> None:
    for name in TOKENIZER_EXTRAS:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)


def save(directory: Path, target: str | Path, texts: Mapping[str, bytes]) -> None:
    """Copy a model directory to `target`, with the content of `texts` in place of those files.

    Other files that `target` has stay.  Raises FileExistsError when it is `directory` itself.
    """
    target = Path(os.path.expanduser(target))
    if target.is_file():
        raise UsageError(f"{target} is a file; a model is saved into a directory")
    if target.exists() and target.samefile(directory):
        raise FileExistsError(f"the model is in {target} already; name another directory")
    whole = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copytree(directory, whole)
        for name, content in texts.items():
            (whole / name).write_bytes(content)
        take_over_texts(whole)
        target.mkdir(parents=True, exist_ok=True)
        _merge(whole, target)
    finally:
        shutil.rmtree(whole, ignore_errors=True)


def _merge(whole: Path, target: Path) -> None:
    """Move the files of a model into another directory."""
    (target / NAME).unlink(missing_ok=True)  # not a model again until everything is there
    for path in sorted(whole.iterdir(), key=lambda path: path.name == NAME):
        os.replace(path, target / path.name)


def take_over_texts(directory: Path) -> None:
    """Let the manifest agree with tokenizer and configuration files that were put there since.

    `tokenizer.save_pretrained(DIR)` writes its own into a saved model's directory.  Programs and
    weights keep the hashes that they were compiled with.
    """
    manifest = read_manifest(directory)
    files = dict(manifest.files)
    for name in TEXT_FILES:
        path = directory / name
        if path.is_file():
            entry = FileEntry(path.stat().st_size, file_sha256(path))
            if files.get(name) != entry:
                files[name] = entry
    if files == manifest.files:
        return
    data = msgspec.json.format(
        msgspec.json.encode(msgspec.structs.replace(manifest, files=files)), indent=1
    )
    temporary = directory / f".{NAME}.{os.getpid()}.tmp"
    try:
        temporary.write_bytes(data)
        os.replace(temporary, directory / NAME)
    except OSError as error:
        say_once(f"{directory}: its tokenizer was replaced, and {NAME} cannot be: {error.strerror}")


def refuse_push(asked: object) -> None:
    if asked:
        raise Unsupported("push_to_hub is not dielet's; upload the directory with huggingface_hub")
