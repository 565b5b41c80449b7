"""Reads a trace into tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.edges import chiplet_numbers, find_edges
from dielet.analysis.events import (
    FORMAT,
    KIND,
    NONE,
    ROUTE,
    SHAPE,
    WAITS,
    Details,
    Events,
    read_events,
)
from dielet.analysis.grouping import (
    distinct,
    firsts,
    groups_of,
    places_where,
    stretches,
)
from dielet.analysis.heap import give_back
from dielet.analysis.models import find_models
from dielet.analysis.names import (
    COMMAND,
    OTHER,
    RUN,
    WORK,
    group_of,
    lane_of,
    layer_of,
)
from dielet.analysis.table import (
    F64,
    I32,
    I64,
    STRETCH,
    CounterKey,
    Found,
    HostWork,
    Kind,
    Lane,
    Pieces,
    Runs,
    Table,
)
from dielet.analysis.workers import with_executors
from dielet.errors import DamagedFile
from dielet.profiler.names import WORKER
from dielet.profiler.reader import Trace
from dielet.program.records import BOUNDS

_LATEST, _LONGEST = 1 << 62, 1 << 53  # ns; the second is 104 days, and exact as a float
_COUNTS = ("dropped_command_count", "command_count", "peaks_count")
ALL_RUNS = "all runs"  # the phase, where nothing is said of it
NO_CELLS = np.zeros((0, 0), np.int32)
MATRICES = ("start", "duration", "fact", "percent")


def open_table(path: str | Path) -> Table:
    """The tables of the trace at `path`.

    Raises MissingFile, or DamagedFile for what is no trace or has no names that are understood.
    """
    return table_of(read_events(path), str(path))


def table_of(events: Events, path: str = "the trace") -> Table:
    """The tables of a trace that has been read; `path` is for messages."""
    total = len(events)
    if not total:
        raise DamagedFile(_refusal(events, path, 0))
    _check_times(events, path)
    role, lane, lanes, trace = _tracks(events)
    names, named, closed = events.names, events.step >= 0, events.duration != NONE
    at = places_where((role == COMMAND) & named & closed)
    if not len(at):
        raise DamagedFile(_refusal(events, path, int((role == COMMAND).sum())))
    host = _host(events, np.flatnonzero((role == WORK) & closed), lane, lanes)
    unnamed = int(((role == OTHER) | (~named & (role != WORK))).sum())
    open_slices = int((~closed).sum())
    marks = np.flatnonzero((role == RUN) & named & closed)
    # From here on one column after the other is needed for the last time.
    del role, named, closed
    events.take("track")
    give_back()
    old_names = _without_workload(events, at)
    runs, run, at = _runs(events, marks, at, old_names)
    events.take("step")
    texts = list(names.operations)
    give_back()
    members: list[I64] = []
    slices: list[I32] = []
    for group in groups_of(events.rest[at], lane[at], run, runs):
        members.append(group.runs)
        slices.append(at[group.places])
    del run
    give_back()
    details = events.details(np.concatenate([mine[0] for mine in slices]).astype(np.int64))
    count = len(at)
    samples = [_pieces(events, details, mine[0], lane, texts) for mine in slices]
    said = [details.numbers(WORKER, mine[0].astype(np.int64)) for mine in slices]
    del at, lane
    events.take("rest")
    used = [{lanes[n].device for n in np.unique(p.lane).tolist()} for p, _ in samples]
    models = find_models(zip(used, (runs.step[m] for m in members), strict=True), names.steps)
    chiplets = chiplet_numbers(lanes, models)
    kinds = _kinds(events, details, members, slices, samples, chiplets, runs)
    give_back()
    kinds, executors, guessed = with_executors(kinds, said, lanes, trace.attributes)
    return Table(
        attributes=_attributes(trace, path),
        texts=texts,
        bounds=BOUNDS,
        lanes=tuple(lanes),
        executors=executors,
        steps=names.steps,
        runs=runs,
        kinds=tuple(kinds),
        host=host,
        counters=_counters(trace, events),
        layer={n: layer_of(name) for n, name in enumerate(names.operations)},
        group={n: group_of(name) for n, name in enumerate(names.operations)},
        models=models,
        guessed=guessed,
        found=Found(
            slices=total,
            commands=count,
            open_slices=open_slices,
            unnamed=unnamed,
            stray=events.stray,
            truncated=events.truncated,
            old_names=old_names,
        ),
    )


def _check_times(events: Events, path: str) -> None:
    """Refuses times that no trace has, and with which sums would not fit."""
    longest = events.longest()
    first, last = int(events.start[0]), int(events.start[-1])
    long = int(events.durations(np.array([longest]))[0])
    if first >= 0 and last <= _LATEST and last - first <= _LONGEST and long <= _LONGEST:
        return
    details = events.details([longest])
    name = int(details.trace.name[details.places(np.array([longest]))[0]])
    raise DamagedFile(
        f"{path} is damaged: its slices begin between {first} and {last} ns, and the longest, "
        f"{details.trace.texts[name] if name >= 0 else 'without a name'!r}, takes {long} ns, where "
        f"at most {_LONGEST} ns are possible; profile again"
    )


def _attributes(trace: Trace, path: str) -> dict[str, int | str]:
    """The attributes; those that are counts or rates must be numbers."""
    for key, value in trace.attributes.items():
        if isinstance(value, str) and (key in _COUNTS or key.startswith("peak ")):
            raise DamagedFile(
                f"{path} is damaged: its attribute {key} is {value!r}, not a number; profile again"
            )
    return dict(trace.attributes)


def _refusal(events: Events, path: str, commands: int) -> str:
    if events.truncated:
        return f"{path} is cut off before the first command; copy it again, or profile again"
    if not len(events):
        return (
            f"{path} is a trace without a single slice; profile something that runs, "
            "with `dielet run --profile`"
        )
    trace = events.details([0]).trace
    example = trace.texts[int(trace.name[0])] if trace.name[0] >= 0 else ""
    return (
        f"{path} is a trace, but no slice of {len(events):,} ({commands:,} on engine tracks) is "
        f"called like `i0_0_W0_LAYER_0`; the first is {example!r}; "
        "give a trace of dielet's profiler, or one with such names"
    )


def _without_workload(events: Events, at: I32) -> bool:
    """Whether no command's name says which run of its step it is of."""
    workload = events.names.workload
    return all(
        bool((workload[events.rest[at[low : low + STRETCH]]] < 0).all())
        for low in range(0, len(at), STRETCH)
    )


