"""Judgements: findings, differences, budgets."""

from __future__ import annotations

from msgspec import Struct


class Evidence(Struct, frozen=True):
    """A figure that a finding rests on: where it stands, what it says."""

    what: str
    value: float
    unit: str


class Finding(Struct, frozen=True):
    """rule: its name in `rules.toml`.  cost_ns: time lost in the window; gain: share of the phase's
    time that the action could save, at most."""

    rule: str
    title: str
    phase: str
    cost_ns: int
    gain: float
    evidence: tuple[Evidence, ...]
    cause: str
    action: str


class Change(Struct, frozen=True):
    """An operation in two traces, or programs (without times); means per run.

    change: `added`, `removed`, `slower`, `faster`, `same`; of programs `more`, `less` (bytes) in
    place of the times' words.  before is the other one (`--diff`), after this one.  runs: of the
    phase and program in this trace, or of a program that it never ran in the other; how often the
    difference is paid, by which changes are ranked.
    """

    operation: str
    phase: str
    program: str
    kind: str
    change: str
    before_ns: float | None
    after_ns: float | None
    delta_ns: float
    before_bytes: float | None
    after_bytes: float | None
    before_commands: float | None
    after_commands: float | None
    runs: int = 1


class Total(Struct, frozen=True):
    """A phase, or a program: means per run.  change: of the time, or of a program's bytes."""

    phase: str
    before_ns: float | None
    after_ns: float | None
    change: float | None
    before_bytes: float | None
    after_bytes: float | None
    before_commands: float | None
    after_commands: float | None


class Diff(Struct, frozen=True):
    """other: its path.  notes: in what the two differ that makes them hard to compare."""

    other: str
    notes: tuple[str, ...]
    totals: tuple[Total, ...]
    changes: tuple[Change, ...]
    counts: dict[str, int]
    findings_new: tuple[str, ...]
    findings_gone: tuple[str, ...]


class BudgetLine(Struct, frozen=True):
    """A line of the budget.  value None: the trace does not tell, which fails."""

    key: str
    limit: str
    value: float | None
    passed: bool
    text: str


class Budget(Struct, frozen=True):
    path: str
    passed: bool
    lines: tuple[BudgetLine, ...]
