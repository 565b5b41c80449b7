"""The analysis for people, on a terminal: what is missing first, then what matters most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dielet.analysis.engines import RUN
from dielet.analysis.gaps import HOST, NOT_RECORDED
from dielet.analysis.measures import COUNT, NS, SHARE
from dielet.analysis.names import group_of
from dielet.analysis.paths import SHRINK
from dielet.analysis.schema import Analysis, Diff, Engine, Evidence, GapCause, Operation, WhatIf
from dielet.analysis.words import counted

TOP = 12
GAPS = 8
CHANGES = 15
BAR = 20
_SEVERITY = {"warning": "bold red", "note": "yellow"}


def rendered(parts: Iterator[RenderableType], width: int, colour: bool) -> str:
    """Parts one below the other, as text with or without colours."""
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour,
                      highlight=False)  # fmt: skip
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def time(ns: float | None) -> str:
    """Nanoseconds for people."""
    if ns is None:
        return "-"
    for limit, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= limit:
            return (
                f"{ns / limit:.3g} {unit}" if abs(ns) < 1000 * limit else f"{ns / limit:.0f} {unit}"
            )
    return f"{ns:.0f} ns"


def amount(value: float | None, unit: str) -> str:
    """A number with a decimal prefix: 4.08 TB/s."""
    if value is None:
        return "-"
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} P{unit}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def bar(share: float, width: int = BAR) -> str:
    """A share as a bar of blocks."""
    full, part = divmod(round(min(max(share, 0.0), 1.0) * width * 8), 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")


def analysis_parts(found: Analysis) -> Iterator[RenderableType]:
    yield _head(found)
    yield _coverage(found)
    yield _phases(found)
    if found.findings:
        yield _findings(found)
    yield _engines(found)
    yield _gaps(found)
    if found.path_parts:
        yield _paths(found)
    yield _operations(found)
    if found.diff is not None:
        yield from diff_parts(found.diff)
    if found.budget is not None:
        yield _budget(found)


def _title(text: str) -> Text:
    return Text(text, style="bold cyan")


def _table(*columns: str, right: Sequence[int] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number in right else "left",
                         overflow="fold" if number == 0 else "ellipsis")  # fmt: skip
    return table


def _head(found: Analysis) -> RenderableType:
    source, speed = found.source, found.speed
    window = found.coverage.window_ns
    line = Text()
    line.append(source.model or "a model without a name", style="bold")
    line.append(f" on {source.device or 'a device without a name'}, times {source.clock}, ")
    line.append(f"{time(window[1] - window[0])}\n")
    facts = []
    if speed.ttft_ns is not None:
        facts.append(f"first token after {time(speed.ttft_ns)}")
    if speed.tokens_per_s is not None:
        facts.append(f"{speed.tokens_per_s:,.1f} tokens/s")
    if speed.token_median_ns is not None:
        facts.append(
            f"per token {time(speed.token_median_ns)} (median), {time(speed.token_min_ns)} to "
            f"{time(speed.token_max_ns)}"
        )
    if speed.dram_bytes_per_token is not None:
        facts.append(f"{amount(speed.dram_bytes_per_token, 'B')} of DRAM per token")
    line.append("; ".join(facts) or "no tokens are told")
    return line


def _coverage(found: Analysis) -> RenderableType:
    c = found.coverage
    lines = [
        _title("Coverage"),
        Text(
            f"  {counted(c.steps, 'step')}, {counted(c.commands, 'command')}, "
            f"{counted(c.dependencies, 'dependency', 'dependencies')}, "
            f"{counted(c.host_slices, 'slice')} of the host"
            + ("; nothing is missing" if not c.notes else "")
        ),
    ]
    for note in c.notes:
        style = _SEVERITY.get(note.severity, "")
        lines.append(Text(f"  {note.severity}: {note.text}", style=style))
    return Group(*lines)


def _phases(found: Analysis) -> RenderableType:
    table = _table("phase", "runs", "total", "share", "", "median", "min", "max", "outliers",
                   right=(1, 2, 3, 5, 6, 7, 8))  # fmt: skip
    for phase in found.phases:
        table.add_row(
            phase.name, f"{phase.runs:,}", time(phase.total_ns), percent(phase.share),
            bar(phase.share), time(phase.median_ns), time(phase.min_ns), time(phase.max_ns),
            str(phase.outliers or "-"),
        )  # fmt: skip
    return Group(_title("Phases"), Padding(table, (0, 0, 0, 2)))


def _findings(found: Analysis) -> RenderableType:
    parts: list[RenderableType] = [_title("Findings")]
    for number, finding in enumerate(found.findings, 1):
        text = Text()
        text.append(f"{number}. {finding.title}", style="bold")
        text.append(f"   costs {time(finding.cost_ns)}\n", style="magenta")
        text.append("; ".join(map(_evidence, finding.evidence)) + "\n", style="dim")
        text.append(f"{finding.cause}\n")
        text.append(finding.action, style="green")
        if finding.gain:
            text.append(f"  (at most {percent(finding.gain)} of {finding.phase})", style="dim")
        parts.append(Padding(text, (0, 0, 0, 2)))
    further = len(found.further_findings)
    return Group(*parts, *_rest(len(found.findings) + further, len(found.findings)))


def _evidence(evidence: Evidence) -> str:
    value, unit = evidence.value, evidence.unit
    if unit == SHARE:
        return f"{evidence.what}: {percent(value)}"
    if unit == NS:
        return f"{evidence.what}: {time(value)}"
    if unit == COUNT:
        return f"{evidence.what}: {value:,.0f}"
    return f"{evidence.what}: {amount(value, unit.replace('bytes', 'B'))}"


def _engines(found: Analysis) -> RenderableType:
    """The run's engines, the chiplets' shares side by side."""
    mine = [e for e in found.engines if e.scope == RUN]
    by_engine: dict[str, list[Engine]] = defaultdict(list)
    for engine in mine:
        by_engine[engine.engine].append(engine)
    table = _table("engine", "busy", "", "waiting", "idle", "busy by chiplet", right=(1, 3, 4))
    for name, engines in by_engine.items():
        busy, waiting, idle = (
            sum(getattr(e, part) for e in engines) / len(engines)
            for part in ("busy", "waiting", "idle")
        )
        each = "  ".join(
            percent(e.busy) if e.chiplet is None else f"{e.chiplet}: {percent(e.busy)}"
            for e in engines[:8]
        )
        table.add_row(
            name, percent(busy), bar(busy), percent(waiting), percent(idle),
            each + (" ..." if len(engines) > 8 else "") if len(engines) > 1 else "",
        )  # fmt: skip
    return Group(_title("Engines"), Padding(table, (0, 0, 0, 2)))


def _gaps(found: Analysis) -> RenderableType:
    table = _table("idle", "in", "cause", "gaps", "lost", "share", right=(3, 4, 5))
    for cause in found.gap_causes[:GAPS]:
        words = _cause(cause)
        table.add_row(
            cause.engine, cause.phase, words, f"{cause.gaps:,}", time(cause.lost_ns),
            percent(cause.share),
        )  # fmt: skip
    title = _title("Gaps, by time lost over all engines")
    return Group(title, Padding(table, (0, 0, 0, 2)), *_rest(len(found.gap_causes), GAPS))


def _cause(cause: GapCause) -> str:
    if cause.waited_kind == NOT_RECORDED:
        return f"{cause.cause}, {NOT_RECORDED}"
    engine = "" if cause.cause == HOST else cause.waited_engine
    waited = " ".join(part for part in (engine, cause.waited_kind) if part)
    return f"{cause.cause}: {waited}" if waited else cause.cause


def _paths(found: Analysis) -> RenderableType:
    usual = all(w.factor == SHRINK for w in found.what_if)
    title = "at half its time" if usual else "what if it took this much of its time"
    table = _table("critical path", "per run", "made of", title, right=(1,))
    for path in found.paths:
        parts = [p for p in found.path_parts if (p.phase, p.by) == (path.phase, "kind")]
        cases = [w for w in found.what_if if w.phase == path.phase]
        gains = [w for w in cases if w.by == "kind"][:2] if usual else cases
        table.add_row(
            path.phase,
            time(path.per_step_ns),
            ", ".join(f"{p.name} {percent(p.share)}" for p in parts[:3]),
            ", ".join(_gain(w, usual) for w in gains),
        )
    return Group(_title("Critical path"), Padding(table, (0, 0, 0, 2)))


def _gain(case: WhatIf, usual: bool) -> str:
    sign = "+" if case.gain < 0 else "-"
    factor = "" if usual else f" x {case.factor:g}:"
    return f"{case.name}{factor} {sign}{percent(abs(case.gain))}"


def _operations(found: Analysis) -> RenderableType:
    table = _table("operation", "in", "kind", "time", "share", "of peak", "wasted", "bound by",
                   right=(3, 4, 5, 6))  # fmt: skip
    for row in found.operations[:TOP]:
        table.add_row(
            escape(short(row.operation)), row.phase, row.kind, time(row.time_ns),
            percent(row.time_share), percent(row.share), time(row.wasted_ns), _bound(row),
        )  # fmt: skip
    title = _title("Operations, by time over all engines")
    return Group(title, Padding(table, (0, 0, 0, 2)), *_rest(len(found.operations), TOP))


def _rest(count: int, shown: int) -> list[Text]:
    """That there are more rows than are shown, if there are."""
    return [Text(f"  and {count - shown:,} more", style="dim")] if count > shown else []


def short(operation: str) -> str:
    return operation.replace("model.model.", "")


def _bound(row: Operation) -> str:
    if not row.bound:
        return ""
    name, share = max(row.bound.items(), key=lambda item: item[1])
    return f"{name} {percent(share)}"


def diff_parts(diff: Diff) -> Iterator[RenderableType]:
    timed = any(t.before_ns is not None or t.after_ns is not None for t in diff.totals)
    notes = [Text(f"  {note}", style="yellow") for note in diff.notes]
    table = _table("", "before", "now", "change", "bytes before", "now", "commands before", "now",
                   right=(1, 2, 3, 4, 5, 6, 7))  # fmt: skip
    for t in diff.totals:
        table.add_row(
            t.phase, time(t.before_ns), time(t.after_ns), _change(t.change),
            amount(t.before_bytes, "B"), amount(t.after_bytes, "B"),
            _count(t.before_commands), _count(t.after_commands),
        )  # fmt: skip
    title = _title(f"Since {diff.other}" + (", per run" if timed else ", per program"))
    yield Group(title, *notes, Padding(table, (0, 0, 0, 2)))
    groups = _grouped(diff)
    counts = ", ".join(f"{n:,} {name}" for name, n in sorted(diff.counts.items()))
    rows = _table("operation", "in", "kind", "change", "before", "now", right=(4, 5))
    for (name, where, kind, change), (before, after) in groups[:CHANGES]:
        values = (time(before), time(after)) if timed else (amount(before, "B"), amount(after, "B"))
        rows.add_row(escape(short(name)), where, kind, change, *values)
    ranked = ", ranked by their cost over all runs" if timed and groups else ""
    parts: list[RenderableType] = [_title(f"Operations: {counts}{ranked}")]
    if groups:
        parts.append(Padding(rows, (0, 0, 0, 2)))
    parts += _rest(len(groups), CHANGES)
    for word, titles in (("new", diff.findings_new), ("gone", diff.findings_gone)):
        parts += [Text(f"  {word}: {title}") for title in titles]
    yield Group(*parts)


def _grouped(diff: Diff) -> list[tuple[tuple[str, str, str, str], tuple[float, float]]]:
    """What changed, all layers' together: before and now, most costly over all runs first."""
    sums: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    runs: dict[tuple[str, str, str, str], int] = {}
    for c in diff.changes:
        if c.change != "same":
            timed = c.before_ns is not None or c.after_ns is not None
            key = group_of(c.operation), c.program or c.phase, c.kind, c.change
            both, runs[key] = sums[key], c.runs
            both[0] += (c.before_ns if timed else c.before_bytes) or 0.0
            both[1] += (c.after_ns if timed else c.after_bytes) or 0.0
    ranked = sorted(sums, key=lambda key: -abs(sums[key][1] - sums[key][0]) * runs[key])
    return [(key, (sums[key][0], sums[key][1])) for key in ranked]


def _change(share: float | None) -> Text:
    if share is None:
        return Text("-")
    return Text(f"{share:+.1%}", style="red" if share > 0.01 else "green" if share < -0.01 else "")


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _budget(found: Analysis) -> RenderableType:
    assert found.budget is not None
    lines = [_title("Budget " + ("kept" if found.budget.passed else "exceeded"))]
    for line in found.budget.lines:
        mark = Text("  ok    " if line.passed else "  FAILS ",
                    style="green" if line.passed else "bold red")  # fmt: skip
        lines.append(mark + Text(line.text))
    return Group(*lines)
