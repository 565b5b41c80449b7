"""Decoder families: one file per Hugging Face `model_type`, each a function from spec to graph."""

from __future__ import annotations

from collections.abc import Callable

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import Unsupported
from dielet.graph import Graph, GraphBuilder
from dielet.models import llama, qwen3

FAMILIES: dict[str, Callable[[ModelSpec, GraphBuilder], None]] = {
    "llama": llama.decoder,
    "qwen3": qwen3.decoder,
}


def build_decoder(spec: ModelSpec, rows: int) -> Graph:
    """The decoder of `spec` for `rows` tokens: hidden_in [rows, hidden] -> hidden_out."""
    family = FAMILIES.get(spec.model_type)
    if family is None:
        raise Unsupported(
            f"model type '{spec.model_type}' is not supported; supported: {', '.join(FAMILIES)}"
        )
    g = GraphBuilder(rows)
    family(spec, g)
    return g.finish()


def build_head(spec: ModelSpec, rows: int = 1) -> Graph:
    """The final norm and the head: hidden [rows, hidden] -> logits [rows, vocab]."""
    g = GraphBuilder(rows)
    x = g.rmsnorm(g.input("hidden_out", spec.hidden), "model.model.norm", spec.norm_eps)
    g.linear(x, "model.lm_head", spec.vocab)
    return g.finish()
