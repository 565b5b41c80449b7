"""What `from_pretrained` is given in place of a checkpoint's own configuration files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from transformers import AutoConfig, GenerationConfig, PretrainedConfig

from dielet.errors import Unsupported, UsageError

Model = TypeVar("Model")
# Entries of a configuration that say how to compute or where it is from, not what.
_NO_MATTER = {
    "_name_or_path", "_attn_implementation", "architectures", "dtype", "torch_dtype",
    "transformers_version", "use_cache", "return_dict", "output_attentions",
    "output_hidden_states",
}  # fmt: skip
_OF_LAYERS = {"num_hidden_layers", "layer_types"}


@dataclass(frozen=True)
class Changes:
    """layers: the first so many are wanted, None for all; generation: settings for `generate`."""

    layers: int | None = None
    generation: GenerationConfig | None = None

    @staticmethod
    def taken(given: dict[str, Any], source: str | Path) -> Changes:
        """Take `config`, `generation_config` and `output_loading_info` out of `given`.

        source: the checkpoint.  Raises UsageError for values that cannot be taken.
        """
        if given.pop("output_loading_info", False):
            raise Unsupported(
                "output_loading_info: there is none, since a tensor that is missing or has another "
                "shape is an error here; leave it out"
            )
        settings = given.pop("generation_config", None)
        if settings is not None and not isinstance(settings, GenerationConfig):
            kind = type(settings).__name__
            raise UsageError(f"generation_config is a {kind}; give a GenerationConfig")
        config = given.pop("config", None)
        return Changes(None if config is None else _layers(config, source), settings)

    def applied(self, model: Model) -> Model:
        """The model, with the settings."""
        if self.generation is not None:
            vars(model)["generation_config"] = self.generation
        return model


def _layers(config: Any, source: str | Path) -> int | None:
    """How many layers a configuration has, if it is the checkpoint's own with fewer of them."""
    if not isinstance(config, PretrainedConfig):
        raise UsageError(f"config is a {type(config).__name__}; give a PretrainedConfig")
    asked, own = config.to_dict(), AutoConfig.from_pretrained(source).to_dict()
    names = (asked.keys() | own.keys()) - _NO_MATTER
    changed = sorted(name for name in names if asked.get(name) != own.get(name))
    if not changed:
        return None
    layers = asked.get("num_hidden_layers")
    fewer = type(layers) is int and 0 < layers <= own.get("num_hidden_layers", 0)
    if not fewer or not _OF_LAYERS.issuperset(changed):
        raise UsageError(
            f"config differs from the checkpoint's own in {', '.join(changed)}, and only fewer "
            "layers (num_hidden_layers) can be had; leave it out, or change config.json"
        )
    return layers
