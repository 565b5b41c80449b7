"""How a family's tensors lie in files: fused ones, and heads whose turning elements come first.

A tensor that is not stored under its own name is a run of rows of another.  Where only a part of
a head turns, files have the turning elements first, as two halves; we have each half at the
beginning of a half of the head, so that element j always turns with element j + D/2.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.names import LAYER, tensor_shapes
from dielet.checkpoint.source import Picked, Source
from dielet.checkpoint.spec import ModelSpec

EXPERTS = "mlp.experts."
Order = NDArray[np.intp]
_PART = re.compile(re.escape(LAYER) + r"(\d+)\.(.+)\.(weight|bias)")


def stored_parts(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    """Tensors of a layer that files hold as one, with the tensors that they are made of."""
    if spec.model_type != "phi3":
        return {}
    return {
        "self_attn.qkv_proj": tuple(f"self_attn.{name}_proj" for name in "qkv"),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    }


class Stored:
    """Where a model's tensors are among those of a file.

    shapes: of the file's tensors, by canonical name, fused ones in the place of their parts.
    experts: canonical name -> those of the file's tensors which make it up, one for each expert;
    empty where files hold an expert's matrices as one already.
    homes: of all others, canonical name -> that of the file's tensor which holds it, and its first
    row there.
    """

    def __init__(self, spec: ModelSpec, by_expert: bool = True) -> None:
        self.spec = spec
        self.own = tensor_shapes(spec)
        wholes = {part: whole for whole, parts in stored_parts(spec).items() for part in parts}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.homes: dict[str, tuple[str, int]] = {}
        self.experts: dict[str, tuple[str, ...]] = {}
        for name, shape in self.own.items():
            if by_expert and EXPERTS in name:
                self.experts[name] = names = _by_expert(name, spec.experts)
                self.shapes |= dict.fromkeys(names, (shape[0] // spec.experts, shape[1]))
                continue
            match = _PART.fullmatch(name)
            whole = wholes.get(match[2]) if match else None
            home = f"{LAYER}{match[1]}.{whole}.{match[3]}" if match and whole else name
            rows = self.shapes[home][0] if home in self.shapes else 0
            self.homes[name] = home, rows
            self.shapes[home] = (rows + shape[0], *shape[1:])

    def part(self, name: str, tensor: Source) -> Source:
        """The rows of `tensor`, the home of `name`, that are `name`'s, in our order."""
        shape, first = self.own[name], self.homes[name][1]
        order = _heads_order(self.spec, name)
        if tensor.shape == shape:
            return tensor if order is None else Picked(tensor, order)
        if order is None:
            order = np.arange(shape[0], dtype=np.intp)
        return Picked(tensor, first + order)


def _by_expert(name: str, experts: int) -> tuple[str, ...]:
    before, _, after = name.partition(EXPERTS)
    return tuple(f"{before}{EXPERTS}{expert}.{after}" for expert in range(experts))


def _heads_order(spec: ModelSpec, name: str) -> Order | None:
    """Which stored row each row of q, k or their norms is; None where that is all the same."""
    match = _PART.fullmatch(name)
    if match is None or spec.turned == spec.head_dim:
        return None
    heads = {"self_attn.q_proj": spec.heads, "self_attn.k_proj": spec.kv_heads}
    norms = {"self_attn.q_norm": 1, "self_attn.k_norm": 1}
    count = {**heads, **norms}.get(match[2], 0)
    return partly_turned(count, spec.head_dim, spec.turned) if count else None


def partly_turned(heads: int, head_dim: int, turned: int) -> Order:
    """For each row as we have it, its row in a file whose first `turned` of a head turn."""
    half, rest = turned // 2, (head_dim - turned) // 2
    low = [*range(half), *range(turned, turned + rest)]
    high = [*range(half, turned), *range(turned + rest, head_dim)]
    rows = np.arange(heads * head_dim, dtype=np.intp).reshape(heads, head_dim)
    return rows[:, [*low, *high]].reshape(-1)
