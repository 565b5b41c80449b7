"""Rotary tables: cos and sin of every position, one table after the other [positions, D/2] f32.

In float32 throughout, as Hugging Face computes them, so that far positions agree too.  Pairs that
do not turn have cos 1 and sin 0; which elements of a head they are is up to the order of its rows
(`checkpoint/stored.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.rope import angles
from dielet.checkpoint.spec import ModelSpec

F32 = NDArray[np.float32]


def rotary_tables(spec: ModelSpec, positions: int) -> tuple[F32, F32]:
    """(cos, sin) [rotations * positions, D/2], times what the model's rope kind asks for.

    The tables stand in the order of `spec.rotations`.
    """
    tables = [_table(spec, kind, positions) for kind in spec.rotations]
    cos, sin = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    return cos, sin


def _table(spec: ModelSpec, kind: str, positions: int) -> tuple[F32, F32]:
    shape = (positions, spec.head_dim // 2)
    cos, sin = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    if kind != "none":
        local = kind == "local"
        theta, scaling = spec.rope_theta, spec.rope_scaling
        theta, scaling = (spec.local_rope_theta, None) if local else (theta, scaling)
        turns, factor = angles(spec.turned, theta, scaling, positions)
        cos[:, : spec.turned // 2] = np.cos(turns) * np.float32(factor)
        sin[:, : spec.turned // 2] = np.sin(turns) * np.float32(factor)
    return cos, sin
