"""config.json and generation_config.json of a Hugging Face directory -> ModelSpec."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dielet.checkpoint.families import ARCHITECTURES, config_entries, family_fields, usual
from dielet.checkpoint.filemap import read_small
from dielet.checkpoint.names import shown
from dielet.checkpoint.quantization import read_quantization
from dielet.checkpoint.rope_config import rope_fields
from dielet.checkpoint.spec import (
    SUPPORTED_MODEL_TYPES,
    ModelSpec,
    check_size,
    unsupported_model_type,
)
from dielet.errors import DamagedFile, DieletError, Unsupported, UsageError

_REQUIRED = object()
# Of any family: what a decoder that we compute has here, or leaves out.  Anything else is
# another computation on the same weights.
_ONLY = {
    "is_causal": True,
    "is_encoder_decoder": False,
    "use_bidirectional_attention": False,
    "alibi": False,
}


class Entries:
    """A JSON object whose entries are asked for by name and type; `where` starts its complaints."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value of `key`, or `default` where it is absent or null."""
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise DamagedFile(f"{self.where}: {key} is missing")
            return default
        if kind is float and type(value) is int and abs(value) < 1 << 53:
            value = float(value)
        if type(value) is not kind or (isinstance(value, int) and abs(value) >> 63):
            raise DamagedFile(f"{self.where}: {key} is {shown(value)!r}, not {kind.__name__}")
        return value

    def within(self, key: str, values: Mapping[str, Any]) -> "Entries":
        """The entries `values` of an object that is called `key` in this one."""
        return Entries(f"{self.where}: {key}", values)

    def tokens(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or nothing."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(v) is int and v >= 0 for v in ids):
            raise DamagedFile(f"{self.where}: {key} is {shown(value)!r}, not token ids")
        return tuple(ids)


def read_json(path: Path) -> Entries:
    """The JSON object in a file.  Raises MissingFile, DamagedFile."""
    data = read_small(path)
    try:
        values = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise DamagedFile(f"{path}: a JSON object is expected, not {type(values).__name__}")
    return Entries(str(path), values)


def is_nested(config: Entries) -> bool:
    """Whether the decoder is a part of a larger model, described by an object of its own."""
    return isinstance(config.values.get("text_config"), dict)


def decoder_entries(config: Entries) -> Entries:
    """The entries that describe the decoder; what those leave out is the whole model's."""
    if not is_nested(config):
        return config
    text = config.within("text_config", config.get("text_config", dict))
    shared = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")
    whole = {key: config.values[key] for key in shared if key in config.values}
    return Entries(text.where, {**whole, **text.values})


def spec_from_config(config: Entries, name: str, more_eos: Iterable[int] = ()) -> ModelSpec:
    """Build the spec that a config.json describes; `more_eos` come from its sibling files.

    Raises Unsupported for another family or a feature that would change the results unnoticed.
    """
    model_type = config.get("model_type", str)
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise Unsupported(f"{config.where}: {unsupported_model_type(model_type)}")
    _refuse_unsupported(config)
    config = Entries(config.where, {**usual(model_type), **config.values})
    heads = config.get("num_attention_heads", int)
    hidden = config.get("hidden_size", int)
    whole_head = hidden // heads if heads > 0 else 0
    head_dim = config.get("head_dim", int, whole_head)
    layers = config.get("num_hidden_layers", int)
    bos = config.tokens("bos_token_id")
    try:
        for field, size in (("hidden", hidden), ("layers", layers), ("head_dim", head_dim)):
            check_size(field, size)  # what follows calculates with them
        fields = rope_fields(model_type, config, head_dim) | family_fields(model_type, config)
        return ModelSpec(
            model_type=model_type,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=config.get("num_key_value_heads", int, heads),
            head_dim=head_dim,
            intermediate=config.get("intermediate_size", int),
            vocab=config.get("vocab_size", int),
            norm_eps=config.get("rms_norm_eps", float, 1e-6),
            max_position=config.get("max_position_embeddings", int),
            tied=config.get("tie_word_embeddings", bool, False),
            **fields,
            bos_id=bos[0] if bos else None,
            eos_ids=tuple(dict.fromkeys((*config.tokens("eos_token_id"), *more_eos))),
            name=name,
        )
    except DieletError as error:
        if str(error).startswith(config.where):
            raise
        kind = DamagedFile if isinstance(error, UsageError) else type(error)
        raise kind(f"{config.where}: {error}") from error


def _refuse_unsupported(config: Entries) -> None:
    for key, only in _ONLY.items():
        value = config.values.get(key)
        if value is not None and value is not only:
            raise Unsupported(
                f"{config.where}: {key} is {json.dumps(value)[:60]}, which is not supported; only "
                f"{json.dumps(only)}"
            )
    if "rms_norm_eps" in config.values and config.values["rms_norm_eps"] is None:
        raise DamagedFile(f"{config.where}: rms_norm_eps is null; a number above 0 is needed")
    read_quantization(config)  # refuses what cannot be read


def first_layers(text: bytes, layers: int) -> bytes:
    """The config.json `text` cut to a model's first layers; as it is where it has no more."""
    config = json.loads(text)
    decoder = config["text_config"] if is_nested(Entries("", config)) else config
    count = decoder.get("num_hidden_layers")
    if type(count) is not int or count <= layers:
        return text
    decoder["num_hidden_layers"] = layers
    for key in ("layer_types", "no_rope_layers"):
        if isinstance(decoder.get(key), list):
            decoder[key] = decoder[key][:layers]
    return json.dumps(config, indent=2).encode()


def config_json(spec: ModelSpec) -> bytes:
    """The config.json that says the same as `spec`, for checkpoints that have none."""
    config = {
        "model_type": spec.model_type,
        "architectures": [ARCHITECTURES[spec.model_type]],
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate,
        "vocab_size": spec.vocab,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": spec.rope_scaling,
        "partial_rotary_factor": spec.turned / spec.head_dim,
        "max_position_embeddings": spec.max_position,
        "tie_word_embeddings": spec.tied,
        "hidden_act": spec.activation,
        **config_entries(spec),
        "bos_token_id": spec.bos_id,
        "eos_token_id": list(spec.eos_ids),
    }
    return json.dumps(config, indent=2).encode()
