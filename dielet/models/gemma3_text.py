"""Gemma 3 (text): norms before and after each block, a tanh GELU, and layers with a window that
turn by a table of their own between those that see all.  Its norms' weights are kept as distances
from one, and its embeddings are scaled (`spec.embedding_scale`).

Source: the `Gemma3ForCausalLM` architecture as published with Hugging Face transformers.
"""

from __future__ import annotations

from dielet.checkpoint.spec import ModelSpec
from dielet.graph import GraphBuilder
from dielet.models.blocks import attention, feed_forward


def decoder(spec: ModelSpec, g: GraphBuilder) -> None:
    """Write the decoder's nodes."""
    h, eps = g.input("hidden_in", spec.hidden), spec.norm_eps
    for layer in range(spec.layers):
        with g.scope(f"model.model.layers.{layer}"):
            x = g.rmsnorm(h, "pre_attention_layernorm", eps)
            y = g.rmsnorm(attention(spec, g, x, layer), "post_attention_layernorm", eps)
            h = g.add(h, y, "attention_add")
            x = g.rmsnorm(h, "pre_feedforward_layernorm", eps)
            y = g.rmsnorm(feed_forward(spec, g, x), "post_feedforward_layernorm", eps)
            h = g.add(h, y, "feedforward_add")
