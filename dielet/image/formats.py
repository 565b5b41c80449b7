"""Which number format each weight is stored in: what was asked for, and what is exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dielet.errors import UsageError
from dielet.formats.packed import GROUPS, Kind, WeightFormat

DEFAULT_GROUP = {"int8": 128, "int4": 32}
# With 16 levels a group's own offset halves what is lost of the model; with 256 it buys nothing
# (docs/accuracy.md).
DEFAULT_MINIMUM = {"int8": False, "int4": True}


class Stored(Protocol):
    """What the choice needs to know of a tensor."""

    @property
    def K(self) -> int: ...

    @property
    def exact_formats(self) -> tuple[WeightFormat, ...]:
        """The formats that take the file's codes over as they are, the smallest first."""


def default_weights(linears: Mapping[str, Stored]) -> str:
    """The kind that keeps most linears as they are in the checkpoint; bf16 when none does."""
    kinds = [source.exact_formats[0].kind for source in linears.values() if source.exact_formats]
    return max(sorted(set(kinds)), key=kinds.count) if kinds else "bf16"


def int8_beside(name: str, source: Stored, fmt: WeightFormat) -> WeightFormat:
    """int8 for a linear in place of its int4 format `fmt`: both read the same activations."""
    return choose_format(name, source, "int8", fmt.group)


def choose_format(
    name: str,
    source: Stored,
    weights: str,
    group: int | None,
    minimum: bool | None = None,
    table: bool = False,
) -> WeightFormat:
    """The format for one linear; for a `table` (embedding, head) int4 means int8 unless kept.

    Raises UsageError when an explicit `group` does not divide the tensor's inputs.
    """
    kinds: tuple[Kind, ...] = ("int4", "int8") if table and weights == "int4" else ()
    for asked in (*kinds, weights):
        for kept in source.exact_formats:
            asked_for = group in (None, kept.group) and minimum in (None, kept.minimum)
            if kept.kind == asked and asked_for:
                return kept
    if weights == "bf16":
        return WeightFormat("bf16")
    kind: Kind = "int8" if table or weights == "int8" else "int4"
    if group is not None and source.K % group:
        fitting = [g for g in GROUPS if source.K % g == 0]
        raise UsageError(
            f"{name} has {source.K} inputs, which group {group} does not divide; "
            + (f"use --group {max(fitting)}" if fitting else "use --weights bf16")
        )
    wanted = group or DEFAULT_GROUP[kind]
    fitting = [g for g in GROUPS if g <= wanted and source.K % g == 0]
    if not fitting:
        raise UsageError(
            f"{name} has {source.K} inputs, no multiple of 32; only --weights bf16 can hold it"
        )
    return WeightFormat(kind, max(fitting), DEFAULT_MINIMUM[kind] if minimum is None else minimum)
