"""A GGUF file as a checkpoint: spec, tensors and tokenizer from its metadata."""

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.base import Checkpoint, content_identity
from dielet.checkpoint.config import Entries, config_json
from dielet.checkpoint.gguf_families import FAMILIES, PAIRED, gguf_fields
from dielet.checkpoint.gguf_split import GgufModel
from dielet.checkpoint.gguf_tokenizer import end_of_text_ids, tokenizer_json
from dielet.checkpoint.names import (
    LAYER,
    LAYER_LINEARS,
    account_for,
    gguf_name,
    shown,
)
from dielet.checkpoint.source import Picked, Source
from dielet.checkpoint.spec import ModelSpec
from dielet.checkpoint.stored import EXPERTS, Stored
from dielet.errors import DamagedFile, DieletError, Unsupported, UsageError

_ROPE_FACTORS = "rope_freqs.weight"
_LONGROPE_FACTORS = {f"{n}_factor": f"rope_factors_{n}.weight" for n in ("short", "long")}


class GgufCheckpoint(Checkpoint):
    """Opens a file; every tensor is accounted for before this returns."""

    def __init__(self, path: Path) -> None:
        self._file = GgufModel(path)
        self.spec = gguf_spec(self._file)
        self.source = f"GGUF file {path}"
        self._layout = Stored(self.spec, by_expert=False)
        post = self.spec.post_norms
        homes = self._layout.homes.items()
        self._names = {name: gguf_name(home, post) for name, (home, _) in homes}
        account_for(
            str(path),
            {gguf_name(name, post): self._shape(name) for name in self._layout.shapes},
            self._file.shapes,
            lambda name: name in (_ROPE_FACTORS, *_LONGROPE_FACTORS.values()),
        )
        for name in self._names:
            self.tensor(name)  # refuses a type that cannot be read

    @cached_property
    def identity(self) -> str:
        described = {k: v for k, v in self._file.metadata.items() if not k.startswith("tokenizer.")}
        parts = {"metadata": json.dumps(described, sort_keys=True).encode()}
        parts |= self.tokenizer_files()
        parts["file"] = self._file.stamp
        return content_identity(parts)

    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def tensor(self, name: str) -> Source:
        stored = self._file.tensor(self._names[name])
        if len(stored.shape) == 3:  # one expert's matrix after another
            stored = replace(stored, shape=self._layout.shapes[name])
        tensor = self._layout.part(name, stored)
        if self.spec.model_type not in PAIRED:
            return tensor
        part = name.rpartition(".")[0]
        if part.endswith(".q_proj"):
            return Picked(tensor, _halves_from_pairs(self.spec.heads, self.spec.head_dim))
        if part.endswith(".k_proj"):
            return Picked(tensor, _halves_from_pairs(self.spec.kv_heads, self.spec.head_dim))
        return tensor

    def _shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor of the file."""
        shape = self._layout.shapes[name]
        if EXPERTS not in name:
            return shape
        return (self.spec.experts, shape[0] // self.spec.experts, shape[1])

    def tokenizer_files(self) -> dict[str, bytes]:
        return dict(self._tokenizer_files)

    @cached_property
    def _tokenizer_files(self) -> dict[str, bytes]:
        generation = {"bos_token_id": self.bos_id, "eos_token_id": list(self.eos_ids)}
        entries = Entries(str(self._file.path), self._file.metadata)
        files = {
            "config.json": config_json(self.spec),
            "generation_config.json": json.dumps(generation, indent=2).encode(),
        }
        if "tokenizer.ggml.model" in self._file.metadata:
            files["tokenizer.json"] = tokenizer_json(entries)
        template = entries.get("tokenizer.chat_template", str, None)
        if template is not None:
            files["chat_template.jinja"] = template.encode()
        return files


def _halves_from_pairs(heads: int, head_dim: int) -> NDArray[np.intp]:
    """For each row of q or k as we have it, its row in a llama GGUF.

    These files pair neighbouring rows (2j, 2j + 1) for the rotary embedding, where we pair the
    halves (j, j + head_dim/2) of a head.
    """
    rows = np.arange(heads * head_dim, dtype=np.intp)
    return rows.reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def gguf_spec(file: GgufModel) -> ModelSpec:
    """The spec that the metadata describes, under Hugging Face's name of the family."""
    entries = Entries(str(file.path), file.metadata)
    family = entries.get("general.architecture", str)
    if family not in FAMILIES:
        raise Unsupported(
            f"{file.path}: architecture {shown(family)!r} is not supported; "
            f"supported: {', '.join(FAMILIES)}"
        )
    _refuse_unsupported(entries, family)
    hidden = entries.get(f"{family}.embedding_length", int)
    heads = _same_everywhere(entries, f"{family}.attention.head_count")
    usual_head_dim = hidden // heads if heads > 0 else 0
    head_dim = entries.get(f"{family}.attention.key_length", int, usual_head_dim)
    layers = entries.get(f"{family}.block_count", int)
    size = entries.get(f"{family}.attention.value_length", int, head_dim)
    if size != head_dim:
        raise Unsupported(
            f"{file.path}: {family}.attention.value_length is {size}, which must equal the head "
            f"size {head_dim}"
        )
    bos = entries.tokens("tokenizer.ggml.bos_token_id")
    try:
        return ModelSpec(
            model_type=FAMILIES[family],
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=_same_everywhere(entries, f"{family}.attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate=_same_everywhere(entries, f"{family}.feed_forward_length"),
            vocab=_vocab(file, entries, family),
            norm_eps=_short(entries.get(f"{family}.attention.layer_norm_rms_epsilon", float)),
            rope_theta=_short(entries.get(f"{family}.rope.freq_base", float, 10000.0)),
            rope_scaling=_rope_scaling(file, entries, family),
            max_position=entries.get(f"{family}.context_length", int),
            tied="output.weight" not in file.entries,
            **gguf_fields(family, entries, layers, head_dim),
            biases=_biases(file),
            bos_id=bos[0] if bos else None,
            eos_ids=end_of_text_ids(entries),
            name=entries.get("general.name", str, file.path.stem),
        )
    except DieletError as error:
        if str(file.path) in str(error):
            raise
        kind = DamagedFile if isinstance(error, UsageError) else type(error)
        raise kind(f"{file.path}: {error}") from error


def _biases(file: GgufModel) -> tuple[str, ...]:
    """The linears of the first layer that have a bias; the other layers must be like it."""
    return tuple(
        name for name in LAYER_LINEARS if gguf_name(f"{LAYER}0.{name}.bias") in file.entries
    )


def _refuse_unsupported(entries: Entries, family: str) -> None:
    if family != "qwen3moe" and entries.get(f"{family}.expert_count", int, 0):
        raise Unsupported(
            f"{entries.where}: mixtures of experts in {family} are not supported; only qwen3moe"
        )


def _same_everywhere(entries: Entries, key: str, default: int | None = None) -> int:
    """A size that may be given once or once per layer, but must not differ between layers."""
    value = entries.values.get(key)
    if isinstance(value, list):
        if not value or any(v != value[0] for v in value):
            raise Unsupported(f"{entries.where}: {key} differs between layers: {shown(value)}")
        entries = Entries(entries.where, {key: value[0]})
    size: int = entries.get(key, int) if default is None else entries.get(key, int, default)
    return size


def _vocab(file: GgufModel, entries: Entries, family: str) -> int:
    """Rows of the embedding, which the metadata may also state."""
    embedding = file.entries.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise DamagedFile(f"{file.path}: token_embd.weight is missing or not a matrix")
    vocab = embedding.shape[0]
    tokens = entries.get("tokenizer.ggml.tokens", list, None)
    stated = entries.get(f"{family}.vocab_size", int, vocab)
    if stated != vocab or (tokens is not None and len(tokens) > vocab):
        raise DamagedFile(
            f"{file.path}: token_embd.weight has {vocab} rows, but vocab_size is {stated} and "
            f"there are {len(tokens or ())} tokens"
        )
    return vocab


def _rope_scaling(file: GgufModel, entries: Entries, family: str) -> dict[str, Any] | None:
    if _ROPE_FACTORS in file.entries:
        return {"rope_type": "factors", "factors": _factors(file, _ROPE_FACTORS)}
    prefix = f"{family}.rope.scaling"
    kind = entries.get(f"{prefix}.type", str, "none")
    if any(name in file.entries for name in _LONGROPE_FACTORS.values()):
        kind = "longrope"
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind}
    if kind == "longrope":
        for key, name in _LONGROPE_FACTORS.items():
            if name not in file.entries:
                raise Unsupported(f"{file.path}: 'longrope' without {name} is not supported")
            scaling[key] = _factors(file, name)
    if kind in ("yarn", "longrope"):
        original = entries.get(f"{prefix}.original_context_length", int)
        scaling["original_max_position_embeddings"] = original
        factor = entries.get(f"{prefix}.attn_factor", float, None)
        if factor is not None:
            scaling["attention_factor"] = _short(factor)
    if kind == "longrope":
        scaling["factor"] = entries.get(f"{family}.context_length", int) / max(original, 1)
    else:
        scaling["factor"] = _short(entries.get(f"{prefix}.factor", float))
    return scaling


def _factors(file: GgufModel, name: str) -> list[float]:
    if file.entries[name].nbytes > 1 << 16:
        raise DamagedFile(f"{file.path}: {name} is larger than any head")
    return [_short(float(f)) for f in file.tensor(name).array().reshape(-1)]


def _short(value: float) -> float:
    """The shortest decimal that is this float32: 1e-5 again, not 9.999999747378752e-06."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))
