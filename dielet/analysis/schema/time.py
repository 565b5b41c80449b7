"""Where time went: engines, gaps, the critical path."""

from __future__ import annotations

from msgspec import Struct


class Engine(Struct, frozen=True):
    """An engine of a chiplet, or a worker of the host (chiplet None): where its time went.

    scope: `run`, or a phase's name, and then only that phase's runs count as time.
    kind: `compute`, `dma`, `sync` or `host`.  busy + waiting + idle is the scope's time.
    """

    scope: str
    device: str
    chiplet: int | None
    engine: str
    kind: str
    commands: int
    busy_ns: int
    waiting_ns: int
    idle_ns: int
    busy: float
    waiting: float
    idle: float


class Overlap(Struct, frozen=True):
    """Time in which `first` and `second` are both busy, over that in which `first` is."""

    scope: str
    first: str
    second: str
    first_ns: int
    both_ns: int
    share: float


class GapCause(Struct, frozen=True):
    """Idle time of engines by what it waited for.

    cause: `dependency`, `other chiplet`, `imbalance`, `delay`, `no work`, `host`, `unknown`.
    engine: that stood idle; waited_engine, waited_kind: what it waited for.  lost_ns: sum over the
    engines; longest: the gap that was longest (number in `gaps`, or -1).
    """

    cause: str
    phase: str
    engine: str
    waited_engine: str
    waited_kind: str
    gaps: int
    lost_ns: int
    share: float
    longest: int


class Gap(Struct, frozen=True):
    """A gap: in the analysis the longest that end with a command or lie between runs, in the table
    `gaps` every one, those after an engine's last command of a run included.

    step: -1 between runs, where one gap is of all engines.  before: the command that ended it;
    waited: what it waited for.
    """

    step: int
    phase: str
    chiplet: int | None
    engine: str
    start_ns: int
    duration_ns: int
    cause: str
    before: str
    waited: str


class Path(Struct, frozen=True):
    """The critical path of a phase: per step, over `steps_used` of its `steps`."""

    phase: str
    steps: int
    steps_used: int
    per_step_ns: float
    commands_per_step: float
    waiting_ns: float


class PathPart(Struct, frozen=True):
    """Time along the critical path.  by: `engine`, `kind`, `layer`, `bound` or `operation`."""

    phase: str
    by: str
    name: str
    total_ns: int
    per_step_ns: float
    share: float


class WhatIf(Struct, frozen=True):
    """Commands of `kind` (or of `engine`) take `factor` of their time; what a step then takes."""

    phase: str
    by: str
    name: str
    factor: float
    before_ns: float
    after_ns: float
    gain: float
    steps_used: int
