"""A Hugging Face model directory: config.json, safetensors, tokenizer and chat template."""

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from dielet.checkpoint.base import Checkpoint, content_identity
from dielet.checkpoint.config import (
    Entries,
    decoder_entries,
    is_nested,
    read_json,
    spec_from_config,
)
from dielet.checkpoint.filemap import read_small
from dielet.checkpoint.names import EMBEDDING, HEAD, account_for, hugging_face_name, shown
from dielet.checkpoint.roles import Roles
from dielet.checkpoint.safetensors import SafetensorsFile
from dielet.checkpoint.source import FileTensor, Raised, Source, Stacked
from dielet.checkpoint.spec import ModelSpec
from dielet.checkpoint.special_tokens import special_tokens
from dielet.checkpoint.stored import Stored
from dielet.errors import DamagedFile, MissingFile, Unsupported

_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)
_ID = re.compile(r"[0-9]{1,9}")
_DECODERS = ("model.language_model.", "language_model.", "lm_head.", "model.layers.")
_IGNORED = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")  # buffers, not weights


class HuggingFaceCheckpoint(Checkpoint):
    """Opens a directory; every tensor of every file is accounted for before this returns."""

    def __init__(self, directory: Path, roles: Roles | None = None) -> None:
        """`roles`: how a family that is not known names things."""
        self.spec = directory_spec(directory, roles)
        self._roles = roles or Roles(like=self.spec.model_type)
        self.source = f"Hugging Face directory {directory}"
        if self.spec.name != directory.resolve().name:
            self.source = f"{self.spec.name} ({self.source})"
        self._directory = directory
        self._where, files = _open_files(directory)
        self._files = {name: file for file in files for name in file.shapes}
        self._nested = is_nested(read_json(directory / "config.json"))
        self._layout = Stored(self.spec)
        self._experts = {
            name: tuple(map(self._name, names)) for name, names in self._layout.experts.items()
        }
        self._stored = {n: self._name(home) for n, (home, _) in self._layout.homes.items()}
        self._account()

    def _account(self) -> None:
        shapes = {self._name(name): shape for name, shape in self._layout.shapes.items()}
        found = {name: file.shapes[name] for name, file in self._files.items()}
        head = self._name(HEAD)
        tied_head = self.spec.tied and head in found
        ignored = (*_IGNORED, *self._roles.ignore)

        def ignorable(name: str) -> bool:
            other = self._nested and not name.startswith(_DECODERS)
            return other or name.endswith(ignored) or (tied_head and name == head)

        account_for(self._where, shapes, found, ignorable)
        for name in self.names():
            self.tensor(name)  # refuses a dtype that cannot be read
        if tied_head:
            embedding = self._file_tensor(self._stored[EMBEDDING])
            if not embedding.same_bytes(self._file_tensor(head)):
                raise DamagedFile(
                    f"{self._where}: tie_word_embeddings is true, yet {head} differs from "
                    f"{self._stored[EMBEDDING]}; set it to false in config.json if that is meant"
                )

    @cached_property
    def identity(self) -> str:
        parts = self.tokenizer_files() | {"end of text": repr(self.eos_ids).encode()}
        files = {file.path.name: file.file.stamp for file in self._files.values()}
        parts |= {name: files[name] for name in sorted(files)}
        return content_identity(parts)

    def _name(self, canonical: str) -> str:
        """What the files call a tensor."""
        name = self._roles.tensor(hugging_face_name(canonical))
        if not self._nested or name in self._files:
            return name
        candidates = [f"model.language_model.{name.removeprefix('model.')}"]
        candidates.append(f"language_model.{name}")
        return next((c for c in candidates if c in self._files), name)

    def names(self) -> tuple[str, ...]:
        return tuple(self._layout.own)

    def tensor(self, name: str) -> Source:
        if name in self._experts:
            return Stacked(name, tuple(map(self._file_tensor, self._experts[name])))
        tensor = self._layout.part(name, self._file_tensor(self._stored[name]))
        norm = len(tensor.shape) == 1 and name.endswith(".weight")
        return Raised(tensor, 1.0) if norm and self.spec.model_type == "gemma3_text" else tensor

    def _file_tensor(self, name: str) -> FileTensor:
        return self._files[name].tensor(name)

    def tokenizer_files(self) -> dict[str, bytes]:
        return directory_files(self._directory)


def directory_spec(directory: Path, roles: Roles | None = None) -> ModelSpec:
    """The spec of a directory that may have no weights; end-of-text ids from all of its files."""
    if not (directory / "config.json").is_file():
        raise MissingFile(
            f"{directory} has no config.json; a Hugging Face model directory or a .gguf file is "
            "expected"
        )
    config = decoder_entries(read_json(directory / "config.json"))
    if roles is not None:
        config = roles.entries(config)
    eos: tuple[int, ...] = ()
    if (directory / "generation_config.json").is_file():
        eos = read_json(directory / "generation_config.json").tokens("eos_token_id")
    eos += _eos_of_tokenizer(directory)
    return spec_from_config(config, model_name(directory), eos)


