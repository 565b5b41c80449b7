"""Decoder families: one file per Hugging Face `model_type`, each a function from spec to graph."""

from __future__ import annotations

from collections.abc import Callable

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import Unsupported
from dielet.formats.packed import PANEL
from dielet.graph import Graph, GraphBuilder
from dielet.models import gemma3_text, llama, mistral, olmo2, phi3, qwen2, qwen3, qwen3_moe, smollm3

HEAD_UNIT = 16
FAMILIES: dict[str, Callable[[ModelSpec, GraphBuilder], None]] = {
    "gemma3_text": gemma3_text.decoder,
    "llama": llama.decoder,
    "mistral": mistral.decoder,
    "olmo2": olmo2.decoder,
    "phi3": phi3.decoder,
    "qwen2": qwen2.decoder,
    "qwen3": qwen3.decoder,
    "qwen3_moe": qwen3_moe.decoder,
    "smollm3": smollm3.decoder,
}


def build_decoder(spec: ModelSpec, rows: int) -> Graph:
    """The decoder of `spec` for `rows` tokens: hidden_in [rows, hidden] -> hidden_out."""
    check_sizes(spec)
    family = FAMILIES.get(spec.model_type)
    if family is None:
        raise Unsupported(
            f"model type '{spec.model_type}' is not supported; supported: {', '.join(FAMILIES)}"
        )
    g = GraphBuilder(rows)
    family(spec, g)
    return g.finish()


def check_sizes(spec: ModelSpec) -> None:
    """Refuse sizes that panels of weights and vectors of heads cannot hold without a remainder."""
    units = {
        "hidden size": (spec.hidden, PANEL),
        "intermediate size": (spec.intermediate, PANEL),
        "expert size": (spec.expert_intermediate, PANEL),
        "head size": (spec.head_dim, HEAD_UNIT),
        "heads times head size": (spec.q_size, PANEL),
        "KV heads times head size": (spec.kv_size, PANEL),
    }
    for name, (value, unit) in units.items():
        if value % unit:
            raise Unsupported(
                f"{name} is {value}; dielet runs models where it is a multiple of {unit}"
            )


def build_head(spec: ModelSpec, rows: int = 1) -> Graph:
    """The final norm and the head: hidden [rows, hidden] -> logits [rows, vocab]."""
    g = GraphBuilder(rows)
    x = g.rmsnorm(g.input("hidden_out", spec.hidden), "model.model.norm", spec.norm_eps)
    g.linear(x, "model.lm_head", spec.vocab)
    return g.finish()
