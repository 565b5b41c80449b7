"""Steps, phases and answers: the trace as what was asked of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dielet.analysis.rules import Limits
from dielet.analysis.schema import Answer, Phase, Speed, Step
from dielet.analysis.table import F64, I64, Bool, Table

PREFILL, DECODE, HEAD, HOST = "prefill", "decode", "head", "host"


@dataclass(frozen=True)
class Steps:
    """Steps in order of start.

    of_run: the place in them of each run's.  first_work: when the first thing was done for each.
    opening: the first step of each model.
    """

    steps: tuple[Step, ...]
    of_run: I64
    first_work: I64
    opening: frozenset[int]

    def phases(self) -> list[str]:
        return list(dict.fromkeys(step.phase for step in self.steps))

    def of_phase(self, phase: str) -> list[Step]:
        return [step for step in self.steps if step.phase == phase]


def find_steps(table: Table, limits: Limits) -> Steps:
    """Models may run at the same time: a step follows the one before it of its own model."""
    runs = table.runs
    numbers, first, place = np.unique(runs.step, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # runs are in order of start
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    of_run = rank[place]
    first = first[order]
    start = runs.start[first]
    end = np.zeros(len(first), np.int64)
    np.maximum.at(end, of_run, runs.end)
    is_head = np.array([phase == HEAD for phase in runs.phase]) & (runs.workload > 0)
    head = np.zeros(len(first), np.int64)
    np.add.at(head, of_run[is_head], (runs.end - runs.start)[is_head])
    work = _first_work(table, rank, numbers, start)
    phases = [runs.phase[f] for f in first.tolist()]
    programs = [runs.program[f] for f in first.tolist()]
    outlier = outliers(end - start, programs, limits)
    model = np.zeros(len(first), np.int64)
    np.maximum.at(model, of_run, table.model)
    steps: list[Step] = []
    latest: dict[int, Step] = {}  # by model
    answers = 0
    for n, f in enumerate(first.tolist()):
        previous = latest.get(int(model[n]))
        phase = phases[n]
        answer = -1 if previous is None else previous.answer
        before = None if previous is None else previous.start_ns + previous.duration_ns
        if phase == PREFILL and (runs.past[f] == 0 or previous is None or previous.phase != phase):
            answer, answers = answers, answers + 1
        known = phase == DECODE and before is not None
        instance, sequence = table.steps[int(runs.step[f])]
        idle_since = int(work[n]) if before is None else before
        latest[int(model[n])] = Step(
            number=n,
            instance=instance,
            sequence=sequence,
            answer=answer,
            phase=phase,
            program=programs[n],
            tokens=_known(runs.tokens[f]),
            valid=_known(runs.valid[f]),
            past=_known(runs.past[f]),
            start_ns=int(start[n]),
            duration_ns=int(end[n] - start[n]),
            head_ns=int(head[n]),
            host_ns=int(start[n]) - idle_since,
            token_ns=int(end[n]) - before if known and before is not None else None,
            outlier=bool(outlier[n]),
        )
        steps.append(latest[int(model[n])])
    opening = np.unique(model, return_index=True)[1]
    return Steps(tuple(steps), of_run, work, frozenset(opening.tolist()))


def _known(value: np.int64) -> int | None:
    return int(value) if value >= 0 else None


def _first_work(table: Table, rank: I64, numbers: I64, start: I64) -> I64:
    """When the first thing was done for each step, by the host or the device."""
    first = start.copy()
    host = table.host
    mine = np.isin(host.step, numbers)
    np.minimum.at(first, rank[np.searchsorted(numbers, host.step[mine])], host.start[mine])
    return first


def outliers(durations: I64, programs: Sequence[str], limits: Limits) -> Bool:
    """Which are longer than their program's median by more than the rules allow."""
    out = np.zeros(len(durations), bool)
    names = np.array(programs)
    for name in dict.fromkeys(programs):
        mine = names == name
        values = durations[mine].astype(np.float64)
        median = np.median(values)
        spread = np.median(np.abs(values - median))
        excess = max(limits.outlier_share * median, limits.outlier_deviations * spread)
        out[mine] = values > median + excess
    return out


