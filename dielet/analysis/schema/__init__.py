"""The result of an analysis, as data: what the terminal, JSON and HTML show, and budgets test.

`docs/analysis.md` defines every figure.  Times are whole nanoseconds (`_ns`), sizes bytes, rates
per second, shares between 0 and 1.  None means that the trace does not tell; nothing is guessed.
"""

from __future__ import annotations

from dielet.analysis.schema.facts import (
    Answer,
    Coverage,
    Note,
    Peaks,
    Phase,
    Source,
    Speed,
    Step,
)
from dielet.analysis.schema.pictures import (
    Gantt,
    Timeline,
    TimelineRow,
)
from dielet.analysis.schema.result import (
    Analysis,
)
from dielet.analysis.schema.time import (
    Engine,
    Gap,
    GapCause,
    Overlap,
    Path,
    PathPart,
    WhatIf,
)
from dielet.analysis.schema.verdicts import (
    Budget,
    BudgetLine,
    Change,
    Diff,
    Evidence,
    Finding,
    Total,
)
from dielet.analysis.schema.work import (
    Heat,
    Layer,
    Memory,
    Moved,
    Operation,
    Owner,
    Reread,
    Roof,
    Route,
    Series,
    Shape,
    Traffic,
    Verdict,
)

VERSION = 1
"""Goes up when a field changes its meaning or goes away; new fields may come at any time."""

__all__ = [
    "VERSION",
    "Analysis",
    "Answer",
    "Budget",
    "BudgetLine",
    "Change",
    "Coverage",
    "Diff",
    "Engine",
    "Evidence",
    "Finding",
    "Gantt",
    "Gap",
    "GapCause",
    "Heat",
    "Layer",
    "Memory",
    "Moved",
    "Note",
    "Operation",
    "Overlap",
    "Owner",
    "Path",
    "PathPart",
    "Peaks",
    "Phase",
    "Reread",
    "Roof",
    "Route",
    "Series",
    "Shape",
    "Source",
    "Speed",
    "Step",
    "Timeline",
    "TimelineRow",
    "Total",
    "Traffic",
    "Verdict",
    "WhatIf",
]
