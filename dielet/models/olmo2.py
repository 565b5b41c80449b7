"""OLMo 2: blocks read the residual as it is, and what they give is normed before it is added;
q and k are normed over all heads at once.

Source: the `Olmo2ForCausalLM` architecture as published with Hugging Face transformers.
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
            y = g.rmsnorm(attention(spec, g, h, layer), "post_attention_layernorm", spec.norm_eps)
            h = g.add(h, y, "attention_add")
            y = g.rmsnorm(feed_forward(spec, g, h), "post_feedforward_layernorm", spec.norm_eps)
            h = g.add(h, y, "feedforward_add")
