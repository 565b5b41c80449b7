"""What rules look at: figures of an analysis, with what they cost and what could be gained.

Every function gives the measures of one name, at most one per phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from dielet.analysis.engines import RUN
from dielet.analysis.gaps import HOST, IMBALANCE, NOT_RECORDED, OTHER_CHIPLET
from dielet.analysis.paths import END, WAITING
from dielet.analysis.schema import Analysis, Evidence, Phase
from dielet.analysis.steps import HOST as HOST_PHASE
from dielet.analysis.steps import PREFILL
from dielet.analysis.words import counted, verb

SHARE, COUNT, NS, BYTES = "share", "count", "ns", "bytes"

Words = dict[str, str | float]


@dataclass(frozen=True)
class Measure:
    """value: what is held against the rule.  cost: ns in the window.  gain: share of the phase."""

    phase: str
    value: float
    cost: float
    gain: float
    evidence: tuple[Evidence, ...]
    words: Words = field(default_factory=dict)


def _device_phases(found: Analysis) -> Iterator[Phase]:
    return (phase for phase in found.phases if phase.name != HOST_PHASE)


def _executors(found: Analysis) -> int:
    return sum(engine.scope == RUN for engine in found.engines)


def _path(found: Analysis, phase: str, by: str) -> dict[str, float]:
    """Shares of the critical path by name."""
    return {p.name: p.share for p in found.path_parts if (p.phase, p.by) == (phase, by)}


def _half(found: Analysis, phase: str, kind: str) -> float:
    """What the phase gains when a kind of command takes half its time."""
    return next(
        (w.gain for w in found.what_if if (w.phase, w.by, w.name) == (phase, "kind", kind)), 0.0
    )


def _bound_path(bound: str, found: Analysis) -> Iterator[Measure]:
    """The share of the critical path in commands that something bounds."""
    for phase in _device_phases(found):
        share = _path(found, phase.name, "bound").get(bound, 0.0)
        if share <= 0:
            continue
        kinds = _path(found, phase.name, "kind")
        mine = {
            v.kind: v.shares.get(bound, 0.0) * kinds.get(v.kind, 0.0)
            for v in found.verdicts
            if v.phase == phase.name
        }
        kind = max(mine, key=lambda name: mine[name], default="")
        gain = _half(found, phase.name, kind)
        whole = next(
            (r for r in found.roofline if (r.level, r.phase) == ("phase", phase.name)), None
        )
        used = 0.0
        if whole is not None and bound == "compute" and whole.peak_ops_per_s:
            used = whole.ops_per_s / whole.peak_ops_per_s
        elif whole is not None and whole.peak_bytes_per_s:
            used = whole.bytes_per_s / whole.peak_bytes_per_s
        yield Measure(
            phase.name,
            share,
            share * phase.total_ns,
            gain,
            (
                Evidence(f"critical path of {phase.name} bound by {bound}", share, SHARE),
                Evidence(f"{kind} on the critical path", kinds.get(kind, 0.0), SHARE),
                Evidence(f"{phase.name} with {kind} at half its time: less by", gain, SHARE),
            ),
            {"kind": kind, "share": used},
        )


def path_delay(found: Analysis) -> Iterator[Measure]:
    """Time on the critical path in which no command of it runs."""
    if not found.coverage.dependencies:
        return  # what commands waited for is not known
    measured = found.source.clock == "measured"
    for phase in _device_phases(found):
        parts = _path(found, phase.name, "kind")
        share = parts.get(WAITING, 0.0) + parts.get(END, 0.0)
        yield Measure(
            phase.name,
            share,
            share * phase.total_ns,
            share,
            (Evidence(f"critical path of {phase.name} without a command", share, SHARE),),
            {
                "why": "on this machine mostly because a core was busy with other processes, "
                "or with the other worker's signal"
                if measured
                else "signals between engines and chiplets take that long",
                "remedy": "Repeat it on a quiet machine, with no more --threads than idle cores."
                if measured
                else "Fewer, larger commands: every hand-over costs one signal.",
            },
        )


def host(found: Analysis) -> Iterator[Measure]:
    """Time in which no run is under way."""
    idle = next((phase for phase in found.phases if phase.name == HOST_PHASE), None)
    if idle is None:
        return
    spent: dict[str, int] = defaultdict(int)
    for cause in found.gap_causes:
        if cause.cause == HOST:
            spent[cause.waited_kind] += cause.lost_ns
    what = max(spent, key=lambda kind: spent[kind], default=NOT_RECORDED)
    modelled = found.source.clock == "modelled"
    yield Measure(
        HOST_PHASE,
        idle.share,
        idle.total_ns,
        idle.share,
        (
            Evidence("window without a run", idle.share, SHARE),
            Evidence("between two runs, median", idle.median_ns, NS),
        ),
        {
            "what": "What happens in most of it is not recorded"
            if what == NOT_RECORDED
            else f"The host is at work there, longest with {what or 'what has no name'}",
            "remedy": "A longer program per launch, or several sequences per step, share it."
            if modelled
            else "The first answer also pays for loading; profile a second one to see what stays.",
        },
    )


def imbalance(found: Analysis) -> Iterator[Measure]:
    """Time that engines lose to the same engine of other chiplets."""
    for phase in _device_phases(found):
        mine = [
            c
            for c in found.gap_causes
            if c.phase == phase.name and c.cause in (IMBALANCE, OTHER_CHIPLET)
        ]
        executors = _executors(found)
        lost = sum(c.lost_ns for c in mine)
        whole = phase.total_ns * executors
        if not mine or not whole:
            continue
        worst = mine[0]
        yield Measure(
            phase.name,
            lost / whole,
            lost / executors,
            lost / whole,
            (
                Evidence("engines' time lost to other chiplets", lost / whole, SHARE),
                Evidence(f"{worst.engine}: {worst.cause}", worst.lost_ns, NS),
            ),
            {
                "engine": worst.waited_engine or worst.engine,
                "ends": verb(worst.waited_engine or worst.engine, "ends"),
                "kind": worst.waited_kind or "its last",
            },
        )


def small_transfers(found: Analysis) -> Iterator[Measure]:
    """Time of DMA engines in transfers that are small."""
    for phase in _device_phases(found):
        routes = [r for r in found.traffic.routes if r.phase == phase.name and r.small]
        dma = sum(
            o.time_ns for o in found.operations if o.phase == phase.name and "DMA" in o.engine
        )
        spent = sum(r.small_ns for r in routes)
        if not routes or not dma:
            continue
        worst = max(routes, key=lambda r: r.small_ns)
        setup = _path(found, phase.name, "kind").get(worst.kind, 0.0)
        limit = found.traffic.small_bytes
        yield Measure(
            phase.name,
            spent / dma,
            min(spent, setup * phase.total_ns),
            _half(found, phase.name, worst.kind),
            (
                Evidence(f"transfers below {limit} bytes", sum(r.small for r in routes), COUNT),
                Evidence("their time", spent, NS),
                Evidence(f"{worst.kind} on the critical path", setup, SHARE),
            ),
            {
                "limit": f"{limit // 1024} KiB",
                "count": counted(sum(r.small for r in routes), "transfer"),
                "route": worst.route,
            },
        )


def memory_unused(found: Analysis) -> Iterator[Measure]:
    """The part of the DRAM's bandwidth that a phase does not use."""
    for moved in found.traffic.moved:
        if moved.place != "DRAM" or not moved.share:
            continue
        phase = next(p for p in found.phases if p.name == moved.phase)
        used = min(moved.share, 1.0)
        kinds = _path(found, moved.phase, "kind")
        kind = max(kinds, key=lambda name: kinds[name], default="")
        yield Measure(
            moved.phase,
            1 - used,
            (1 - used) * phase.total_ns,
            1 - used,
            (
                Evidence("achieved", moved.bytes_per_s, "bytes/s"),
                Evidence("peak", moved.peak_bytes_per_s or 0.0, "bytes/s"),
                Evidence(f"{kind} on the critical path", kinds.get(kind, 0.0), SHARE),
            ),
            {"used": used, "times": 1 / used, "kind": kind.strip("()")},
        )


