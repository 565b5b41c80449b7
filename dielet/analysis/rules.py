"""Thresholds and rules, which are data: `rules.toml`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When something counts as an outlier, as small, as slower, as costly enough to say."""

    outlier_share: float
    outlier_deviations: float
    small_bytes: int
    diff_share: float
    diff_of_phase: float
    finding_cost: float


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words for a measure that is large enough; see the comments in `rules.toml`."""

    name: str
    measure: str
    above: float
    title: str
    cause: str
    action: str
    phases: tuple[str, ...] = ()
    always: bool = False


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limits: Limits
    rule: tuple[Rule, ...]


@cache
def read_rules() -> Rules:
    text = files("dielet.analysis").joinpath("rules.toml").read_text()
    return msgspec.toml.decode(text, type=Rules)
