"""Quantities as people write them, "1.2 TB/s", and as whole numbers in base units."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


LARGEST = 1 << 60


@dataclass(frozen=True)
class Unit:
    """A kind of quantity: its base unit, and how many of it each written unit is."""

    base: str
    example: str
    scale: dict[str, int]


SIZE = Unit("B", "36 GB", {f"{p}B": n for p, n in (_DECIMAL | _BINARY).items()})
BANDWIDTH = Unit("B/s", "1.2 TB/s", {f"{unit}/s": n for unit, n in SIZE.scale.items()})
TIME = Unit("ps", "500 ns", {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12})
RATE = Unit(
    "OP/s",
    "256 TFLOP/s",
    {f"{p}{op}/s": n for op in ("OP", "FLOP") for p, n in _DECIMAL.items()},
)


def parse(text: str, unit: Unit) -> int:
    """The quantity in whole base units, rounded down.  ValueError says what is expected."""
    number, _, name = text.strip().partition(" ")
    scale = unit.scale.get(name.strip())
    expected = f"a number and a unit are expected, such as {unit.example!r}"
    if scale is None:
        raise ValueError(f"{text!r} has no unit of {unit.base}: {expected}")
    try:
        value = Decimal(number) * scale
    except ArithmeticError:
        raise ValueError(f"{text!r} does not begin with a number: {expected}") from None
    if not value.is_finite() or abs(value) > LARGEST:
        raise ValueError(f"{text!r} is no quantity of this world: {expected}")
    return int(value)


def show(value: int, unit: Unit) -> str:
    """The quantity with the largest decimal unit of which it has at least one, four digits."""
    names = [name for name in unit.scale if "i" not in name and "FLOP" not in name]
    names.sort(key=lambda name: unit.scale[name])
    chosen = next((n for n in reversed(names) if abs(value) >= unit.scale[n]), names[0])
    return f"{value / unit.scale[chosen]:.4g} {chosen}"
