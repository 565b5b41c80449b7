"""Rotary tables: cos and sin of every position, [positions, D/2] f32.

Source: the frequency rules that Hugging Face transformers applies by `rope_type`, in float32 as
there, so that positions far from the start agree too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import Unsupported, UsageError

F32 = NDArray[np.float32]
KINDS = ("default", "linear", "llama3")


def rotary_tables(spec: ModelSpec, positions: int) -> tuple[F32, F32]:
    """(cos, sin) for positions 0 ... positions-1.  Unsupported for another `rope_type`."""
    frequencies = inverse_frequencies(spec)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None, :]
    return np.cos(angles), np.sin(angles)


def inverse_frequencies(spec: ModelSpec) -> F32:
    """Radians per position of each of the D/2 pairs."""
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float32) / np.float32(spec.head_dim)
    base = (1.0 / np.float32(spec.rope_theta) ** exponents).astype(np.float32)
    scaling = spec.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return base
    if kind == "linear":
        return (base / np.float32(_positive(scaling, "factor"))).astype(np.float32)
    if kind == "llama3":
        return _llama3(base, scaling)
    raise Unsupported(f"rope_type '{kind}' is not supported; supported: {', '.join(KINDS)}")


def _llama3(base: F32, scaling: dict[str, Any]) -> F32:
    """Slow waves are stretched by `factor`, fast ones kept, those between blended."""
    factor = _positive(scaling, "factor")
    low, high = _positive(scaling, "low_freq_factor"), _positive(scaling, "high_freq_factor")
    if high <= low:
        raise UsageError(
            f"rope_scaling: high_freq_factor {high} must be above low_freq_factor {low}"
        )
    waves = _positive(scaling, "original_max_position_embeddings") * base / (2 * math.pi)
    blend = np.clip((waves - low) / (high - low), 0, 1)
    return ((1 - blend) * base / factor + blend * base).astype(np.float32)


def _positive(scaling: dict[str, Any], key: str) -> float:
    value = scaling.get(key)
    if not isinstance(value, int | float) or not 0 < value < 1e9:
        raise UsageError(f"rope_scaling: {key} is {value!r}; it must be a positive number")
    return float(value)
