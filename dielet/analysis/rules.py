"""Thresholds and rules, which are data: `rules.toml`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[limits]` of the file."""

    outlier_share: float
    outlier_deviations: float
    small_bytes: int
    diff_share: float
    diff_of_phase: float


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limits: Rules


@cache
def read_rules() -> Rules:
    text = files("dielet.analysis").joinpath("rules.toml").read_text()
    return msgspec.toml.decode(text, type=_File).limits
