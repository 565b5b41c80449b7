"""Checkpoint: the one interface over directories, GGUF files and random weights."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping

from dielet.checkpoint.source import Source
from dielet.checkpoint.spec import ModelSpec


class Checkpoint(ABC):
    """A model's spec, its tensors by canonical name, and the files that turn text into tokens."""

    spec: ModelSpec
    source: str  # what it was opened from, for people

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Token ids that end a text, united from every place that names one."""
        return self.spec.eos_ids

    @property
    def bos_id(self) -> int | None:
        return self.spec.bos_id

    @property
    @abstractmethod
    def identity(self) -> str:
        """64 hex digits that change when the checkpoint does: of its texts, and of the sizes and
        times of its weight files.  A copy has another one."""

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Canonical names of every tensor, in model order; a tied head is not among them."""

    @abstractmethod
    def tensor(self, name: str) -> Source:
        """The tensor of a canonical name; KeyError for a name that is not in names()."""

    @abstractmethod
    def tokenizer_files(self) -> dict[str, bytes]:
        """File name -> content of what the model directory keeps of the checkpoint's own files:
        config.json, generation_config.json, and tokenizer.json, chat_template.jinja and the
        special tokens of tokenizer_config.json if any.
        """


def content_identity(parts: Mapping[str, bytes]) -> str:
    """sha256 over named parts, in order; no two different mappings give the same bytes."""
    digest = hashlib.sha256()
    for name, content in parts.items():
        for field in (name.encode(), content):
            digest.update(len(field).to_bytes(8, "little"))
            digest.update(field)
    return digest.hexdigest()
