"""Qwen3-MoE: Qwen3's attention; the feed-forward of most layers is a mixture of experts.

Source: the `Qwen3MoeForCausalLM` architecture as published with Hugging Face transformers.
"""

from __future__ import annotations

from dielet.checkpoint.spec import ModelSpec
from dielet.graph import GraphBuilder
from dielet.models.blocks import attention, feed_forward, mixture


def decoder(spec: ModelSpec, g: GraphBuilder) -> None:
    """Write the decoder's nodes."""
    h = g.input("hidden_in", spec.hidden)
    for layer in range(spec.layers):
        with g.scope(f"model.model.layers.{layer}"):
            x = g.rmsnorm(h, "pre_attention_layernorm", spec.norm_eps)
            h = attention(spec, g, x, layer, residual=h)
            x = g.rmsnorm(h, "post_attention_layernorm", spec.norm_eps)
            block = mixture if spec.is_mixture(layer) else feed_forward
            h = block(spec, g, x, residual=h)