def _tracks(events: Events) -> tuple[NDArray[np.uint8], NDArray[np.integer], list[Lane], Trace]:
    """Of every slice what it is and its lane; the lanes; a trace that knows the tracks."""
    uuids, first, place = distinct(events.track)
    details = events.details(first)
    found = [
        lane_of(details.trace.path(uuid), category)
        for uuid, category in zip(uuids.tolist(), details.categories(first), strict=True)
    ]
    roles = np.array([role for role, _ in found], np.uint8)
    return roles[place], place, [lane for _, lane in found], details.trace


def _runs(events: Events, marks: I64, at: I32, old_names: bool) -> tuple[Runs, I32, I32]:
    """The runs; the number of each command's; the commands in order of run, then start.

    marks: slices that stand for whole runs.  old_names: commands do not say which run of their
    step they are of, so all of them, and all marks, are of one.
    """
    names = events.names
    # Numbered anew: what names say may be any number, and every one takes room below.
    numbers = np.zeros_like(names.workload) if old_names else np.maximum(names.workload, 0)
    workloads, of_rest = np.unique(numbers, return_inverse=True)
    most = len(workloads)
    kind = np.dtype(np.int32 if len(names.steps) * most < 1 << 31 else np.int64)
    key, mark_key = (np.empty(len(slices), kind) for slices in (at, marks))
    for out, slices in ((key, at), (mark_key, marks)):
        for low in range(0, len(slices), STRETCH):
            part = slices[low : low + STRETCH]
            workload = of_rest[events.rest[part]]
            out[low : low + STRETCH] = events.step[part] * kind.type(most) + workload
    count = len(names.steps) * most
    start, end = np.full(count, np.iinfo(np.int64).max), np.full(count, NONE, np.int64)
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        at, key = at[order], key[order]
    first = firsts(key)
    start[key[first]] = events.start[at[first]]  # slices are in order of start
    for low, high in stretches(first, len(at)):
        mine = at[first[low] : first[high] if high < len(first) else len(at)]
        ends = events.start[mine] + events.durations(mine)
        end[key[first[low:high]]] = np.maximum.reduceat(ends, first[low:high] - first[low])
    np.minimum.at(start, mark_key, events.start[marks])
    np.maximum.at(end, mark_key, events.start[marks] + events.durations(marks))
    present = np.flatnonzero(end >= 0)
    present = present[np.argsort(start[present], kind="stable")]
    number = np.full(count, NONE, np.int32)
    number[present] = np.arange(len(present))
    run = number[key]
    del key
    if (run[1:] < run[:-1]).any():
        order = np.argsort(run, kind="stable")
        run, at = run[order], at[order]
    said = np.full(len(present), NONE, np.int64)
    said[number[mark_key][::-1]] = marks[::-1]  # of several the first
    step = present // most
    instances = [names.steps[s][0] for s in step.tolist()]
    details = events.details(marks)
    phases = details.words("phase", said)
    runs = Runs(
        step=step,
        workload=workloads[present % most].astype(np.int64),
        start=start[present],
        end=end[present],
        phase=[
            phase or (ALL_RUNS if instance is None else f"instance {instance}")
            for phase, instance in zip(phases, instances, strict=True)
        ],
        program=details.words("program", said),
        **{key: details.numbers(key, said) for key in ("tokens", "valid", "past", "capacity")},
    )
    return runs, run, at


