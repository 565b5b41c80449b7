"""Cuts for chiplets with memories of their own: heads, gated products, and sums that are split."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import UsageError
from dielet.formats.packed import PANEL, WeightFormat
from dielet.graph import assign_formats, fuse
from dielet.models import build_decoder
from dielet.partition import PLANS, Division, divide, kv_range
from tests.models import QWEN, SPECS


def division(spec: ModelSpec, plan: str, chiplets: int, weights: str = "int4g32") -> Division:
    graph = fuse(build_decoder(spec, 16))
    fmt = WeightFormat.parse(weights)
    formats = {n.params[0]: fmt for n in graph.nodes if n.op == "linear"}
    return divide(assign_formats(graph, formats), plan, chiplets, local=True)


def cuts(division: Division, ending: str):
    for node, cut in zip(division.graph.nodes, division.cuts, strict=True):
        if node.path.removesuffix(")").split("+")[0].endswith(ending):
            yield node, cut


@pytest.mark.parametrize("chiplets", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", SPECS)
def test_every_output_and_input_is_covered(family: str, plan: str, chiplets: int) -> None:
    found = division(SPECS[family], plan, chiplets)
    for node, cut in zip(found.graph.nodes, found.cuts, strict=True):
        assert len(cut.ranges) == chiplets
        total = {
            "none": 16,
            "heads": int(node.attrs.get("heads", 0)),
            "columns": node.columns,
            "inputs": found.graph.nodes[node.inputs[0]].columns if node.inputs else 0,
        }[cut.axis]
        done = sorted(r for r in cut.ranges if r[0] < r[1])
        assert done[0][0] == 0 and done[-1][1] == total
        for (_, hi), (lo, _) in pairwise(done):
            replicated = node.path.endswith(("k_proj", "v_proj"))
            assert hi == lo or (replicated and lo < hi)
        if node.op == "linear":
            unit = 32 if cut.axis == "inputs" else PANEL
            assert all(lo % unit == 0 for lo, _ in done)


def test_norms_and_residuals_are_chiplet_0s() -> None:
    for node, cut in cuts(division(QWEN, "column_row", 4), "layernorm"):
        assert cut.axis == "none" and cut.ranges[1:] == ((0, 0),) * 3, node.path


def test_only_column_row_splits_sums() -> None:
    for plan in PLANS:
        found = division(QWEN, plan, 2)
        for ending in ("o_proj", "down_proj"):
            for _, cut in cuts(found, ending):
                assert cut.axis == ("inputs" if plan == "column_row" else "columns")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "chiplets", "copies"),
    [(16, 8, 4, 8), (4, 2, 4, 4), (40, 10, 4, 12), (9, 3, 2, 4), (16, 8, 16, 16), (4, 4, 1, 4)],
)
def test_kv_heads_are_replicated_only_when_they_do_not_divide(
    heads: int, kv_heads: int, chiplets: int, copies: int
) -> None:
    """As the vendor's serving stack documents it: ceil(kv_heads / chiplets) on each chiplet."""
    spec = msgspec.structs.replace(QWEN, heads=heads, kv_heads=kv_heads, layers=1)
    found = division(spec, "column_row", chiplets)
    for _, cut in cuts(found, "attention"):
        held = [kv_range(lo, hi, heads // kv_heads) for lo, hi in cut.ranges if lo < hi]
        assert sum(last - first for first, last in held) == copies


@given(st.integers(1, 12), st.integers(1, 6), st.sampled_from([32, 64, 128]), st.integers(1, 9))
def test_queries_find_their_keys_at_home(kv: int, G: int, width: int, chiplets: int) -> None:
    spec = msgspec.structs.replace(QWEN, heads=kv * G, kv_heads=kv, head_dim=width, layers=1)
    found = division(spec, "column_row", chiplets, "bf16")
    (_, attention), (_, keys), (_, queries) = (
        next(cuts(found, ending)) for ending in ("attention", "k_proj", "q_proj")
    )
    for chiplet, (lo, hi) in enumerate(attention.ranges):
        first, last = kv_range(lo, hi, G)
        if lo < hi:
            assert keys.ranges[chiplet][0] <= first * width
            assert keys.ranges[chiplet][1] >= last * width
        assert queries.ranges[chiplet] == (lo * width, hi * width)


def test_one_memory_has_one_plan() -> None:
    graph = fuse(build_decoder(QWEN, 1))
    with pytest.raises(UsageError, match="use column"):
        divide(graph, "column_row", 2)
