"""Weights that come from nowhere: for sizes and speed, where a configuration is all there is."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.base import Checkpoint, content_identity
from dielet.checkpoint.config import config_json
from dielet.checkpoint.names import tensor_shapes
from dielet.checkpoint.source import Source
from dielet.checkpoint.spec import ModelSpec

_DEVIATION = 0.02  # what Hugging Face initialises linears with


@dataclass(frozen=True)
class RandomTensor(Source):
    """Uniform numbers that depend only on seed, name and place: any rows, in any order."""

    name: str
    shape: tuple[int, ...]
    seed: int
    centre: float = 0.0
    deviation: float = _DEVIATION

    @property
    def kind(self) -> str:
        return "random"

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        assert 0 <= lo <= hi <= self.N
        draws = -(-self.K // 4)  # 64 random bits are four weights
        key = hashlib.sha256(f"{self.seed}:{self.name}".encode()).digest()
        bits = np.random.PCG64DXSM(int.from_bytes(key, "little")).advance(lo * draws)
        words = np.random.Generator(bits).integers(
            0, 1 << 64, (hi - lo) * draws, dtype=np.uint64, endpoint=False
        )
        values = words.view("<u2").reshape(hi - lo, draws * 4)[:, : self.K].astype(np.float32)
        values -= np.float32(32767.5)
        values *= np.float32(self.deviation * 3**0.5 / 32767.5)
        values += np.float32(self.centre)
        return values


class RandomCheckpoint(Checkpoint):
    """A checkpoint of `spec` with random weights; `files` are a tokenizer's, if there is one."""

    def __init__(
        self, spec: ModelSpec, seed: int = 0, files: Mapping[str, bytes] | None = None
    ) -> None:
        self.spec = spec
        self.seed = seed
        self.source = f"random weights, seed {seed}"
        self._shapes = tensor_shapes(spec)
        self._files = dict(files or {})
        self._files.setdefault("config.json", config_json(spec))

    @property
    def identity(self) -> str:
        return content_identity({"random": str(self.seed).encode(), **self._files})

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def tensor(self, name: str) -> RandomTensor:
        shape = self._shapes[name]
        if len(shape) == 1 and not name.endswith(".bias"):
            # A norm: near one, so that no layer drowns another.
            return RandomTensor(name, shape, self.seed, centre=1.0, deviation=0.1)
        return RandomTensor(name, shape, self.seed)

    def tokenizer_files(self) -> dict[str, bytes]:
        return dict(self._files)
