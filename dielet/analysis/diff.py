"""What changed between two traces: operations aligned by name, not by time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dielet.analysis.coverage import WARNING
from dielet.analysis.rules import Limits
from dielet.analysis.schema import Analysis, Change, Diff, Total
from dielet.analysis.table import Table

ADDED, REMOVED, SLOWER, FASTER, SAME = "added", "removed", "slower", "faster", "same"
MORE, LESS = "more", "less"

Key = tuple[str, str, str, str]
"""Phase, program, operation, kind."""


@dataclass
class Amount:
    """Sums over the runs of a program: time in ns (None: it was not run), bytes, commands."""

    time: float | None = 0.0
    nbytes: float = 0.0
    commands: float = 0.0

    def per(self, runs: int) -> Amount:
        time = None if self.time is None else self.time / runs
        return Amount(time, self.nbytes / runs, self.commands / runs)


def runs_of(table: Table, by_program: Mapping[str, bool]) -> Counter[tuple[str, str]]:
    """How often each phase's program ran; `by_program` as for `amounts`."""
    runs: Counter[tuple[str, str]] = Counter()
    for kind in table.kinds:
        program = kind.program if by_program.get(kind.phase, True) else ""
        runs[kind.phase, program] += len(kind.runs)
    return runs


def amounts(table: Table, by_program: Mapping[str, bool]) -> dict[Key, Amount]:
    """Means per run.  by_program: whether programs of a phase are told apart."""
    sums: dict[Key, Amount] = defaultdict(Amount)
    runs = runs_of(table, by_program)
    for kind in table.kinds:
        program = kind.program if by_program.get(kind.phase, True) else ""
        times = kind.time().tolist()
        nbytes = kind.moved().tolist()
        names = zip(kind.pieces.operation.tolist(), kind.pieces.kind.tolist(), strict=True)
        for (operation, name), ns, moved in zip(names, times, nbytes, strict=True):
            total = sums[kind.phase, program, table.text(operation), table.text(name)]
            total.time = (total.time or 0.0) + ns
            total.nbytes += moved
            total.commands += len(kind.runs)
    return {key: total.per(runs[key[:2]]) for key, total in sums.items()}


def programs_of(table: Table) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for kind in table.kinds:
        found[kind.phase].add(kind.program)
    return found


def compare(before: Table, after: Table, old: Analysis, new: Analysis, limits: Limits) -> Diff:
    """before: of the other trace, after: of this one."""
    left, right = programs_of(before), programs_of(after)
    same = {phase: left.get(phase) == right.get(phase) for phase in {*left, *right}}
    notes = [*_differences(old, new, (before.chiplets, after.chiplets))]
    for phase in sorted(phase for phase, equal in same.items() if not equal):
        if phase in left and phase in right:
            notes.append(
                f"{phase} ran other programs ({_list(left[phase])} before, {_list(right[phase])} "
                "now): its operations are compared over all of them"
            )
    spans = {phase.name: phase.mean_ns for phase in (*old.phases, *new.phases)}
    runs = {**runs_of(before, same), **runs_of(after, same)}
    changes = align(amounts(before, same), amounts(after, same), spans, limits, runs)
    said = {(f.rule, f.phase): f.title for f in new.findings}
    was = {(f.rule, f.phase): f.title for f in old.findings}
    return Diff(
        other=old.source.path,
        notes=tuple(notes),
        totals=tuple(_totals(before, after, old, new)),
        changes=changes,
        counts=dict(Counter(change.change for change in changes)),
        findings_new=tuple(title for key, title in said.items() if key not in was),
        findings_gone=tuple(title for key, title in was.items() if key not in said),
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _differences(old: Analysis, new: Analysis, chiplets: tuple[int, int]) -> Iterable[str]:
    """In what the traces differ beside their times.

    chiplets: of each, as its tracks show them: workers do the commands of several.
    """
    for what in ("model", "device", "clock", "host"):
        before, after = getattr(old.source, what), getattr(new.source, what)
        if before != after:
            yield f"another {what}: {before or 'not known'} before, {after or 'not known'} now"
    counts = [count or 1 for count in chiplets]
    if counts[0] != counts[1]:
        yield f"another number of chiplets: {counts[0]} before, {counts[1]} now"
    for name, analysis in (("before", old), ("now", new)):
        # Warnings come first; what is only not known there makes no figure of it wrong.
        first = next(iter(analysis.coverage.notes), None)
        if first is not None and first.severity == WARNING:
            yield f"the trace of {name} is not complete: {first.text}"


def align(
    before: Mapping[Key, Amount],
    after: Mapping[Key, Amount],
    spans: Mapping[str, float],
    limits: Limits,
    runs: Mapping[tuple[str, str], int],
) -> tuple[Change, ...]:
    """Changes, those first that cost or gain most over all runs.

    spans: how long a run of each phase takes.  runs: how often each phase's program ran.
    """
    found = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        timed = any(a is not None and a.time is not None for a in (old, new))
        delta = _value(new, timed) - _value(old, timed)
        words = (SLOWER, FASTER) if timed else (MORE, LESS)
        change = SAME
        if old is None or new is None:
            change = ADDED if old is None else REMOVED
        elif abs(delta) > max(
            limits.diff_share * _value(old, timed),
            limits.diff_of_phase * spans.get(key[0], 0.0) if timed else 0.0,
        ):
            change = words[0] if delta > 0 else words[1]
        phase, program, operation, kind = key
        found.append(
            Change(
                operation=operation,
                phase=phase,
                program=program,
                kind=kind,
                change=change,
                before_ns=None if old is None else old.time,
                after_ns=None if new is None else new.time,
                delta_ns=delta if timed else 0.0,
                before_bytes=None if old is None else old.nbytes,
                after_bytes=None if new is None else new.nbytes,
                before_commands=None if old is None else old.commands,
                after_commands=None if new is None else new.commands,
                runs=runs.get((phase, program), 1),
            )
        )
    return tuple(sorted(found, key=lambda c: (-abs(c.delta_ns) * c.runs, -_delta_bytes(c))))


def _value(amount: Amount | None, timed: bool) -> float:
    if amount is None:
        return 0.0
    return (amount.time or 0.0) if timed else amount.nbytes


def _delta_bytes(change: Change) -> float:
    return abs((change.after_bytes or 0.0) - (change.before_bytes or 0.0))


def _totals(before: Table, after: Table, old: Analysis, new: Analysis) -> Iterable[Total]:
    sums = []
    for table, analysis in ((before, old), (after, new)):
        merged = amounts(table, dict.fromkeys(programs_of(table), False))
        mine: dict[str, Amount] = {p.name: Amount(p.mean_ns) for p in analysis.phases}
        for (phase, _, _, _), amount in merged.items():
            mine[phase].nbytes += amount.nbytes
            mine[phase].commands += amount.commands
        sums.append(mine)
    for phase in dict.fromkeys([*sums[0], *sums[1]]):
        yield total(phase, sums[0].get(phase), sums[1].get(phase))


def total(phase: str, old: Amount | None, new: Amount | None) -> Total:
    timed = any(a is not None and a.time is not None for a in (old, new))
    first = _value(old, timed)
    return Total(
        phase=phase,
        before_ns=None if old is None else old.time,
        after_ns=None if new is None else new.time,
        change=_value(new, timed) / first - 1 if first and new is not None else None,
        before_bytes=None if old is None else old.nbytes,
        after_bytes=None if new is None else new.nbytes,
        before_commands=None if old is None else old.commands,
        after_commands=None if new is None else new.commands,
    )
