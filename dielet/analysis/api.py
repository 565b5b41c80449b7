"""`dielet.analyze`: from a trace to everything that it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from dielet.analysis.budget import check_budget, read_budget
from dielet.analysis.coverage import find_coverage
from dielet.analysis.diff import compare
from dielet.analysis.engines import find_engines, find_overlap, use_of
from dielet.analysis.findings import find_findings
from dielet.analysis.gaps import find_gaps
from dielet.analysis.layers import find_heat, find_layers, operation_imbalance
from dielet.analysis.limits import limits_of
from dielet.analysis.memory import find_counters, find_memory
from dielet.analysis.open import open_table
from dielet.analysis.operations import find_operations, find_shapes, sums_of
from dielet.analysis.paths import (
    find_parts,
    find_paths,
    find_what_if,
    path_by_operation,
    path_per_run,
    walk,
)
from dielet.analysis.pictures import find_gantts, find_timeline
from dielet.analysis.queues import queues_of
from dielet.analysis.roofline import find_roofline, find_verdicts
from dielet.analysis.rules import read_rules
from dielet.analysis.schema import VERSION, Analysis, Source
from dielet.analysis.steps import (
    DECODE,
    Steps,
    find_answers,
    find_phases,
    find_speed,
    find_steps,
)
from dielet.analysis.table import Table
from dielet.analysis.traffic import bytes_of, dram_bytes, find_traffic
from dielet.analysis.window import cut, finished, kept


@dataclass(frozen=True)
class Analyzed:
    """A trace's tables, its steps, and what was found: for further questions."""

    table: Table
    steps: Steps
    found: Analysis


@dataclass(frozen=True)
class Asked:
    """What is asked beside the trace; see `analyze`."""

    device: str | Path | None = None
    diff: str | Path | None = None
    budget: str | Path | None = None
    window_ms: tuple[float, float] | None = None
    what_if: Mapping[str, float] | None = None


def analyze(
    trace: str | Path,
    *,
    device: str | Path | None = None,
    diff: str | Path | None = None,
    budget: str | Path | None = None,
    window_ms: tuple[float, float] | None = None,
    what_if: Mapping[str, float] | None = None,
) -> Analysis:
    """What the trace at `trace` says.

    device: a device (name or file) whose peaks go before those that the trace names.  diff:
    another trace, from before, to compare with.  budget: a budget file to check.  window_ms: only
    the steps that begin and end between two times since the first slice.  what_if: kinds of
    commands, or engines, and what share of their time they shall take; without it, everything on
    the critical path at half.

    Raises MissingFile, DamagedFile for what is no trace or has no names that are understood and for
    a budget with something wrong in it, UsageError for a window without a whole step and for a
    factor or a name of `what_if` that cannot be.
    """
    return examine(trace, Asked(device, diff, budget, window_ms, what_if)).found


def examine(trace: str | Path, asked: Asked = Asked()) -> Analyzed:
    """`analyze`, with the tables that it was computed from."""
    if asked.budget is not None:
        read_budget(asked.budget)  # before the work, so that a wrong key is told at once

    def one(path: str | Path, what_if: Mapping[str, float] | None = None) -> Analyzed:
        table = open_table(path)
        if table.attributes.get("dropped_command_count"):
            table = kept(table)
        if table.found.truncated:
            table = finished(table)
        table = table if asked.window_ms is None else cut(table, asked.window_ms)
        return analysis_of(table, Path(path), asked.device, what_if)

    mine = one(trace, asked.what_if)
    found = mine.found
    if asked.diff is not None:
        other = one(asked.diff)
        compared = compare(other.table, mine.table, other.found, found, read_rules().limits)
        found = replace(found, diff=compared)
    if asked.budget is not None:
        found = replace(found, budget=check_budget(found, asked.budget))
    return Analyzed(mine.table, mine.steps, found)


def analysis_of(
    table: Table,
    path: Path,
    device: str | Path | None = None,
    what_if: Mapping[str, float] | None = None,
) -> Analyzed:
    """The same, of tables that have been read."""
    rules = read_rules()
    queues = [queues_of(kind, table.runs) for kind in table.kinds]
    steps = find_steps(table, rules.limits)
    answers = find_answers(steps, table.headless)
    sums = [sums_of(kind, len(table.bounds)) for kind in table.kinds]
    limits = limits_of(table.attributes, device, table.chiplets)
    dram = [dram_bytes(table, kind) for kind in table.kinds]
    moved = bytes_of(table, dram)
    walked = walk(table, queues)
    layers = find_layers(table, dram, path_per_run(table, walked, "layer"))
    operations = find_operations(
        table, sums, operation_imbalance(table), path_by_operation(table, walked)
    )
    causes, gaps = find_gaps(table, steps, queues)
    decode = [steps.steps[step].phase == DECODE for step in steps.of_run.tolist()]
    said = {name: str(value) for name, value in table.attributes.items()}
    found = Analysis(
        schema=VERSION,
        source=Source(
            path=str(path),
            file_bytes=path.stat().st_size if path.exists() else 0,
            model=said.get("model", ""),
            device=said.get("device", ""),
            clock=said.get("device_clock", "unknown"),
            host=said.get("host", ""),
            version=said.get("dielet_version", ""),
            peaks=limits.source,
            attributes=table.attributes,
        ),
        coverage=find_coverage(table, steps, moved, limits, walked),
        peaks=limits.schema(),
        speed=find_speed(
            steps,
            answers,
            float(moved.moved[decode].sum()) if table.with_bytes else None,
            float(moved.dram[decode].sum()) if moved.dram.any() else None,
        ),
        answers=answers,
        phases=find_phases(table, steps, table.finish - table.begin, rules.limits),
        steps=steps.steps,
        findings=(),
        engines=find_engines(table, steps, use_of(table, queues)),
        overlap=find_overlap(table),
        gap_causes=causes,
        gaps=gaps,
        paths=find_paths(table, walked),
        path_parts=find_parts(table, walked),
        what_if=find_what_if(table, walked, what_if),
        roofline=find_roofline(table, limits, moved, layers, operations),
        verdicts=find_verdicts(table, sums),
        operations=operations,
        shapes=find_shapes(table, sums),
        layers=layers,
        heat=find_heat(table),
        traffic=find_traffic(table, steps, moved, limits, rules.limits.small_bytes),
        memory=find_memory(table),
        counters=find_counters(table),
        timeline=find_timeline(table),
        gantts=find_gantts(table, steps, queues),
    )
    # Findings say what half the time would bring, whatever else is asked.
    usual = found if what_if is None else replace(found, what_if=find_what_if(table, walked))
    findings, further = find_findings(usual, rules)
    found = replace(found, findings=findings, further_findings=further)
    return Analyzed(table, steps, found)