def model_name(directory: Path) -> str:
    """What a directory's model is called: as the directory, or as the hub does in its cache.

    There a model is in models--ORGANISATION--NAME/snapshots/COMMIT.
    """
    directory = directory.resolve()
    snapshots = directory.parent
    kind, *parts = snapshots.parent.name.split("--")
    if snapshots.name == "snapshots" and kind == "models" and parts:
        return "/".join(parts)
    return directory.name


def _eos_of_tokenizer(directory: Path) -> tuple[int, ...]:
    """The id of tokenizer_config.json's eos_token, which is a text or a description of one."""
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return ()
    settings = read_json(path).values
    token = settings.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        return ()
    described = settings.get("added_tokens_decoder")
    for id_text, entry in described.items() if isinstance(described, dict) else ():
        if isinstance(entry, dict) and entry.get("content") == content and _ID.fullmatch(id_text):
            return (int(id_text),)
    if not (directory / "tokenizer.json").is_file():
        return ()
    tokenizer = read_json(directory / "tokenizer.json").values
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and entry.get("content") == content:
            return (entry["id"],) if type(entry.get("id")) is int else ()
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found = vocab.get(content) if isinstance(vocab, dict) else None
    return (found,) if type(found) is int else ()


def directory_files(directory: Path) -> dict[str, bytes]:
    """What a model directory keeps of this one (see `Checkpoint.tokenizer_files`)."""
    files = {
        name: read_small(directory / name)
        for name in ("config.json", "generation_config.json", "tokenizer.json")
        if (directory / name).is_file()
    }
    if special := _special_tokens(directory):
        files["tokenizer_config.json"] = json.dumps(special, indent=2).encode()
    template = _chat_template(directory)
    if template is not None:
        try:
            files["chat_template.jinja"] = template.encode()
        except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
            raise DamagedFile(f"{directory}: the chat template is not a text ({error})") from error
    return files


def _special_tokens(directory: Path) -> dict[str, str | None]:
    """Those that templates know: of tokenizer_config.json, or older, of special_tokens_map.json."""
    found: dict[str, str | None] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = directory / name
        if path.is_file():
            entries = read_json(path)
            found |= special_tokens(entries.values, str(path))
            if "added_tokens_decoder" in entries.values:
                break  # as transformers: the other file is only read beside old ones
    return found


def _chat_template(directory: Path) -> str | None:
    """A file of its own wins over tokenizer_config.json's text or list of named texts."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return read_small(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedFile(f"{path}: not UTF-8 ({error})") from error
    path = directory / "tokenizer_config.json"
    template = read_json(path).values.get("chat_template") if path.is_file() else None
    if template is None or isinstance(template, str):
        return template
    named = {
        str(entry.get("name")): entry.get("template")
        for entry in (template if isinstance(template, list) else ())
        if isinstance(entry, dict)
    }
    chosen = named.get("default", next(iter(named.values()), None))
    if not isinstance(chosen, str):
        raise DamagedFile(f"{path}: chat_template is neither a text nor a list of named texts")
    return chosen


def _open_files(directory: Path) -> tuple[str, list[SafetensorsFile]]:
    """The weight files, and what to call them together."""
    single = directory / "model.safetensors"
    if single.is_file():
        return str(single), [SafetensorsFile(single)]
    index = directory / _INDEX
    if index.is_file():
        return str(index), _open_shards(directory, read_json(index))
    pickles = sorted(p.name for p in directory.glob("*.bin"))
    if pickles:
        raise Unsupported(
            f"{directory} has its weights in {pickles[0]}, a pickle, which could run code when "
            "read; convert it to safetensors (transformers: save_pretrained)"
        )
    raise MissingFile(f"{directory} has neither model.safetensors nor {_INDEX}")


def _open_shards(directory: Path, index: Entries) -> list[SafetensorsFile]:
    weight_map: dict[str, Any] = index.get("weight_map", dict)
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise DamagedFile(
                f"{index.where}: tensor {shown(tensor)} lies in {shown(name)!r}, "
                "which is not the name of a file beside it"
            )
    shards = {name: SafetensorsFile(directory / name) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in shards[name].shapes:
            raise DamagedFile(f"{index.where}: tensor {shown(tensor)} is not in {name} as it says")
    seen: dict[str, str] = {}
    for name, shard in shards.items():
        for tensor in shard.shapes:
            if tensor in seen:
                raise DamagedFile(
                    f"{index.where}: tensor {shown(tensor)} is in both {seen[tensor]} and {name}"
                )
            seen[tensor] = name
    return list(shards.values())