def padding(found: Analysis) -> Iterator[Measure]:
    """Rows of the prompt that are computed though they are not real; the host skips them."""
    steps = [s for s in found.steps if s.phase == PREFILL and s.tokens and s.valid]
    tokens, valid = sum(s.tokens or 0 for s in steps), sum(s.valid or 0 for s in steps)
    if found.source.clock != "modelled" or not tokens:
        return
    share = 1 - valid / tokens
    spent = sum(s.duration_ns for s in steps)
    yield Measure(
        PREFILL,
        share,
        share * spent,
        share,
        (Evidence("rows computed", tokens, COUNT), Evidence("real rows", valid, COUNT)),
        {"valid": valid, "tokens": tokens},
    )


def rereads(found: Analysis) -> Iterator[Measure]:
    """What is read from the DRAM again."""
    by_phase: dict[str, int] = defaultdict(int)
    for row in found.traffic.rereads:
        by_phase[row.phase] += row.extra_bytes
    for phase, extra in by_phase.items():
        worst = next(r for r in found.traffic.rereads if r.phase == phase)
        total = sum(m.bytes for m in found.traffic.moved if (m.phase, m.place) == (phase, "DRAM"))
        spent = next(p.total_ns for p in found.phases if p.name == phase)
        share = extra / total if total else 0.0
        memory = _path(found, phase, "bound").get("memory", 0.0)
        yield Measure(
            phase,
            share,
            share * memory * spent,
            share * memory,
            (Evidence("read again", extra, BYTES), Evidence("of the DRAM's bytes", share, SHARE)),
            {"what": worst.what, "times": worst.times, "extra": f"{extra / 1e6:,.0f} MB"},
        )