def find_phases(table: Table, steps: Steps, window_ns: int, limits: Limits) -> tuple[Phase, ...]:
    """Runs by phase, then the time of the host alone."""
    runs = table.runs
    durations = runs.end - runs.start
    names = np.array(runs.phase)
    marked = outliers(durations, runs.program, limits)
    found = []
    for name in table.phases():
        mine = np.flatnonzero(names == name)
        values = durations[mine]
        slowest = int(steps.of_run[mine[int(np.argmax(values))]])
        flagged = int(marked[mine].sum())
        found.append(_phase(name, values, window_ns, flagged, slowest))
    between = np.array([step.host_ns for step in steps.steps], np.int64)
    alone = _uncovered(runs.start, runs.end, table.begin, table.finish)
    if alone > 0:
        host = _phase(HOST, between, window_ns, 0, int(np.argmax(between)))
        found.append(
            Phase(**{**{f: getattr(host, f) for f in host.__struct_fields__},
                     "total_ns": alone, "share": alone / max(window_ns, 1)})
        )  # fmt: skip
    return tuple(found)


def _phase(name: str, values: I64, window_ns: int, flagged: int, slowest: int) -> Phase:
    total = int(values.sum())
    return Phase(
        name=name,
        runs=len(values),
        total_ns=total,
        share=total / max(window_ns, 1),
        min_ns=int(values.min()),
        median_ns=round(float(np.median(values))),
        mean_ns=float(values.mean()),
        max_ns=int(values.max()),
        outliers=flagged,
        slowest=slowest,
    )


def _uncovered(start: I64, end: I64, begin: int, finish: int) -> int:
    """Time between `begin` and `finish` in which no run was under way."""
    latest = np.maximum.accumulate(end)
    covered = np.maximum(end - np.maximum(start, np.append(begin, latest[:-1])), 0).sum()
    return finish - begin - int(covered)


def find_answers(steps: Steps, headless: bool) -> tuple[Answer, ...]:
    """headless: the beginning of the work for each model's first answer is not known."""
    found = []
    for number in sorted({step.answer for step in steps.steps if step.answer >= 0}):
        mine = [step for step in steps.steps if step.answer == number]
        prefill = [step for step in mine if step.phase == PREFILL]
        decode = [step for step in mine if step.phase == DECODE]
        valid = [step.valid for step in prefill]
        begin = min(int(steps.first_work[step.number]) for step in mine)
        ready = _end(prefill[-1])
        rows = sum(step.valid or 1 for step in decode)
        span = _end(decode[-1]) - ready if decode else 0
        found.append(
            Answer(
                number=number,
                start_ns=begin,
                prompt_tokens=None if None in valid else sum(v or 0 for v in valid),
                new_tokens=rows + 1,
                ttft_ns=None if headless and mine[0].number in steps.opening else ready - begin,
                token_ns=span / len(decode) if span else None,
                tokens_per_s=rows / (span * 1e-9) if span else None,
            )
        )
    return tuple(found)


def _end(step: Step) -> int:
    return step.start_ns + step.duration_ns


def find_speed(
    steps: Steps, answers: Sequence[Answer], moved: float | None, dram: float | None
) -> Speed:
    """moved, dram: bytes of all decode steps together, where they are known."""
    tokens = np.array([s.token_ns for s in steps.steps if s.token_ns is not None], np.float64)
    prefill = steps.of_phase(PREFILL)
    spent = sum(step.duration_ns for step in prefill)
    read = sum(step.valid or 0 for step in prefill)
    decode = steps.of_phase(DECODE)
    rows = sum(step.valid or 1 for step in decode)
    further = [a for a in answers if a.token_ns is not None and a.tokens_per_s]
    seconds = sum((a.new_tokens - 1) / a.tokens_per_s for a in further if a.tokens_per_s)
    ttft = [a.ttft_ns for a in answers if a.ttft_ns is not None]
    return Speed(
        ttft_ns=round(float(np.median(ttft))) if ttft else None,
        token_min_ns=_whole(tokens, np.min),
        token_median_ns=_whole(tokens, np.median),
        token_mean_ns=float(tokens.mean()) if len(tokens) else None,
        token_max_ns=_whole(tokens, np.max),
        tokens_per_s=sum(a.new_tokens - 1 for a in further) / seconds if seconds else None,
        prefill_tokens_per_s=read / (spent * 1e-9) if spent and read else None,
        bytes_per_token=moved / rows if moved is not None and rows else None,
        dram_bytes_per_token=dram / rows if dram is not None and rows else None,
    )


def _whole(values: F64, function: object) -> int | None:
    return round(float(function(values))) if len(values) else None  # type: ignore[operator]
