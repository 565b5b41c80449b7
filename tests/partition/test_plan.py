"""Cuts cover every node's work once, on boundaries that kernels can start at."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dielet.errors import UsageError
from dielet.formats.packed import PANEL, WeightFormat
from dielet.graph import assign_formats, fuse
from dielet.models import build_decoder
from dielet.partition import divide, share
from tests.models import SPECS


@given(st.integers(1, 5000), st.sampled_from([1, 32, 128]), st.integers(1, 64))
def test_shares_cover_once_and_begin_on_granules(total: int, granule: int, chiplets: int) -> None:
    ranges = share(total, granule, chiplets)
    assert len(ranges) == chiplets
    assert ranges[0][0] == 0 and ranges[-1][1] == total
    for (_, hi), (lo, _) in pairwise(ranges):
        assert (hi == lo and lo % granule == 0) or lo == total
    sizes = [-(-(hi - lo) // granule) for lo, hi in ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("chiplets", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize("rows", [1, 16])
def test_every_node_is_covered(family: str, rows: int, chiplets: int) -> None:
    graph = fuse(build_decoder(SPECS[family], rows))
    formats = {n.params[0]: WeightFormat("int4", 32) for n in graph.nodes if n.op == "linear"}
    division = divide(assign_formats(graph, formats), "column", chiplets)
    for node, cut in zip(division.graph.nodes, division.cuts, strict=True):
        whole = {"rows": rows, "none": rows, "kv_heads": node.attrs.get("kv_heads", 0)}
        total = whole.get(cut.axis, node.columns)
        done = [r for r in cut.ranges if r[0] < r[1]]
        assert len(cut.ranges) == chiplets
        assert sum(hi - lo for lo, hi in done) == total
        if cut.axis == "columns" and node.op == "linear":
            assert all(lo % PANEL == 0 for lo, _ in done)


def test_bad_plans_and_counts_are_refused() -> None:
    graph = fuse(build_decoder(SPECS["qwen3"], 1))
    with pytest.raises(UsageError, match="known: column"):
        divide(graph, "diagonal", 2)
    with pytest.raises(UsageError, match="65 chiplets"):
        divide(graph, "column", 65)
