"""Number work shared by the meanings: bf16 rounding, activation quantisation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dielet.formats.bf16 import to_bf16
from dielet.program.commands.entry import Values

F32 = NDArray[np.float32]


def store(v: Values, rows: int, y: F32, out: str, group: int) -> None:
    """Write `y` [rows, columns] to the operands y, y_scale, y_sum in the format `out`."""
    if out == "f32":
        v["y"][:rows] = y
    elif out == "bf16":
        v["y"][:rows] = to_bf16(np.ascontiguousarray(y, np.float32))
    else:
        v["y"][:rows], v["y_scale"][:rows], v["y_sum"][:rows] = quantize_rows(y, group)


def quantize_rows(y: F32, group: int) -> tuple[NDArray[np.int8], F32, NDArray[np.int32]]:
    """int8 codes, scale and code sum per row and group: scale = max|y| / 127."""
    parts = y.reshape(len(y), y.shape[1] // group, group).astype(np.float32)
    scale = np.abs(parts).max(-1) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    q = np.rint(parts * inverse[..., None]).astype(np.int8)
    return q.reshape(y.shape), scale, q.sum(-1, dtype=np.int32)


def dequantize_rows(q: NDArray[np.int8], scale: F32) -> F32:
    parts = q.reshape(len(q), scale.shape[1], -1).astype(np.float32)
    return (parts * scale[..., None]).reshape(len(q), -1)


def activated(x: NDArray[np.float64], activation: str) -> NDArray[np.float64]:
    """x / (1 + exp(-x)), or x over the same of gelu_tanh's argument."""
    inner = np.sqrt(8 / np.pi) * (x + 0.044715 * x**3) if activation == "gelu_tanh" else x
    with np.errstate(over="ignore"):
        found: NDArray[np.float64] = x / (1 + np.exp(-inner))
    return found


def rms_normed(x: F32, weight: F32, eps: float) -> F32:
    """x [..., K] over the root of its mean square, times weight [K]."""
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    return (x / np.sqrt(mean + eps) * weight).astype(np.float32)


def rotated(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate halves: x [rows, heads, D], cos and sin [rows, D/2]."""
    a, b = np.split(x, 2, axis=-1)
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)
