"""Checkpoints: what a model is, where its tensors lie, and how its text becomes tokens."""

from typing import TYPE_CHECKING

from dielet import lazy

if TYPE_CHECKING:
    from dielet.checkpoint.base import Checkpoint
    from dielet.checkpoint.open import open_checkpoint, open_config, open_random
    from dielet.checkpoint.pack import pack_rows
    from dielet.checkpoint.random import RandomCheckpoint
    from dielet.checkpoint.source import Source
    from dielet.checkpoint.spec import SUPPORTED_MODEL_TYPES, ModelSpec

__all__ = [
    "Checkpoint",
    "ModelSpec",
    "RandomCheckpoint",
    "SUPPORTED_MODEL_TYPES",
    "Source",
    "open_checkpoint",
    "open_config",
    "open_random",
    "pack_rows",
]

__getattr__ = lazy.names(
    __name__,
    {
        "Checkpoint": "base",
        "ModelSpec": "spec",
        "RandomCheckpoint": "random",
        "SUPPORTED_MODEL_TYPES": "spec",
        "Source": "source",
        "open_checkpoint": "open",
        "open_config": "open",
        "open_random": "open",
        "pack_rows": "pack",
    },
)
