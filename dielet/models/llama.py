"""Llama and its kin (SmolLM2): pre-norm blocks, grouped-query attention, gated SiLU feed-forward.

Source: the `LlamaForCausalLM` architecture as published with Hugging Face transformers.
"""

from __future__ import annotations

import math

from dielet.checkpoint.spec import ModelSpec
from dielet.graph import GraphBuilder


def decoder(spec: ModelSpec, g: GraphBuilder) -> None:
    """Write the decoder's nodes; with `spec.qk_norm`, q and k are normed per head (Qwen3)."""
    h = g.input("hidden_in", spec.hidden)
    for layer in range(spec.layers):
        with g.scope(f"model.model.layers.{layer}"):
            h = _attention_block(spec, g, h, layer)
            h = _feed_forward_block(spec, g, h)


def _attention_block(spec: ModelSpec, g: GraphBuilder, h: int, layer: int) -> int:
    heads, kv_heads, width = spec.heads, spec.kv_heads, spec.head_dim
    # Folding log2(e) into the scale lets the softmax use 2^x, which is one polynomial.
    scale = math.log2(math.e) / math.sqrt(width)
    x = g.rmsnorm(h, "pre_attention_layernorm", spec.norm_eps)
    with g.scope("self_attn"):
        q = g.linear(x, "q_proj", heads * width)
        k = g.linear(x, "k_proj", kv_heads * width)
        v = g.linear(x, "v_proj", kv_heads * width)
        if spec.qk_norm:
            q = g.rmsnorm(q, "q_norm", spec.norm_eps, heads)
            k = g.rmsnorm(k, "k_norm", spec.norm_eps, kv_heads)
        q = g.rotary(q, "q_rotary", heads, scale)
        k = g.rotary(k, "k_rotary", kv_heads)
        a = g.attention(q, k, v, "attention", heads=heads, kv_heads=kv_heads, layer=layer)
        return g.add(h, g.linear(a, "o_proj", spec.hidden), "add")


def _feed_forward_block(spec: ModelSpec, g: GraphBuilder, h: int) -> int:
    x = g.rmsnorm(h, "post_attention_layernorm", spec.norm_eps)
    with g.scope("mlp"):
        gate = g.linear(x, "gate_proj", spec.intermediate)
        up = g.linear(x, "up_proj", spec.intermediate)
        return g.add(h, g.linear(g.silu_mul(gate, up, "silu_mul"), "down_proj", spec.hidden), "add")
