"""A Hugging Face model directory: config.json, safetensors, tokenizer and chat template."""

import json
import re
from functools import cached_property
from pathlib import Path

from dielet.checkpoint.base import Checkpoint, content_identity
from dielet.checkpoint.config import (
    decoder_entries,
    is_nested,
    read_json,
    spec_from_config,
)
from dielet.checkpoint.filemap import read_small
from dielet.checkpoint.names import EMBEDDING, HEAD, account_for, hugging_face_name
from dielet.checkpoint.quantization import Quantization, quantization, read_quantization
from dielet.checkpoint.roles import Roles
from dielet.checkpoint.source import Raised, Source, Stacked
from dielet.checkpoint.spec import ModelSpec
from dielet.checkpoint.special_tokens import special_tokens
from dielet.checkpoint.stored import Stored
from dielet.checkpoint.weight_files import WeightFiles
from dielet.errors import DamagedFile, MissingFile

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
        self._files = WeightFiles(directory, _quantization(directory))
        self._nested = is_nested(read_json(directory / "config.json"))
        self._layout = Stored(self.spec)
        self._experts = {
            name: tuple(map(self._name, names)) for name, names in self._layout.experts.items()
        }
        self._stored = {n: self._name(home) for n, (home, _) in self._layout.homes.items()}
        self._account()

    def _account(self) -> None:
        where, found = self._files.where, self._files.shapes
        shapes = {self._name(name): shape for name, shape in self._layout.shapes.items()}
        head = self._name(HEAD)
        tied_head = self.spec.tied and head in found
        ignored = (*_IGNORED, *self._roles.ignore)

        def ignorable(name: str) -> bool:
            other = self._nested and not name.startswith(_DECODERS)
            if other or name.endswith(ignored) or (tied_head and name == head):
                return True
            return self._files.is_unused(name)

        account_for(where, shapes, found, ignorable)
        for name in self.names():
            self.tensor(name)  # refuses a dtype that cannot be read
        if tied_head and not self._files.same(self._stored[EMBEDDING], head):
            raise DamagedFile(
                f"{where}: tie_word_embeddings is true, yet {head} differs from "
                f"{self._stored[EMBEDDING]}; set it to false in config.json if that is meant"
            )

    @cached_property
    def identity(self) -> str:
        parts = self.tokenizer_files() | {"end of text": repr(self.eos_ids).encode()}
        parts |= {file.path.name: file.file.stamp for file in self._files.files}
        return content_identity(parts)

    def _name(self, canonical: str) -> str:
        """What the files call a tensor."""
        name = self._roles.tensor(hugging_face_name(canonical))
        if not self._nested or name in self._files.shapes:
            return name
        candidates = [f"model.language_model.{name.removeprefix('model.')}"]
        candidates.append(f"language_model.{name}")
        return next((c for c in candidates if c in self._files.shapes), name)

    def names(self) -> tuple[str, ...]:
        return tuple(self._layout.own)

    def tensor(self, name: str) -> Source:
        if name in self._experts:
            return Stacked(name, tuple(map(self._files.tensor, self._experts[name])))
        tensor = self._layout.part(name, self._files.tensor(self._stored[name]))
        norm = len(tensor.shape) == 1 and name.endswith(".weight")
        return Raised(tensor, 1.0) if norm and self.spec.model_type == "gemma3_text" else tensor

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


def _quantization(directory: Path) -> Quantization | None:
    """How the weights are quantised; some older GPTQ checkpoints say it in a file of its own."""
    config = decoder_entries(read_json(directory / "config.json"))
    path = directory / "quantize_config.json"
    if config.values.get("quantization_config") is None and path.is_file():
        return quantization(read_json(path), default="gptq")
    return read_quantization(config)


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
        if (directory / name).exists()
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
        if path.exists():
            entries = read_json(path)
            found |= special_tokens(entries.values, str(path))
            if "added_tokens_decoder" in entries.values:
                break  # as transformers: the other file is only read beside old ones
    return found


def _chat_template(directory: Path) -> str | None:
    """A file of its own wins over tokenizer_config.json's text or list of named texts."""
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return read_small(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedFile(f"{path}: not UTF-8 ({error})") from error
    path = directory / "tokenizer_config.json"
    template = read_json(path).values.get("chat_template") if path.exists() else None
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
