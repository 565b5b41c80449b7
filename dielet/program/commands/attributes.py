"""What an attribute may be: one range for each name, whichever commands have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, get_args

from dielet.formats.cache import KV_FORMATS
from dielet.formats.packed import GROUPS, PANEL, Kind
from dielet.program.commands.transfer import TERMS

ACTIVATIONS = ("silu", "gelu_tanh")


class Range(Protocol):
    def holds(self, value: object) -> bool:
        """Whether an attribute may have this value."""


@dataclass(frozen=True)
class Whole:
    """Multiples of `step` from `low` to `high`."""

    low: int
    high: int
    step: int = 1

    def holds(self, value: object) -> bool:
        return type(value) is int and self.low <= value <= self.high and value % self.step == 0


@dataclass(frozen=True)
class Real:
    """Numbers from `low` to below `high`."""

    low: float
    high: float

    def holds(self, value: object) -> bool:
        return type(value) is float and self.low <= value < self.high


class OneOf:
    """Any of these values, of the same type."""

    def __init__(self, *values: int | str | bool) -> None:
        self.values = values

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"

    def holds(self, value: object) -> bool:
        return any(type(value) is type(known) and value == known for known in self.values)


class Shares:
    """Sizes in whole panels, as text: "96 64"."""

    def holds(self, value: object) -> bool:
        words = value.split() if type(value) is str else []
        return bool(words) and all(w.isdecimal() and int(w) % PANEL == 0 < int(w) for w in words)


FLAG = OneOf(False, True)
ATTRIBUTES: dict[str, Range] = {
    "D": Whole(2, 1 << 12, 2),
    "G": Whole(1, 1 << 12),
    "K": Whole(PANEL, 1 << 24, PANEL),
    "T": Whole(1, 1 << 12),
    "activation": OneOf(*ACTIVATIONS),
    "batch": FLAG,
    "bias": FLAG,
    "chosen": Whole(1, 1 << 12),
    "count": Whole(1, TERMS),
    "eps": Real(0.0, 1.0),
    "experts": Whole(1, 1 << 12),
    "extent": OneOf("all", "rows", "positions"),
    "first_column": Whole(0, 1 << 22),
    "format": OneOf(*get_args(Kind)),
    "group": OneOf(0, *GROUPS),
    "kv": OneOf(*KV_FORMATS),
    "minimum": FLAG,
    "norm": FLAG,
    "normed": FLAG,
    "out": OneOf("f32", "bf16", "int8"),
    "out_group": OneOf(0, *GROUPS),
    "pieces": Shares(),
    "residual": FLAG,
    "row0": Whole(0, 1 << 12),
    "scale": Real(-1e9, 1e9),
    "width": Whole(1, 1 << 13),
    "window": Whole(1, 1 << 26),
    "zeros": FLAG,
}
