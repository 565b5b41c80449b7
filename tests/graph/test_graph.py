"""Graphs: what the families write, what fusion joins, what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dielet.errors import InternalError
from dielet.formats.packed import WeightFormat
from dielet.graph import Graph, GraphBuilder, assign_formats, fuse, verify_graph
from dielet.models import build_decoder, build_head
from tests.models import LLAMA, QWEN, SPECS


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def linears(graph: Graph, fmt: WeightFormat) -> dict[str, WeightFormat]:
    return {n.params[0]: fmt for n in graph.nodes if n.op == "linear"}


@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("fmt", ["bf16", "int8g32", "int4g32m"])
def test_every_stage_is_legal(family: str, rows: int, fmt: str) -> None:
    graph = build_decoder(SPECS[family], rows)
    verify_graph(graph)
    fused = fuse(graph)
    verify_graph(fused)
    verify_graph(assign_formats(fused, linears(fused, WeightFormat.parse(fmt))))


def test_fusion_joins_residuals_norms_and_rotations() -> None:
    graph = fuse(build_decoder(QWEN, 1))
    per_layer = ["rmsnorm", "linear", "linear", "linear", "rotary", "attention", "linear"]
    per_layer += ["rmsnorm", "linear", "linear", "silu_mul", "linear"]
    assert ops(graph) == ["input", *per_layer * QWEN.layers]
    rotary = graph.nodes[5]
    assert rotary.path == (
        "fused(model.model.layers.0.self_attn.q_norm+model.model.layers.0.self_attn.q_rotary)"
    )
    assert rotary.params == ("model.model.layers.0.self_attn.q_norm.weight",)
    residual = graph.nodes[7]
    assert residual.path.startswith("fused(model.model.layers.0.self_attn.o_proj+")


def test_without_qk_norm_the_rotation_has_no_parameter() -> None:
    rotaries = [n for n in fuse(build_decoder(LLAMA, 1)).nodes if n.op == "rotary"]
    assert len(rotaries) == LLAMA.layers and all(not n.params for n in rotaries)


def test_a_value_read_twice_is_not_fused_away() -> None:
    g = GraphBuilder(1)
    h = g.input("hidden_in", 32)
    y = g.linear(h, "y", 32)
    g.add(g.add(h, y, "first"), y, "second")
    graph = g.finish()
    assert ops(fuse(graph)) == ["input", "linear", "add", "add"]


def test_quantised_linears_read_quantised_values() -> None:
    graph = fuse(build_decoder(QWEN, 1))
    typed = assign_formats(graph, linears(graph, WeightFormat("int8", 32)))
    assert ops(typed).count("quantize") == QWEN.layers  # after each attention; norms do it inside
    for node in typed.nodes:
        if node.op == "linear":
            assert typed.nodes[node.inputs[0]].attrs["out"] == "int8g32"
            assert node.attrs["out"] == "f32"


def test_mixed_formats_convert_for_each_reader() -> None:
    graph = build_head(QWEN)
    g = GraphBuilder(1)
    x = g.rmsnorm(g.input("hidden_in", 64), "norm", 1e-6)
    g.add(g.linear(x, "a", 64), g.linear(x, "b", 64), "sum")
    graph = g.finish()
    formats = {"a.weight": WeightFormat("bf16"), "b.weight": WeightFormat("int4", 32)}
    typed = assign_formats(graph, formats)
    verify_graph(typed)
    assert ops(typed) == ["input", "rmsnorm", "convert", "quantize", "linear", "linear", "add"]


def break_it(graph: Graph, number: int, **change: object) -> Graph:
    nodes = list(graph.nodes)
    nodes[number] = replace(nodes[number], **change)  # type: ignore[arg-type]
    return Graph(graph.rows, tuple(nodes))


@pytest.mark.parametrize(
    ("number", "change", "complaint"),
    [
        (1, {"op": "softmax"}, "no such op"),
        (1, {"inputs": (5,)}, "not made before"),
        (1, {"inputs": ()}, "0 inputs"),
        (1, {"attrs": {}}, "lacks"),
        (1, {"columns": 7}, "columns"),
        (3, {"inputs": (0,)}, None),
    ],
)
def test_the_verifier_refuses(number: int, change: dict[str, object], complaint: str) -> None:
    graph = break_it(build_decoder(QWEN, 1), number, **change)
    if complaint is None:
        verify_graph(graph)
        return
    with pytest.raises(InternalError, match=complaint):
        verify_graph(graph)


def test_the_verifier_refuses_a_value_that_nobody_reads() -> None:
    g = GraphBuilder(1)
    h = g.input("hidden_in", 32)
    g.linear(h, "unused", 32)
    g.linear(h, "used", 32)
    with pytest.raises(InternalError, match="never read"):
        verify_graph(g.finish())
