"""What a number format does to the outputs of a linear, over a sample of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.source import Source
from dielet.formats.packed import PANEL, WeightFormat, unpack
from dielet.formats.quantize import quantize

F32 = NDArray[np.float32]
_PANELS = 8  # at most, of a linear: 256 outputs


@dataclass(frozen=True)
class Sampled:
    """Some rows of a linear's weights as the checkpoint has them, and as they are stored."""

    weights: F32
    stored: F32

    @staticmethod
    def of(source: Source, fmt: WeightFormat, importance: F32 | None) -> Sampled:
        panels = -(-source.N // PANEL)
        chosen = np.unique(np.linspace(0, panels - 1, min(panels, _PANELS)).astype(int)) * PANEL
        weights = np.concatenate(
            [source.rows(int(lo), min(int(lo) + PANEL, source.N)) for lo in chosen]
        )
        if fmt in source.exact_formats or fmt.kind == "bf16":
            return Sampled(weights, weights)
        packed = quantize(fmt, weights, source.name, importance=importance)
        return Sampled(weights, unpack(fmt, packed, *weights.shape))

    def relative_error(self, importance: F32, inputs: F32) -> float:
        """The outputs' expected squared error over their mean square for `inputs` [rows, K]."""
        wrong = np.square(self.stored - self.weights, dtype=np.float64) @ importance
        mean_square = np.square(inputs @ self.weights.T, dtype=np.float64).mean(axis=0).sum()
        return float(wrong.sum() / max(mean_square, np.finfo(np.float64).tiny))

    def cosine(self, inputs: F32, entered: F32) -> float:
        """Of the outputs for `inputs`, and of the stored weights' for what `entered` instead."""
        right = (inputs @ self.weights.T).ravel().astype(np.float64)
        ours = (entered @ self.stored.T).ravel().astype(np.float64)
        sizes = float(np.sqrt((right @ right) * (ours @ ours)))
        return float(right @ ours) / sizes if sizes else 1.0
