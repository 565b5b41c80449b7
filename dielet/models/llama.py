"""Llama and its kin (SmolLM2): pre-norm blocks, grouped-query attention, gated SiLU feed-forward.

Source: the `LlamaForCausalLM` architecture as published with Hugging Face transformers.
"""

from __future__ import annotations

from dielet.checkpoint.spec import ModelSpec
from dielet.graph import GraphBuilder
from dielet.models.blocks import attention, feed_forward


def decoder(spec: ModelSpec, g: GraphBuilder) -> None:
    """Write the decoder's nodes."""
    h = g.input("hidden_in", spec.hidden)
    for layer in range(spec.layers):
        with g.scope(f"model.model.layers.{layer}"):
            x = g.rmsnorm(h, "pre_attention_layernorm", spec.norm_eps)
            h = attention(spec, g, x, layer, residual=h)
            x = g.rmsnorm(h, "post_attention_layernorm", spec.norm_eps)
            h = feed_forward(spec, g, x, residual=h)
