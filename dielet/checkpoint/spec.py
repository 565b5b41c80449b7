"""ModelSpec: every number of a decoder-only model that its graph depends on."""

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.families import SUPPORTED_MODEL_TYPES
from dielet.checkpoint.rope import check_rope_scaling, inverse_frequencies
from dielet.errors import Unsupported, UsageError

SUPPORTED_ACTIVATIONS = ("silu", "gelu_tanh")

# An absurd size is a damaged or hostile file: it is refused before anything is allocated for it.
_LIMITS = {
    "hidden": (1, 1 << 17),
    "layers": (1, 1 << 10),
    "heads": (1, 1 << 12),
    "kv_heads": (1, 1 << 12),
    "head_dim": (2, 1 << 12),
    "intermediate": (1, 1 << 20),
    "vocab": (1, 1 << 22),
    "max_position": (1, 1 << 26),
}


def check_size(field: str, value: int) -> None:
    """Raise UsageError for a size that no model has, before anything is counted out for it."""
    low, high = _LIMITS[field]
    if not low <= value <= high:
        raise UsageError(f"{field} is {value}; it must be from {low} to {high}")


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decoder-only model.  Sizes are elements; raises UsageError or Unsupported when built wrong.

    rope_scaling is None, or a dict whose `rope_type` says how its other entries are meant
    (see `rope.py`).  Only rotary_dim elements of a head turn, or all (0).  The layers in no_rope do
    not turn at all; those with a window turn by local_rope_theta alone, if it is not 0.
    biases are the linears of a layer that add one, as "self_attn.q_proj".
    windowed are the layers in which a token sees only the last `window` tokens, itself included.
    With experts, a token goes to experts_per_token of them (of size expert_intermediate) in every
    layer but the dense_layers; experts_normed: their weights add up to one.
    Scores are divided by the root of attention_scalar, or of the head size (0).  What is looked up
    in the embedding table is multiplied by embedding_scale.
    eos_ids are united from every source, the one that the checkpoint itself names first.
    """

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    rope_theta: float
    max_position: int
    tied: bool
    qk_norm: bool
    rope_scaling: dict[str, Any] | None = None
    rotary_dim: int = 0
    local_rope_theta: float = 0.0
    no_rope: tuple[int, ...] = ()
    activation: str = "silu"
    biases: tuple[str, ...] = ()
    window: int = 0
    windowed: tuple[int, ...] = ()
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    experts_normed: bool = True
    dense_layers: tuple[int, ...] = ()
    attention_scalar: float = 0.0
    embedding_scale: float = 1.0
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if self.model_type not in SUPPORTED_MODEL_TYPES:
            raise Unsupported(unsupported_model_type(self.model_type))
        if self.activation not in SUPPORTED_ACTIVATIONS:
            raise Unsupported(
                f"activation {self.activation!r} is not supported; "
                f"supported: {', '.join(SUPPORTED_ACTIVATIONS)}"
            )
        for field in _LIMITS:
            check_size(field, getattr(self, field))
        if self.heads % self.kv_heads:
            raise UsageError(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; "
                "every KV head must serve the same number of query heads"
            )
        if self.head_dim % 2:
            raise UsageError(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if not 0 < self.norm_eps < 1:
            raise UsageError(f"norm_eps is {self.norm_eps}; it must be above 0 and below 1")
        if not 1 < self.rope_theta < 1e15:
            raise UsageError(f"rope_theta is {self.rope_theta}; it must be above 1 and below 1e15")
        for field in ("attention_scalar", "embedding_scale"):
            value = getattr(self, field)
            if not 0 <= value < 1e6:
                raise UsageError(f"{field} is {value}; it must be from 0 to 1e6")
        if self.experts and not (
            1 <= self.experts_per_token <= self.experts <= 1 << 12
            and 1 <= self.expert_intermediate <= 1 << 20
        ):
            raise UsageError(
                f"experts {self.experts} of size {self.expert_intermediate}, "
                f"{self.experts_per_token} per token: at most all of at most 4096"
            )
        if self.windowed and not 1 <= self.window <= _LIMITS["max_position"][1]:
            raise UsageError(f"window is {self.window}; it must be from 1 to 67108864")
        if self.local_rope_theta and not 1 < self.local_rope_theta < 1e15:
            raise UsageError(
                f"local_rope_theta is {self.local_rope_theta}; it must be above 1 and below 1e15"
            )
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            raise UsageError(
                f"rotary_dim is {self.rotary_dim}; it must be an even number of at most the head "
                f"size, {self.head_dim}"
            )
        check_rope_scaling(self.rope_scaling, self.turned)
        for role, token in [("bos_id", self.bos_id), *(("eos_ids", t) for t in self.eos_ids)]:
            if token is not None and not 0 <= token < self.vocab:
                raise UsageError(f"{role} {token} is outside the vocabulary of {self.vocab}")

    @property
    def q_size(self) -> int:
        """Outputs of q_proj: heads * head_dim, which need not be `hidden`."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Outputs of k_proj and of v_proj."""
        return self.kv_heads * self.head_dim

    @property
    def post_norms(self) -> bool:
        """Whether a block's result is normed before it is added."""
        return self.model_type in ("olmo2", "gemma3_text")

    @property
    def pre_norms(self) -> bool:
        """Whether what a block reads is normed."""
        return self.model_type != "olmo2"

    @property
    def qk_norm_sizes(self) -> tuple[int, int]:
        """Elements that are normed together of q and of k: a head, or all that there are."""
        if self.model_type == "olmo2":
            return self.q_size, self.kv_size
        return self.head_dim, self.head_dim

    def first(self, layers: int) -> "ModelSpec":
        """The model that is left of this one with so many of its layers, at most all."""
        kept = {
            field: tuple(layer for layer in getattr(self, field) if layer < layers)
            for field in ("no_rope", "windowed", "dense_layers")
        }
        window = self.window if kept["windowed"] else 0
        return msgspec.structs.replace(self, layers=min(layers, self.layers), window=window, **kept)

    def is_mixture(self, layer: int) -> bool:
        """Whether a layer's feed-forward is a mixture of experts."""
        return self.experts > 0 and layer not in self.dense_layers

    @property
    def turned(self) -> int:
        """Elements of a head that the rotary embedding turns."""
        return self.rotary_dim or self.head_dim

    @property
    def rotations(self) -> tuple[str, ...]:
        """The kinds of rotary tables that the layers need: global, local, none."""
        return tuple(dict.fromkeys(map(self.rotation, range(self.layers)))) or ("global",)

    def rotation(self, layer: int) -> str:
        """The kind of rotary table of a layer."""
        if layer in self.no_rope:
            return "none"
        return "local" if self.local_rope_theta and layer in self.windowed else "global"

    def rotary_frequencies(self) -> tuple[NDArray[np.float32], float]:
        """Radians per position of each pair [turned/2], and the factor of cos and sin."""
        return inverse_frequencies(self.turned, self.rope_theta, self.rope_scaling)

    @property
    def longest_text(self) -> int:
        """Positions that can be compiled: the trained ones, or as many as `dynamic` stretches to.

        Beyond its trained positions a `dynamic` embedding starts to act.
        """
        scaling = self.rope_scaling
        if scaling is None or scaling["rope_type"] != "dynamic":
            return self.max_position
        stretched = int(min(scaling["factor"] * self.max_position, _LIMITS["max_position"][1]))
        return max(self.max_position, stretched)

    @property
    def parameters(self) -> int:
        """Number of weights, norms and biases included, a tied head counted once."""
        from dielet.checkpoint.names import tensor_shapes  # which is written in terms of this

        return sum(math.prod(shape) for shape in tensor_shapes(self).values())


def unsupported_model_type(model_type: object) -> str:
    """The sentence that refuses a model family, with the list of those that work."""
    seen, known = str(model_type)[:60], ", ".join(SUPPORTED_MODEL_TYPES)
    return f"model_type {seen!r} is not supported; supported: {known}"
