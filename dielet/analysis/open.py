"""Reads a trace into tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from dielet.analysis.heap import give_back
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
    Bool,
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

MATRICES = ("start", "duration", "nbytes", "ops", "percent", "bound")
STRETCH = 1 << 18
"""Commands that are looked at together, so that little memory is needed."""


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
    give_back()
    names, named, closed = events.names, events.step >= 0, events.duration >= 0
    at = _places((role == COMMAND) & named & closed)
    if not len(at):
        raise DamagedFile(_refusal(events, path, int((role == COMMAND).sum())))
    runs, run, at = _runs(events, np.flatnonzero((role == RUN) & named & closed), at)
    texts = list(names.operations)
    kinds: list[Kind] = []
    edges: list[Edges] = []
    give_back()
    groups = list(_groups(events.rest[at], lane[at], run, runs))
    give_back()
    details = events.details(
        np.concatenate([at[group.places[0]] for group in groups]).astype(np.int64)
    )
    slices = [at[group.places] for group in groups]
    host = _host(events, np.flatnonzero((role == WORK) & closed))
    # From here on one column after the other is needed for the last time.
    count, unnamed = len(at), int(((role == OTHER) | (~named & (role != WORK))).sum())
    old_names = bool((names.workload[events.rest[at]] < 0).all())
    open_slices = int((~closed).sum())
    samples = [_pieces(events, details, mine[0], lane, texts) for mine in slices]
    del at, role, lane, named, closed, run
    columns = {}
    for name in MATRICES:
        columns[name] = _by_group(events.take(name), slices)
        give_back()
    for n, (group, (pieces, waits)) in enumerate(zip(groups, samples, strict=True)):
        first = int(group.runs[0])
        start, duration = columns["start"][n], columns["duration"][n]
        found = find_edges(
            pieces, lanes, names.operations, waits, details.flows(slices[n][0].astype(np.int64)),
            start[0], start[0] + duration[0],
        )  # fmt: skip
        edges.append(found)
        duration += start  # which makes ends of them
        kinds.append(
            Kind(
                phase=runs.phase[first],
                program=runs.program[first],
                runs=group.runs,
                pieces=pieces,
                start=start,
                end=duration,
                nbytes=columns["nbytes"][n],
                ops=columns["ops"][n],
                percent=columns["percent"][n],
                bound=columns["bound"][n],
                edges=found.pairs,
            )
        )
    del columns, slices
    give_back()
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
        host=host,
        counters=_counters(trace, events),
        layer={n: layer_of(name) for n, name in enumerate(names.operations)},
        group={n: group_of(name) for n, name in enumerate(names.operations)},
        found=Found(
            slices=len(events),
            commands=count,
            open_slices=open_slices,
            unnamed=unnamed,
            with_bytes=sum(int((kind.nbytes >= 0).sum()) for kind in kinds),
            edges=sum(
                len(found.pairs) * len(kind.runs) for kind, found in zip(kinds, edges, strict=True)
            ),
            waits=sum(found.waits for found in edges),
            waits_resolved=sum(found.resolved for found in edges),
            backward=sum(found.backward for found in edges),
            stray=events.stray,
            truncated=events.truncated,
            old_names=old_names,
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
    uuids, first, place = _distinct(events.track)
    details = events.details(first)
    found = [
        lane_of(details.trace.path(uuid), category)
        for uuid, category in zip(uuids.tolist(), details.categories(first), strict=True)
    ]
    roles = np.array([role for role, _ in found], np.uint8)
    return roles[place], place, [lane for _, lane in found], details.trace


def _places(there: Bool) -> I32:
    """Where something is so."""
    parts = [
        (np.flatnonzero(there[low : low + STRETCH]) + low).astype(np.int32)
        for low in range(0, len(there), STRETCH)
    ]
    return np.concatenate(parts)


def _distinct(track: NDArray[np.integer]) -> tuple[I64, I64, I32]:
    """Different values, where each is first, and per element which it is."""
    if track.dtype != np.int16:
        values, first, place = np.unique(track, return_index=True, return_inverse=True)
        return values, first, place.astype(np.int32)
    first = np.full(int(track.max()) + 1, NONE, np.int64)
    for low in range(0, len(track), STRETCH):
        found, at = np.unique(track[low : low + STRETCH], return_index=True)
        fresh = first[found] < 0
        first[found[fresh]] = low + at[fresh]
    values = np.flatnonzero(first >= 0)
    number = np.zeros(len(first), np.int32)
    number[values] = np.arange(len(values))
    return values, first[values], number[track]


def _runs(events: Events, marks: I64, at: I32) -> tuple[Runs, I32, I32]:
    """The runs; the number of each command's; the commands in order of run, then start.

    marks: slices that stand for whole runs.
    """
    names = events.names
    most = int(names.workload.max(initial=0)) + 1
    kind = np.dtype(np.int32 if len(names.steps) * most < 1 << 31 else np.int64)
    key, mark_key = (np.empty(len(slices), kind) for slices in (at, marks))
    for out, slices in ((key, at), (mark_key, marks)):
        for low in range(0, len(slices), STRETCH):
            part = slices[low : low + STRETCH]
            workload = np.maximum(names.workload[events.rest[part]], 0)
            out[low : low + STRETCH] = events.step[part] * kind.type(most) + workload
    count = len(names.steps) * most
    start, end = np.full(count, np.iinfo(np.int64).max), np.full(count, NONE, np.int64)
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        at, key = at[order], key[order]
    first = _firsts(key)
    start[key[first]] = events.start[at[first]]  # slices are in order of start
    for low, high in _stretches(first, len(at)):
        mine = at[first[low] : first[high] if high < len(first) else len(at)]
        ends = events.start[mine] + events.duration[mine]
        end[key[first[low:high]]] = np.maximum.reduceat(ends, first[low:high] - first[low])
    np.minimum.at(start, mark_key, events.start[marks])
    np.maximum.at(end, mark_key, events.start[marks] + events.duration[marks])
    present = np.flatnonzero(end >= 0)
    present = present[np.argsort(start[present], kind="stable")]
    number = np.full(count, NONE, np.int32)
    number[present] = np.arange(len(present))
    run = number[key]
    if (run[1:] < run[:-1]).any():
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
    places: I32


def _groups(rest: I32, lane: I32, run: I32, runs: Runs) -> Iterator[_Group]:
    """Runs with the same commands on the same lanes, and the same phase and program.

    Commands are in order of run.
    """
    lanes = int(lane.max()) + 1
    small = int(rest.max() + 1) * lanes < 1 << 31
    piece, count = _dense((rest if small else rest.astype(np.int64)) * lanes + lane)
    first = _firsts(run)
    length = np.diff(np.append(first, len(run)))
    if _repeats(piece, count, first):
        piece, count = _told_apart(piece, count, first, length)
    marks = np.random.default_rng(0).integers(0, 1 << 62, count, np.int64)
    sums = np.empty(len(first), np.int64)
    for low, high in _stretches(first, len(run)):
        mine = marks[piece[first[low] : first[high] if high < len(first) else len(run)]]
        sums[low:high] = np.add.reduceat(mine, first[low:high] - first[low])
    by_kind: dict[tuple[int, int, str, str], list[int]] = {}
    for n, number in enumerate(run[first].tolist()):
        key = int(sums[n]), int(length[n]), runs.phase[number], runs.program[number]
        by_kind.setdefault(key, []).append(n)
    for members in by_kind.values():
        chosen = np.array(members)
        columns = int(length[chosen[0]])
        sample = first[chosen[0]] + np.arange(columns)
        rank = np.full(count, NONE, np.int32)
        # Lane by lane, each in order of start: as executors take them, mostly.
        rank[piece[sample][np.argsort(lane[sample], kind="stable")]] = np.arange(columns)
        places = np.empty((len(chosen), columns), np.int32)
        for row, begin in enumerate(first[chosen].tolist()):
            places[row, rank[piece[begin : begin + columns]]] = np.arange(begin, begin + columns)
        yield _Group(run[first[chosen]].astype(np.int64), places)


def _dense(key: I64) -> tuple[I32, int]:
    """Keys as numbers without gaps, in the same order, and how many there are."""
    there = np.zeros(int(key.max()) + 1, bool)
    there[key] = True
    number = np.cumsum(there, dtype=np.int32) - 1
    return number[key], int(number[-1]) + 1


def _firsts(values: NDArray[np.integer]) -> I64:
    """Where a value begins that the place before does not have."""
    return np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)


def _stretches(first: I64, total: int) -> Iterator[tuple[int, int]]:
    """Ranges of runs that have about STRETCH commands together, or one run each."""
    low = 0
    while low < len(first):
        high = max(int(np.searchsorted(first, first[low] + STRETCH, side="right")) - 1, low + 1)
        if first[low] + STRETCH >= total:
            high = len(first)
        yield low, high
        low = high


def _repeats(piece: I32, count: int, first: I64) -> bool:
    """Whether a run has a piece twice."""
    for low, high in _stretches(first, len(piece)):
        end = int(first[high]) if high < len(first) else len(piece)
        mine = piece[first[low] : end]
        length = np.diff(np.append(first[low:high], end))
        seen = np.bincount(mine, minlength=count) if high - low == 1 else None
        if seen is not None:
            if (seen > 1).any():
                return True
            continue
        key = np.repeat(np.arange(high - low), length) * np.int64(count) + mine
        there = np.zeros((high - low) * count, bool)
        there[key] = True
        if int(there.sum()) != len(key):
            return True
    return False


def _told_apart(piece: I32, count: int, first: I64, length: I64) -> tuple[I32, int]:
    """Pieces that a run has several of, as different pieces: the first, the second, and so on."""
    key = np.repeat(np.arange(len(first)), length) * np.int64(count) + piece
    order = np.argsort(key, kind="stable")
    begins = np.diff(key[order], prepend=NONE) != 0
    places = np.arange(len(key))
    number = np.empty(len(key), np.int64)
    number[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return _dense(number * count + piece)


def _pieces(
    events: Events, details: Details, sample: I32, lane: I32, texts: list[str]
) -> tuple[Pieces, list[str]]:
    """What a run's commands are, and what each waited for, in words."""
    names, rest = events.names, events.rest[sample]
    words = {
        key: details.words(key, sample.astype(np.int64))
        for key in (KIND, SHAPE, FORMAT, ROUTE, WAITS)
    }
    pieces = Pieces(
        lane=lane[sample],
        executor=np.zeros(len(sample), np.int32),
        operation=names.operation[rest],
        index=names.index[rest],
        kind=_numbers(words[KIND], texts),
        shape=_numbers(words[SHAPE], texts),
        format=_numbers(words[FORMAT], texts),
        route=_numbers(words[ROUTE], texts),
    )
    return pieces, words[WAITS]


def _by_group(column: NDArray[Any], slices: Sequence[I32]) -> list[NDArray[Any]]:
    """A column as the matrices [runs, pieces] of all kinds."""
    return [column[mine] for mine in slices]


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
