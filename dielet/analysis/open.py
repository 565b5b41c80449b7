"""Reads a trace into tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.edges import Edges, find_edges
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
from dielet.profiler.reader import Trace
from dielet.program.records import BOUNDS


def open_table(path: str | Path) -> Table:
    """The tables of the trace at `path`.

    Raises MissingFile, or DamagedFile for what is no trace or has no names that are understood.
    """
    return table_of(read_events(path), str(path))


def table_of(events: Events, path: str = "the trace") -> Table:
    """The tables of a trace that has been read; `path` is for messages."""
    if not len(events):
        raise DamagedFile(_refusal(events, path, 0))
    role, lane, lanes, trace = _tracks(events)
    names, named, closed = events.names, events.step >= 0, events.duration >= 0
    at = np.flatnonzero((role == COMMAND) & named & closed)
    if not len(at):
        raise DamagedFile(_refusal(events, path, int((role == COMMAND).sum())))
    runs, run, at = _runs(events, np.flatnonzero((role == RUN) & named & closed), at)
    texts = list(names.operations)
    kinds: list[Kind] = []
    edges: list[Edges] = []
    groups = list(_groups(events.rest[at], lane[at], run, runs))
    details = events.details(np.concatenate([at[group.places[0]] for group in groups]))
    for group in groups:
        kind, found = _kind(events, details, runs, group, at, lane, lanes, texts)
        kinds.append(kind)
        edges.append(found)
    kinds, executors = with_executors(kinds, lanes, trace.attributes)
    return Table(
        attributes=dict(trace.attributes),
        texts=texts,
        bounds=BOUNDS,
        lanes=tuple(lanes),
        executors=executors,
        steps=names.steps,
        runs=runs,
        kinds=tuple(kinds),
        host=_host(events, np.flatnonzero((role == WORK) & closed)),
        counters=_counters(trace, events),
        layer={n: layer_of(name) for n, name in enumerate(names.operations)},
        group={n: group_of(name) for n, name in enumerate(names.operations)},
        found=Found(
            slices=len(events),
            commands=len(at),
            open_slices=int((~closed).sum()),
            unnamed=int(((role == OTHER) | (~named & (role != WORK))).sum()),
            with_bytes=sum(int((kind.nbytes >= 0).sum()) for kind in kinds),
            edges=sum(
                len(found.pairs) * len(kind.runs) for kind, found in zip(kinds, edges, strict=True)
            ),
            waits=sum(found.waits for found in edges),
            waits_resolved=sum(found.resolved for found in edges),
            backward=sum(found.backward for found in edges),
            stray=events.stray,
            truncated=events.truncated,
            old_names=bool((names.workload[events.rest[at]] < 0).all()),
        ),
    )


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
        f"{path} is a trace, but none of its {len(events):,} slices ({commands:,} on engine "
        f"tracks) is called like `i0_0_W0_LAYER_0`; the first is {example!r}; "
        "give a trace of dielet's profiler, or one with such names"
    )


def _tracks(events: Events) -> tuple[NDArray[np.uint8], I32, list[Lane], Trace]:
    """Of every slice what it is and its lane; the lanes; a trace that knows the tracks."""
    uuids, first, place = np.unique(events.track, return_index=True, return_inverse=True)
    details = events.details(first)
    found = [
        lane_of(details.trace.path(uuid), category)
        for uuid, category in zip(uuids.tolist(), details.categories(first), strict=True)
    ]
    roles = np.array([role for role, _ in found], np.uint8)
    return roles[place], place.astype(np.int32), [lane for _, lane in found], details.trace


def _runs(events: Events, marks: I64, at: I64) -> tuple[Runs, I32, I64]:
    """The runs; the number of each command's; the commands in order of run, then start.

    marks: slices that stand for whole runs.
    """
    names = events.names
    most = int(names.workload.max(initial=0)) + 1
    key, mark_key = (
        events.step[s] * np.int64(most) + np.maximum(names.workload[events.rest[s]], 0)
        for s in (at, marks)
    )
    count = len(names.steps) * most
    start, end = np.full(count, np.iinfo(np.int64).max), np.full(count, NONE, np.int64)
    if not (key[1:] >= key[:-1]).all():
        order = np.argsort(key, kind="stable")
        at, key = at[order], key[order]
    edges = np.flatnonzero(np.diff(key, prepend=NONE))
    start[key[edges]] = np.minimum.reduceat(events.start[at], edges)
    end[key[edges]] = np.maximum.reduceat(events.start[at] + events.duration[at], edges)
    np.minimum.at(start, mark_key, events.start[marks])
    np.maximum.at(end, mark_key, events.start[marks] + events.duration[marks])
    present = np.flatnonzero(end >= 0)
    present = present[np.argsort(start[present], kind="stable")]
    number = np.full(count, NONE, np.int32)
    number[present] = np.arange(len(present))
    run = number[key]
    if not (run[1:] >= run[:-1]).all():
        order = np.argsort(run, kind="stable")
        run, at = run[order], at[order]
    said = np.full(len(present), NONE, np.int64)
    said[number[mark_key]] = marks
    step = present // most
    instances = [names.steps[s][0] for s in step.tolist()]
    details = events.details(marks)
    phases = details.words("phase", said)
    runs = Runs(
        step=step,
        workload=present % most,
        start=start[present],
        end=end[present],
        phase=[
            phase or ("run" if instance is None else f"instance {instance}")
            for phase, instance in zip(phases, instances, strict=True)
        ],
        program=details.words("program", said),
        **{key: details.numbers(key, said) for key in ("tokens", "valid", "past", "capacity")},
    )
    return runs, run, at


@dataclass(frozen=True)
class _Group:
    """Runs of one kind: their numbers, and [runs, pieces] where their commands stand."""

    runs: I64
    places: I64


def _groups(rest: I32, lane: I32, run: I32, runs: Runs) -> Iterator[_Group]:
    """Runs with the same commands on the same lanes, and the same phase and program.

    Commands are in order of run.
    """
    piece, count = _dense(rest.astype(np.int64) * (int(lane.max()) + 1) + lane)
    first = np.flatnonzero(np.diff(run, prepend=NONE))
    length = np.diff(np.append(first, len(run)))
    piece, count = _told_apart(piece, count, first, length)
    marks = np.random.default_rng(0).integers(0, 1 << 62, count, np.int64)
    sums = np.add.reduceat(marks[piece], first)
    by_kind: dict[tuple[int, int, str, str], list[int]] = {}
    for n, number in enumerate(run[first].tolist()):
        key = int(sums[n]), int(length[n]), runs.phase[number], runs.program[number]
        by_kind.setdefault(key, []).append(n)
    for members in by_kind.values():
        chosen = np.array(members)
        columns = int(length[chosen[0]])
        mine = first[chosen][:, None] + np.arange(columns)
        rank = np.full(count, NONE, np.int32)
        rank[np.sort(piece[mine[0]])] = np.arange(columns)
        places = np.empty_like(mine)
        np.put_along_axis(places, rank[piece[mine]].astype(np.int64), mine, axis=1)
        yield _Group(run[first[chosen]].astype(np.int64), places)


def _dense(key: I64) -> tuple[I32, int]:
    """Keys as numbers without gaps, in the same order, and how many there are."""
    there = np.zeros(int(key.max()) + 1, bool)
    there[key] = True
    number = np.cumsum(there, dtype=np.int32) - 1
    return number[key], int(number[-1]) + 1


def _told_apart(piece: I32, count: int, first: I64, length: I64) -> tuple[I32, int]:
    """Pieces that a run has several of, as different pieces: the first, the second, and so on."""
    run = np.repeat(np.arange(len(first)), length)
    key = run * np.int64(count) + piece
    seen = np.zeros(len(first) * count, bool) if len(first) * count < 1 << 28 else None
    if seen is not None:
        seen[key] = True
        if int(seen.sum()) == len(key):
            return piece, count
    order = np.argsort(key, kind="stable")
    begins = np.diff(key[order], prepend=NONE) != 0
    places = np.arange(len(key))
    number = np.empty(len(key), np.int64)
    number[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return _dense(number * count + piece)


def _kind(
    events: Events,
    details: Details,
    runs: Runs,
    group: _Group,
    at: I64,
    lane: I32,
    lanes: list[Lane],
    texts: list[str],
) -> tuple[Kind, Edges]:
    names, slices = events.names, at[group.places]
    sample = slices[0]
    words = {key: details.words(key, sample) for key in (KIND, SHAPE, FORMAT, ROUTE, WAITS)}
    pieces = Pieces(
        lane=lane[sample],
        executor=np.zeros(len(sample), np.int32),
        operation=names.operation[events.rest[sample]],
        index=names.index[events.rest[sample]],
        kind=_numbers(words[KIND], texts),
        shape=_numbers(words[SHAPE], texts),
        format=_numbers(words[FORMAT], texts),
        route=_numbers(words[ROUTE], texts),
    )
    start = events.start[slices]
    end = start + events.duration[slices]
    edges = find_edges(
        pieces, lanes, names.operations, words[WAITS], details.flows(sample), start[0], end[0]
    )
    first = int(group.runs[0])
    kind = Kind(
        phase=runs.phase[first],
        program=runs.program[first],
        runs=group.runs,
        pieces=pieces,
        start=start,
        end=end,
        nbytes=events.nbytes[slices],
        ops=events.ops[slices],
        percent=events.percent[slices],
        bound=events.bound[slices],
        edges=edges.pairs,
    )
    return kind, edges


def _numbers(words: list[str], texts: list[str]) -> I32:
    """Words as places in `texts`, to which new ones are added; -1 for an empty one."""
    known = {text: number for number, text in enumerate(texts)}
    known[""] = NONE
    for word in words:
        if word not in known:
            known[word] = len(texts)
            texts.append(word)
    return np.array([known[word] for word in words], np.int32)


def _host(events: Events, at: I64) -> HostWork:
    names = events.names
    what = [*names.operations, ""]
    rest = events.rest[at]
    operation = np.where(rest >= 0, names.operation[rest], NONE)
    return HostWork(
        start=events.start[at],
        end=events.start[at] + events.duration[at],
        step=events.step[at].astype(np.int64),
        what=[what[n] for n in operation.tolist()],
    )


def _counters(trace: Trace, events: Events) -> dict[CounterKey, tuple[I64, F64]]:
    found = {}
    for uuid, series in events.counters.items():
        _, lane = lane_of(trace.path(uuid), "")
        info = trace.tracks.get(uuid)
        if info is not None:
            found[lane.device, lane.chiplet, info.name, info.unit] = series
    return found
