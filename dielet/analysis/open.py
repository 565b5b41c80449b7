"""Reads a trace into tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.analysis.edges import Edges, find_edges
from dielet.analysis.events import (
    BYTES,
    FORMAT,
    KIND,
    NONE,
    OPS,
    PERCENT,
    ROUTE,
    SHAPE,
    WAITS,
    Events,
)
from dielet.analysis.names import (
    COMMAND,
    OTHER,
    RUN,
    WORK,
    Names,
    group_of,
    lane_of,
    layer_of,
    read_names,
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
    return table_of(Events.read(path), str(path))


def table_of(events: Events, path: str = "the trace") -> Table:
    """The tables of a trace that has been read; `path` is for messages."""
    trace = events.trace
    role, lane, lanes = _tracks(trace)
    names = read_names(trace.texts, np.unique(trace.name[trace.name >= 0]))
    step = names.step[trace.name]
    named, closed = step >= 0, trace.duration >= 0
    at = np.flatnonzero((role == COMMAND) & named & closed)
    if not len(at):
        raise DamagedFile(_refusal(trace, path, int((role == COMMAND).sum())))
    runs, run, at = _runs(events, names, np.flatnonzero((role == RUN) & named & closed), at)
    texts = list(names.operations)
    kinds: list[Kind] = []
    edges: list[Edges] = []
    rest = names.rest[trace.name[at]]
    for group in _groups(rest, lane[at], run, runs):
        kind, found = _kind(events, names, runs, group, at, rest, lane, lanes, texts)
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
        host=_host(trace, names, np.flatnonzero((role == WORK) & closed)),
        counters=_counters(trace),
        layer={n: layer_of(name) for n, name in enumerate(names.operations)},
        group={n: group_of(name) for n, name in enumerate(names.operations)},
        found=Found(
            slices=len(trace),
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
            stray=trace.stray,
            truncated=trace.truncated,
            old_names=bool((names.workload[rest] < 0).all()),
        ),
    )


def _refusal(trace: Trace, path: str, commands: int) -> str:
    if not len(trace):
        return (
            f"{path} is a trace without a single slice; profile something that runs, "
            "with `dielet run --profile`"
        )
    if trace.truncated:
        return f"{path} is cut off before the first command; copy it again, or profile again"
    example = trace.texts[int(trace.name[0])] if trace.name[0] >= 0 else ""
    return (
        f"{path} is a trace, but none of its {len(trace):,} slices ({commands:,} on engine tracks) "
        f"is called like `i0_0_W0_LAYER_0`; the first is {example!r}; "
        "give a trace of dielet's profiler, or one with such names"
    )


def _tracks(trace: Trace) -> tuple[NDArray[np.uint8], I32, list[Lane]]:
    """Of every slice what it is and its lane; the lanes."""
    uuids, place = np.unique(trace.track, return_inverse=True)
    first = np.zeros(len(uuids), np.int64)
    first[place[::-1]] = np.arange(len(place))[::-1]
    found = []
    for uuid, slice_ in zip(uuids.tolist(), first.tolist(), strict=True):
        category = int(trace.category[slice_])
        found.append(lane_of(trace.path(uuid), trace.texts[category] if category >= 0 else ""))
    roles = np.array([role for role, _ in found], np.uint8)
    return roles[place], place.astype(np.int32), [lane for _, lane in found]


def _runs(events: Events, names: Names, marks: I64, at: I64) -> tuple[Runs, I32, I64]:
    """The runs; the number of each command's; the commands in order of run, then start.

    marks: slices that stand for whole runs.
    """
    trace = events.trace
    most = int(names.workload.max(initial=0)) + 1
    key, mark_key = (
        names.step[trace.name[s]] * np.int64(most) + np.maximum(names.workload[rest], 0)
        for s in (at, marks)
        for rest in (names.rest[trace.name[s]],)
    )
    count = len(names.steps) * most
    start, end = np.full(count, np.iinfo(np.int64).max), np.full(count, NONE, np.int64)
    if not (key[1:] >= key[:-1]).all():
        order = np.argsort(key, kind="stable")
        at, key = at[order], key[order]
    edges = np.flatnonzero(np.diff(key, prepend=NONE))
    start[key[edges]] = np.minimum.reduceat(trace.start[at], edges)
    end[key[edges]] = np.maximum.reduceat(trace.start[at] + trace.duration[at], edges)
    np.minimum.at(start, mark_key, trace.start[marks])
    np.maximum.at(end, mark_key, trace.start[marks] + trace.duration[marks])
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
    phases = events.words("phase", said)
    runs = Runs(
        step=step,
        workload=present % most,
        start=start[present],
        end=end[present],
        phase=[
            phase or ("run" if instance is None else f"instance {instance}")
            for phase, instance in zip(phases, instances, strict=True)
        ],
        program=events.words("program", said),
        **{
            key: np.where(said >= 0, events.number(key, said), NONE)
            for key in ("tokens", "valid", "past", "capacity")
        },
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
    names: Names,
    runs: Runs,
    group: _Group,
    at: I64,
    rest: I32,
    lane: I32,
    lanes: list[Lane],
    texts: list[str],
) -> tuple[Kind, Edges]:
    trace, places = events.trace, group.places
    slices = at[places]
    sample = slices[0]
    words = {key: events.words(key, sample) for key in (KIND, SHAPE, FORMAT, ROUTE, WAITS)}
    pieces = Pieces(
        lane=lane[sample],
        executor=np.zeros(len(sample), np.int32),
        operation=names.operation[rest[places[0]]],
        index=names.index[rest[places[0]]],
        **{
            name: _numbers(words[key], texts)
            for name, key in (
                ("kind", KIND),
                ("shape", SHAPE),
                ("format", FORMAT),
                ("route", ROUTE),
            )
        },
    )
    start = trace.start[slices]
    end = start + trace.duration[slices]
    edges = find_edges(
        pieces, lanes, names.operations, words[WAITS], events.flows(sample), start[0], end[0]
    )
    first = int(group.runs[0])
    kind = Kind(
        phase=runs.phase[first],
        program=runs.program[first],
        runs=group.runs,
        pieces=pieces,
        start=start,
        end=end,
        nbytes=events.number(BYTES, slices),
        ops=events.number(OPS, slices),
        percent=events.number(PERCENT, slices).astype(np.int32),
        bound=events.bound(slices),
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


def _host(trace: Trace, names: Names, at: I64) -> HostWork:
    step, rest = names.step[trace.name[at]], names.rest[trace.name[at]]
    texts = [trace.texts[n] if n >= 0 else "" for n in trace.name[at].tolist()]
    return HostWork(
        start=trace.start[at],
        end=trace.start[at] + trace.duration[at],
        step=step.astype(np.int64),
        what=[
            names.operations[names.operation[r]] if r >= 0 else text
            for r, text in zip(rest.tolist(), texts, strict=True)
        ],
    )


def _counters(trace: Trace) -> dict[CounterKey, tuple[I64, F64]]:
    found = {}
    for uuid, series in trace.counters.items():
        _, lane = lane_of(trace.path(uuid), "")
        info = trace.tracks.get(uuid)
        if info is not None:
            found[lane.device, lane.chiplet, info.name, info.unit] = series
    return found
