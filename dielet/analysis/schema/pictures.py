"""What pictures are drawn from: the timeline in bins, single steps in full."""

from __future__ import annotations

from msgspec import Struct


class TimelineRow(Struct, frozen=True):
    """busy: share of each bin in which the engine was busy, in per mille."""

    device: str
    chiplet: int | None
    engine: str
    kind: str
    busy: tuple[int, ...]


class Timeline(Struct, frozen=True):
    """The whole window in bins of `bin_ns`, the last one perhaps cut off."""

    start_ns: int
    bin_ns: float
    bins: int
    rows: tuple[TimelineRow, ...]


class Gantt(Struct, frozen=True):
    """All slices of one step, in columns of equal length; times from the step's start.

    rows: (chiplet or None, track's name); row, operation, kind and bound are places in `rows`,
    `operations`, `kinds` and `bounds` (-1: none); critical: 1 on the critical path.
    why: `median`, `slowest` or `first` of its phase.
    """

    step: int
    phase: str
    program: str
    why: str
    duration_ns: int
    rows: tuple[tuple[int | None, str], ...]
    operations: tuple[str, ...]
    kinds: tuple[str, ...]
    bounds: tuple[str, ...]
    row: tuple[int, ...]
    start_ns: tuple[int, ...]
    slice_ns: tuple[int, ...]
    operation: tuple[int, ...]
    kind: tuple[int, ...]
    bound: tuple[int, ...]
    critical: tuple[int, ...]
    bytes: tuple[int, ...]
