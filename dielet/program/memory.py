"""Where bytes live: the weight plan, the KV cache layout, and the arena of activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import InternalError
from dielet.formats.cache import position_bytes
from dielet.formats.packed import PANEL, WeightFormat
from dielet.graph import matrices
from dielet.partition import Division
from dielet.program.types import Region

LINE = 64  # bytes: every buffer and share begins on a cache line


def aligned(nbytes: int, unit: int = LINE) -> int:
    return -(-nbytes // unit) * unit


@dataclass(frozen=True)
class Share:
    """One chiplet's part of a parameter: outputs [lo, hi) of inputs [k_lo, k_lo + K).

    K = 0: an f32 vector of hi - lo, undivided.  Of a mixture's parameter these outputs of all
    `experts`, one after the other.
    """

    parameter: str
    chiplet: int
    lo: int
    hi: int
    K: int
    format: str
    offset: int
    nbytes: int
    k_lo: int = 0
    experts: int = 1


@dataclass(frozen=True)
class WeightPlan:
    """The shares of all parameters of one image, chiplet by chiplet, each in order of use."""

    space: str
    shares: tuple[Share, ...]
    nbytes: int

    def find(self, parameter: str, chiplet: int) -> Share:
        for share in self._by_name().get(parameter, ()):
            if share.chiplet == chiplet or not share.K:
                return share
        raise InternalError(f"{self.space}: no share of {parameter} for chiplet {chiplet}")

    def _by_name(self) -> dict[str, list[Share]]:
        cache: dict[str, list[Share]] = self.__dict__.get("_cache", {})
        if not cache:
            for share in self.shares:
                cache.setdefault(share.parameter, []).append(share)
            object.__setattr__(self, "_cache", cache)
        return cache


def plan_weights(
    division: Division, formats: Mapping[str, WeightFormat], space: str, skip: frozenset[str]
) -> WeightPlan:
    """Lay out the parameters of a divided graph, except those in `skip` (a tied head)."""
    shares: list[Share] = []
    offset = 0
    graph = division.graph
    for chiplet in range(division.chiplets):
        for node, cut in zip(graph.nodes, division.cuts, strict=True):
            for parameter in node.params:
                lo, hi = cut.ranges[chiplet]
                matrix = parameter in matrices(node)
                if parameter in skip or (not matrix and chiplet):
                    continue
                if not matrix:
                    width = node.columns // int(node.attrs.get("heads", 1))
                    share = Share(parameter, 0, 0, width, 0, "f32", offset, 4 * width)
                elif lo < hi:
                    K, k_lo = graph.nodes[node.inputs[0]].columns, 0
                    if cut.axis == "inputs":
                        lo, hi, K, k_lo = 0, node.columns, hi - lo, lo
                    experts = int(node.attrs.get("experts", 1))
                    chosen = int(node.attrs.get("chosen", 1))
                    if node.op == "experts_gated":
                        lo, hi = lo // chosen, hi // chosen
                    if node.op == "experts_sum":
                        K //= chosen
                    fmt = formats[parameter]
                    nbytes = experts * fmt.nbytes(hi - lo, K)
                    share = Share(
                        parameter, chiplet, lo, hi, K, fmt.name, offset, nbytes, k_lo, experts
                    )
                else:
                    continue
                shares.append(share)
                offset = aligned(offset + share.nbytes)
    return WeightPlan(space, tuple(shares), offset)


@dataclass(frozen=True)
class KvLayout:
    """The cache of one sequence: per layer the keys of all heads, then the values, in `format`.

    Each head's part holds `positions` and grows with the position, so a smaller capacity is a
    prefix of it: all programs of a model share one cache.  `kv_heads` counts a head that several
    chiplets hold once for each of them; the heads of a chiplet lie side by side.
    """

    layers: int
    kv_heads: int
    head_dim: int
    positions: int
    format: str = "bf16"

    @staticmethod
    def of(spec: ModelSpec, positions: int, kv_heads: int = 0, fmt: str = "bf16") -> KvLayout:
        """The layout for `positions` tokens; `kv_heads` if more than the model's are held."""
        heads = kv_heads or spec.kv_heads
        return KvLayout(spec.layers, heads, spec.head_dim, aligned(positions, PANEL), fmt)

    @property
    def position_bytes(self) -> int:
        """Bytes of the keys, or of the values, of one position and head."""
        return position_bytes(self.format, self.head_dim)

    @property
    def head_bytes(self) -> int:
        return self.positions * self.position_bytes

    @property
    def nbytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_bytes

    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.position_bytes

    def region(self, layer: int, values: bool, lo: int, hi: int, capacity: int) -> Region:
        """The first `capacity` positions of KV heads [lo, hi)."""
        offset = ((layer * 2 + int(values)) * self.kv_heads + lo) * self.head_bytes
        return Region("kv", offset, hi - lo, self.head_bytes, capacity * self.position_bytes)


class Arena:
    """First-fit allocation of buffers in one address space, for buffers with known lifetimes."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []  # (offset, size), sorted
        self._sizes: dict[int, int] = {}
        self.high_water = 0

    def take(self, nbytes: int) -> int:
        size = aligned(nbytes)
        for i, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                self._sizes[offset] = size
                return offset
        offset = self.high_water
        if self._free and sum(self._free[-1]) == self.high_water:
            offset = self._free.pop()[0]
        self.high_water = offset + size
        self._sizes[offset] = size
        return offset

    def give_back(self, offset: int) -> None:
        self._free = sorted([*self._free, (offset, self._sizes.pop(offset))])
        merged: list[tuple[int, int]] = []
        for at, size in self._free:
            if merged and sum(merged[-1]) == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((at, size))
        self._free = merged
