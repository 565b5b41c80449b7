"""`dielet.analyze`: from a trace to everything that it says."""

from __future__ import annotations

from pathlib import Path

from dielet.analysis.engines import find_engines, find_overlap, use_of
from dielet.analysis.open import open_table
from dielet.analysis.operations import find_operations, find_shapes, sums_of
from dielet.analysis.queues import queues_of
from dielet.analysis.rules import read_rules
from dielet.analysis.schema import (
    VERSION,
    Analysis,
    Coverage,
    Memory,
    Peaks,
    Source,
    Timeline,
    Traffic,
)
from dielet.analysis.steps import find_answers, find_phases, find_speed, find_steps
from dielet.analysis.table import Table


def analyze(trace: str | Path) -> Analysis:
    """What the trace at `trace` says.

    Raises MissingFile, or DamagedFile for what is no trace or has no names that are understood.
    """
    return analysis_of(open_table(trace), Path(trace))


def analysis_of(table: Table, path: Path) -> Analysis:
    rules = read_rules()
    queues = [queues_of(kind, table.runs) for kind in table.kinds]
    steps = find_steps(table, rules)
    window = table.finish - table.begin
    answers = find_answers(table, steps)
    sums = [sums_of(kind, len(table.bounds)) for kind in table.kinds]
    found = table.found
    said = {name: str(value) for name, value in table.attributes.items()}
    return Analysis(
        schema=VERSION,
        source=Source(
            path=str(path),
            file_bytes=path.stat().st_size if path.exists() else 0,
            model=said.get("model", ""),
            device=said.get("device", ""),
            clock=said.get("device_clock", "unknown"),
            host=said.get("host", ""),
            version=said.get("dielet_version", ""),
            peaks="",
            attributes=table.attributes,
        ),
        coverage=Coverage(
            complete=True,
            notes=(),
            slices=found.slices,
            commands=found.commands,
            host_slices=len(table.host.start),
            steps=len(steps.steps),
            dependencies=found.edges,
            dropped_commands=None,
            truncated=found.truncated,
            open_slices=found.open_slices,
            stray_ends=found.stray,
            unnamed_slices=found.unnamed,
            arguments=found.with_bytes / found.commands,
            resolved_waits=found.waits_resolved / found.waits if found.waits else None,
            dram_explained=None,
            window_ns=(table.begin, table.finish),
        ),
        peaks=Peaks(None, {}, {}, {}, len(table.executors)),
        speed=find_speed(steps, answers, None, None),
        answers=answers,
        phases=find_phases(table, steps, window),
        steps=steps.steps,
        findings=(),
        engines=find_engines(table, steps, use_of(table, queues)),
        overlap=find_overlap(table),
        gap_causes=(),
        gaps=(),
        paths=(),
        path_parts=(),
        what_if=(),
        roofline=(),
        verdicts=(),
        operations=find_operations(table, sums, {}),
        shapes=find_shapes(table, sums),
        layers=(),
        heat=(),
        traffic=Traffic((), (), (), rules.small_bytes),
        memory=Memory({}, {}, ()),
        counters=(),
        timeline=Timeline(table.begin, 1.0, 0, ()),
        gantts=(),
    )