def _kinds(
    events: Events,
    details: Details,
    members: Sequence[I64],
    slices: Sequence[I32],
    samples: Sequence[tuple[Pieces, list[str]]],
    chiplets: Sequence[int],
    runs: Runs,
) -> list[Kind]:
    """The kinds with their matrices; every column of `events` that they need is taken from it.

    members: runs of each kind; slices: where their commands stand, [runs, pieces]; chiplets: by
    lane, as `find_edges` takes them.
    """
    columns: dict[str, list[NDArray[Any]]] = {}
    for name in MATRICES:
        column = events.take(name)
        columns[name] = [column[mine] for mine in slices]
        del column
        give_back()
    kinds = []
    for n, (mine, (pieces, waits)) in enumerate(zip(members, samples, strict=True)):
        start = columns["start"][n]
        end = events.in_ns(columns["duration"][n])
        end += start
        columns["duration"][n] = NO_CELLS
        arrows = details.flows(slices[n][0].astype(np.int64))
        joined = find_edges(
            pieces, chiplets, events.names.operations, waits, arrows, start[0], end[0]
        )
        first = int(mine[0])
        kinds.append(
            Kind(
                phase=runs.phase[first],
                program=runs.program[first],
                runs=mine,
                pieces=pieces,
                start=start,
                end=end,
                fact=columns["fact"][n],
                percent=columns["percent"][n],
                facts=events.facts,
                edges=joined.pairs,
                waits=joined.waits,
                resolved=joined.resolved,
                backward=joined.backward,
            )
        )
    return kinds


def _pieces(
    events: Events, details: Details, sample: I32, lane: NDArray[np.integer], texts: list[str]
) -> tuple[Pieces, list[str]]:
    """What a run's commands are, and what each waited for, in words."""
    names, rest = events.names, events.rest[sample]
    words = {
        key: details.words(key, sample.astype(np.int64))
        for key in (KIND, SHAPE, FORMAT, ROUTE, WAITS)
    }
    pieces = Pieces(
        lane=lane[sample].astype(np.int32),
        executor=np.zeros(len(sample), np.int32),
        operation=names.operation[rest],
        index=names.index[rest],
        kind=_numbers(words[KIND], texts),
        shape=_numbers(words[SHAPE], texts),
        format=_numbers(words[FORMAT], texts),
        route=_numbers(words[ROUTE], texts),
    )
    return pieces, words[WAITS]


def _numbers(words: list[str], texts: list[str]) -> I32:
    """Words as places in `texts`, to which new ones are added; -1 for an empty one."""
    known = {text: number for number, text in enumerate(texts)}
    known[""] = NONE
    for word in words:
        if word not in known:
            known[word] = len(texts)
            texts.append(word)
    return np.array([known[word] for word in words], np.int32)


def _host(events: Events, at: I64, lane: NDArray[np.integer], lanes: Sequence[Lane]) -> HostWork:
    names = events.names
    what = [*names.operations, ""]
    rest = events.rest[at]
    operation = np.where(rest >= 0, names.operation[rest], NONE)
    return HostWork(
        start=events.start[at],
        end=events.start[at] + events.durations(at),
        step=events.step[at].astype(np.int64),
        what=[what[n] for n in operation.tolist()],
        device=[lanes[n].device for n in lane[at].tolist()],
    )


def _counters(trace: Trace, events: Events) -> dict[CounterKey, tuple[I64, F64]]:
    found = {}
    for uuid, series in events.counters.items():
        _, lane = lane_of(trace.path(uuid), "")
        info = trace.tracks.get(uuid)
        if info is not None:
            found[lane.device, lane.chiplet, info.name, info.unit] = series
    return found
