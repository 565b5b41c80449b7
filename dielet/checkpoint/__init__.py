"""Checkpoints: what a model is, where its tensors lie, and how its text becomes tokens."""

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
