"""The two blocks that decoders are made of: attention over the cache, and a gated feed-forward.

A family says how they are normed and joined.  With a `residual` the block's last linear adds it;
without one the block's own result is given, for a norm to follow.
"""

from __future__ import annotations

import math

from dielet.checkpoint.spec import ModelSpec
from dielet.graph import GraphBuilder


def attention(
    spec: ModelSpec, g: GraphBuilder, x: int, layer: int, residual: int | None = None
) -> int:
    """Grouped-query attention of the normed `x`; with `spec.qk_norm`, q and k are normed too."""
    heads, kv_heads, width = spec.heads, spec.kv_heads, spec.head_dim
    # Folding log2(e) into the scale lets the softmax use 2^x, which is one polynomial.
    scale = math.log2(math.e) / math.sqrt(spec.attention_scalar or width)
    with g.scope("self_attn"):
        q = _linear(spec, g, x, "self_attn.q_proj", heads * width)
        k = _linear(spec, g, x, "self_attn.k_proj", kv_heads * width)
        v = _linear(spec, g, x, "self_attn.v_proj", kv_heads * width)
        if spec.qk_norm:
            q_norm, k_norm = spec.qk_norm_sizes
            q = g.rmsnorm(q, "q_norm", spec.norm_eps, heads * width // q_norm)
            k = g.rmsnorm(k, "k_norm", spec.norm_eps, kv_heads * width // k_norm)
        table = spec.rotations.index(spec.rotation(layer))
        q = g.rotary(q, "q_rotary", heads, scale, table)
        k = g.rotary(k, "k_rotary", kv_heads, table=table)
        window = spec.window if layer in spec.windowed else 0
        a = g.attention(
            q, k, v, "attention", heads=heads, kv_heads=kv_heads, layer=layer, window=window
        )
        y = _linear(spec, g, a, "self_attn.o_proj", spec.hidden)
        return y if residual is None else g.add(residual, y, "add")


def feed_forward(spec: ModelSpec, g: GraphBuilder, x: int, residual: int | None = None) -> int:
    """down(activation(gate) * up) of the normed `x`."""
    with g.scope("mlp"):
        gate = _linear(spec, g, x, "mlp.gate_proj", spec.intermediate)
        up = _linear(spec, g, x, "mlp.up_proj", spec.intermediate)
        y = g.silu_mul(gate, up, "silu_mul", spec.activation)
        y = _linear(spec, g, y, "mlp.down_proj", spec.hidden)
        return y if residual is None else g.add(residual, y, "add")


def mixture(spec: ModelSpec, g: GraphBuilder, x: int, residual: int) -> int:
    """The residual plus the experts' feed-forwards of the normed `x`, by the router's choice."""
    with g.scope("mlp"):
        scores = g.linear(x, "gate", spec.experts)
        routes = g.route(scores, "route", spec.experts, spec.experts_per_token, spec.experts_normed)
        inner = spec.expert_intermediate
        return g.experts(x, routes, residual, "experts", inner, spec.activation)


def _linear(spec: ModelSpec, g: GraphBuilder, x: int, part: str, columns: int) -> int:
    """A linear of a layer, inside of its module's scope."""
    return g.linear(x, part.rpartition(".")[2], columns, bias=part in spec.biases)
