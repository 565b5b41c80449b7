"""Rotary tables: cos and sin of every position, [positions, D/2] f32.

In float32 throughout, as Hugging Face computes them, so that far positions agree too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.rope import inverse_frequencies
from dielet.checkpoint.spec import ModelSpec

F32 = NDArray[np.float32]


def rotary_tables(spec: ModelSpec, positions: int) -> tuple[F32, F32]:
    """(cos, sin) for positions 0 ... positions-1, times what the model's rope kind asks for."""
    turns, factor = inverse_frequencies(spec.head_dim, spec.rope_theta, spec.rope_scaling)
    angles = np.arange(positions, dtype=np.float32)[:, None] * turns[None, :]
    return np.cos(angles) * np.float32(factor), np.sin(angles) * np.float32(factor)