def outliers(found: Analysis) -> Iterator[Measure]:
    """Time of slow steps beyond their program's median."""
    for phase in dict.fromkeys(step.phase for step in found.steps):
        mine = [s for s in found.steps if s.phase == phase]
        by_program: dict[str, list[int]] = defaultdict(list)
        for step in mine:
            by_program[step.program].append(step.duration_ns)
        median = {name: sorted(times)[len(times) // 2] for name, times in by_program.items()}
        slow = [s for s in mine if s.outlier]
        excess = sum(s.duration_ns - median[s.program] for s in slow)
        total = sum(s.duration_ns for s in mine)
        if slow and total:
            slowest = max(slow, key=lambda s: s.duration_ns)
            yield Measure(
                phase,
                excess / total,
                excess,
                excess / total,
                (
                    Evidence("slow steps", len(slow), COUNT),
                    Evidence("slowest", slowest.duration_ns, NS),
                    Evidence("median of its program", median[slowest.program], NS),
                ),
                {
                    "count": counted(len(slow), "slow run"),
                    "cost": "costs" if len(slow) == 1 else "cost",
                    "slowest": slowest.number,
                    "remedy": "See what ran beside them; the first run of a program also loads it."
                    if found.source.clock == "measured"
                    else "Compare their programs' capacities: a larger cache costs more.",
                },
            )


def lever(found: Analysis) -> Iterator[Measure]:
    """The kind of command with most to gain, per phase."""
    for phase in _device_phases(found):
        mine = [w for w in found.what_if if (w.phase, w.by) == (phase.name, "kind")]
        if not mine:
            continue
        best = max(mine, key=lambda w: w.gain)
        verdict = next(
            (v.verdict for v in found.verdicts if (v.phase, v.kind) == (phase.name, best.name)), ""
        )
        path = _path(found, phase.name, "kind").get(best.name, 0.0)
        yield Measure(
            phase.name,
            best.gain,
            best.gain * phase.total_ns,
            best.gain,
            (
                Evidence(f"{best.name} on the critical path", path, SHARE),
                Evidence(f"{phase.name} with {best.name} at half: less by", best.gain, SHARE),
            ),
            {"kind": best.name, "path": path, "verdict": verdict},
        )


def longest_wait(found: Analysis) -> Iterator[Measure]:
    """The cause that engines lose most time to, per phase."""
    for phase in _device_phases(found):
        mine = [c for c in found.gap_causes if c.phase == phase.name and c.waited_engine]
        if mine:
            worst = mine[0]
            executors = _executors(found)
            waited = worst.waited_kind or worst.waited_engine
            if worst.waited_kind == NOT_RECORDED:
                waited = "what is not recorded"
            yield Measure(
                phase.name,
                worst.share,
                worst.lost_ns / max(executors, 1),
                0.0,
                (Evidence(f"{worst.engine} waiting for {waited}", worst.lost_ns, NS),),
                {
                    "engine": worst.engine,
                    "waits": verb(worst.engine, "waits"),
                    "waited": waited,
                    "count": counted(worst.gaps, "gap"),
                },
            )


MEASURES: dict[str, Callable[[Analysis], Iterator[Measure]]] = {
    **{f"path_{b}": partial(_bound_path, b) for b in ("memory", "compute", "link", "setup")},
    "path_delay": path_delay,
    "host": host,
    "imbalance": imbalance,
    "small_transfers": small_transfers,
    "memory_unused": memory_unused,
    "padding": padding,
    "rereads": rereads,
    "outliers": outliers,
    "lever": lever,
    "longest_wait": longest_wait,
}
