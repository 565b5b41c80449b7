"""The whole result."""

from __future__ import annotations

from msgspec import Struct

from dielet.analysis.schema.facts import (
    Answer,
    Coverage,
    Peaks,
    Phase,
    Source,
    Speed,
    Step,
)
from dielet.analysis.schema.pictures import (
    Gantt,
    Timeline,
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
    Diff,
    Finding,
)
from dielet.analysis.schema.work import (
    Heat,
    Layer,
    Memory,
    Operation,
    Roof,
    Series,
    Shape,
    Traffic,
    Verdict,
)


class Analysis(Struct, frozen=True):
    """Everything that one trace tells.

    further_findings: those that hold as well, beyond the few that are told.
    """

    schema: int
    source: Source
    coverage: Coverage
    peaks: Peaks
    speed: Speed
    answers: tuple[Answer, ...]
    phases: tuple[Phase, ...]
    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]
    engines: tuple[Engine, ...]
    overlap: tuple[Overlap, ...]
    gap_causes: tuple[GapCause, ...]
    gaps: tuple[Gap, ...]
    paths: tuple[Path, ...]
    path_parts: tuple[PathPart, ...]
    what_if: tuple[WhatIf, ...]
    roofline: tuple[Roof, ...]
    verdicts: tuple[Verdict, ...]
    operations: tuple[Operation, ...]
    shapes: tuple[Shape, ...]
    layers: tuple[Layer, ...]
    heat: tuple[Heat, ...]
    traffic: Traffic
    memory: Memory
    counters: tuple[Series, ...]
    timeline: Timeline
    gantts: tuple[Gantt, ...]
    diff: Diff | None = None
    budget: Budget | None = None
    further_findings: tuple[Finding, ...] = ()
