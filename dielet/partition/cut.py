"""What a partition is made of: a cut for every node."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dielet.graph import Graph, Node

Range = tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """A node's work divided over chiplets: `ranges[c]` is chiplet c's part, empty when lo == hi.

    axis: 'rows' (tokens), 'columns' (outputs), 'inputs' (of a linear, whose sums are then partial),
    'kv_heads', 'heads' (query heads), or 'none' (chiplet 0 does it all).
    """

    axis: str
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Division:
    """A graph and one cut per node."""

    graph: Graph
    chiplets: int
    cuts: tuple[Cut, ...]


def expert_cut(node: Node, granule: int, chiplets: int) -> Cut:
    """Every expert's inner size is divided alike; a chiplet's parts of all choices lie together."""
    chosen = int(node.attrs["chosen"])
    ranges = share(node.columns // chosen, granule, chiplets)
    return Cut("columns", tuple((lo * chosen, hi * chosen) for lo, hi in ranges))


def share(total: int, granule: int, chiplets: int) -> tuple[Range, ...]:
    """Split `total` into contiguous ranges that begin at multiples of `granule`."""
    units = -(-total // granule)
    edges = [min(total, units * c // chiplets * granule) for c in range(chiplets + 1)]
    return tuple(itertools.pairwise(edges))
