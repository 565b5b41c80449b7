"""The tensors that a model has, under its own names and under those of each kind of file."""

import re
from collections.abc import Callable, Mapping

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import DamagedFile

EMBEDDING = "model.model.embed_tokens.weight"
FINAL_NORM = "model.model.norm.weight"
HEAD = "model.lm_head.weight"
ROUTER = "mlp.gate.weight"
LAYER = "model.model.layers."
LAYER_LINEARS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_CAP = 4  # tensors named per complaint

_GGUF = {
    "pre_attention_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
_GGUF_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape, (outputs, inputs) or (size,), of every tensor, in model order."""
    hidden, inner = spec.hidden, spec.intermediate
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (spec.q_size, hidden),
        "self_attn.k_proj": (spec.kv_size, hidden),
        "self_attn.v_proj": (spec.kv_size, hidden),
        "self_attn.o_proj": (hidden, spec.q_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    layer = dict.fromkeys(layer_norms(spec), (hidden,)) | layer
    if spec.qk_norm:
        q_norm, k_norm = spec.qk_norm_sizes
        layer |= {"self_attn.q_norm": (q_norm,), "self_attn.k_norm": (k_norm,)}
    dense = {f"{part}.weight": shape for part, shape in layer.items()}
    dense |= {f"{part}.bias": layer[part][:1] for part in spec.biases}
    mixture = {part: shape for part, shape in dense.items() if not part.startswith("mlp.")}
    mixture |= expert_shapes(spec)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab, hidden)}
    for i in range(spec.layers):
        parts = mixture if spec.is_mixture(i) else dense
        shapes |= {f"{LAYER}{i}.{part}": shape for part, shape in parts.items()}
    shapes[FINAL_NORM] = (hidden,)
    if not spec.tied:
        shapes[HEAD] = (spec.vocab, hidden)
    return shapes


def expert_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The router, and each matrix of all experts, one below the other."""
    inner, hidden = spec.expert_intermediate, spec.hidden
    return {
        ROUTER: (spec.experts, hidden),
        "mlp.experts.gate_proj.weight": (spec.experts * inner, hidden),
        "mlp.experts.up_proj.weight": (spec.experts * inner, hidden),
        "mlp.experts.down_proj.weight": (spec.experts * hidden, inner),
    }


def layer_norms(spec: ModelSpec) -> tuple[str, ...]:
    """The norms of a layer's residual: before its blocks, after them, or both."""
    if not spec.post_norms:
        return ("pre_attention_layernorm", "post_attention_layernorm")
    before = ("pre_attention_layernorm", "pre_feedforward_layernorm") * spec.pre_norms
    return (*before, "post_attention_layernorm", "post_feedforward_layernorm")


def hugging_face_name(canonical: str) -> str:
    """model.model.layers.0.pre_attention_layernorm.weight -> model.layers.0.input_layernorm..."""
    return canonical.removeprefix("model.").replace("pre_attention_layernorm", "input_layernorm")


def gguf_name(canonical: str, post_norms: bool = False) -> str:
    """model.model.layers.0.self_attn.q_proj.weight -> blk.0.attn_q.weight

    `post_norms`: of a family whose blocks are normed after them too.
    """
    fixed = {
        EMBEDDING: "token_embd.weight",
        FINAL_NORM: "output_norm.weight",
        HEAD: "output.weight",
    }
    if canonical in fixed:
        return fixed[canonical]
    match = re.fullmatch(re.escape(LAYER) + r"(\d+)\.(.+)\.(weight|bias)", canonical)
    assert match
    parts = _GGUF | _GGUF_POST_NORMS if post_norms else _GGUF
    return f"blk.{match[1]}.{parts[match[2]]}.{match[3]}"


def account_for(
    where: str,
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    ignorable: Callable[[str], bool],
) -> None:
    """Refuse a file whose tensors are not exactly the expected ones; both map name -> shape."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected and not ignorable(name)]
    misshapen = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != shape
    ]
    complaints = [
        f"{len(names)} {what}: {_listed(names)}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("wrongly shaped", misshapen),
        )
        if names
    ]
    if complaints:
        raise DamagedFile(
            f"{where}: the tensors do not fit the model's configuration; " + "; ".join(complaints)
        )


def shown(value: object, limit: int = 120) -> str:
    """What a file says, fit for one line of a message: short, and nothing but printable."""
    text = str(value)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return text if text.isprintable() else repr(text)


def _listed(names: list[str]) -> str:
    listed = ", ".join(shown(name) for name in names[:_CAP])
    return listed + (f" and {len(names) - _CAP} more" if len(names) > _CAP else "")
