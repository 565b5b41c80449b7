"""What holds of every trace, whatever is in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dielet.analysis.api import Analyzed, examine
from dielet.analysis.every_gap import every_gap
from dielet.analysis.gaps import HOST, look
from dielet.analysis.graph import critical_path, graph_of, makespans
from dielet.analysis.queues import queues_of
from dielet.analysis.spans import Spans
from dielet.analysis.table import I32, Kind
from tests.analysis.make import DEVICE, NEURAL, TASK, WEIGHTS, Maker, engine

ENGINES = (NEURAL, WEIGHTS, TASK)


@st.composite
def traces(draw: st.DrawFn) -> Maker:
    """Runs in which commands start when their engine is free and their sources have ended."""
    t = Maker(device_clock="modelled", dielet_version="0")
    at = draw(st.integers(0, 5))
    shape = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=9))
    arrows = [draw(st.sets(st.integers(0, max(n - 1, 0)), max_size=3)) if n else set()
              for n in range(len(shape))]  # fmt: skip
    for run in range(draw(st.integers(1, 3))):
        begin, free = at, {}
        flows: list[list[int]] = [[] for _ in shape]
        for n, sources in enumerate(arrows):
            for source in sources:
                flow = t.flow()
                flows[n].append(flow)
                flows[source].append(flow)
        ends = []
        for n, (chiplet, number) in enumerate(shape):
            start = max([begin, free.get((chiplet, number), 0), *(ends[s] for s in arrows[n])])
            start += draw(st.integers(0, 3))
            ends.append(start + draw(st.integers(1, 20)))
            free[chiplet, number] = ends[-1]
            t.slice(engine(chiplet, ENGINES[number]), f"i0_{run}_W0_c{n}_0", start, ends[-1],
                    tuple(flows[n]), kind=f"k{n % 2}", bytes=n, percent=n)  # fmt: skip
        at = max(ends) + draw(st.integers(0, 4))
        t.slice((DEVICE, "Device Workload"), f"i0_{run}_Device Workload_0", begin, at,
                phase="decode", program="p")  # fmt: skip
        at += draw(st.integers(0, 10))
    return t


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laws") / "a.pb"


def check_times(done: Analyzed) -> None:
    found, table = done.found, done.table
    window = table.finish - table.begin
    busy = sum(e.busy_ns for e in found.engines if e.scope == "run")
    assert sum(c.lost_ns for c in found.gap_causes) == len(table.executors) * window - busy
    # Each gap is in the table once; between runs it is one for all executors of the one device.
    every = list(every_gap(table, done.steps))
    count = len(table.executors)
    lost = sum(gap.duration_ns * (count if gap.cause == HOST else 1) for gap in every)
    assert lost == count * window - busy and all(gap.duration_ns > 0 for gap in every)
    assert set(found.gaps) <= set(every)
    for e in found.engines:
        assert min(e.busy_ns, e.waiting_ns, e.idle_ns) >= 0
    assert sum(p.total_ns for p in found.phases) == window
    for o in found.overlap:
        assert 0 <= o.share <= 1 and (o.share == 1 or o.first != o.second or not o.first_ns)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_times_add_up(path: Path, made: Maker) -> None:
    check_times(examine(made.write(path)))


@settings(max_examples=60, deadline=None)
@given(traces())
def test_the_critical_path_is_the_run_and_nothing_changes_for_nothing(
    path: Path, made: Maker
) -> None:
    table = examine(made.write(path)).table
    for kind in table.kinds:
        graph = graph_of(kind, queues_of(kind, table.runs))
        critical = critical_path(graph)
        own = (graph.duration * critical.on_path).sum(axis=1)
        spans = graph.run_end - graph.run_start
        assert (own + critical.waiting.sum(axis=1) + critical.tail == spans).all()
        pieces = len(kind.pieces)
        same, half, none = makespans(graph, np.stack([np.full(pieces, f) for f in (1.0, 0.5, 0.0)]))
        assert (same == spans - critical.tail).all()
        assert (half <= same).all() and (none <= half).all() and (none >= 0).all()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12),
       st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12))  # fmt: skip
def test_intervals(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    """Against sets of whole nanoseconds."""
    sets = [{t for a, n in spans for t in range(a, a + n)} for spans in (first, second)]
    united = [
        Spans.union(np.array([a for a, _ in spans], np.int64),
                    np.array([a + n for a, n in spans], np.int64))
        for spans in (first, second)
    ]  # fmt: skip
    assert [u.length for u in united] == [len(s) for s in sets]
    assert united[0].shared(united[1]) == len(sets[0] & sets[1])


@settings(max_examples=60, deadline=None)
@given(traces())
def test_dependencies_that_follow_from_others_change_nothing(path: Path, made: Maker) -> None:
    """A trace may declare all dependencies, or only those from which the others follow."""
    table = examine(made.write(path)).table
    for kind in table.kinds:
        few, every = (replace(kind, edges=_edges(of(kind))) for of in (_fewest, _closure))
        seen = []
        for one in (few, every):
            graph = graph_of(one, queues_of(one, table.runs))
            critical = critical_path(graph)
            factors = np.random.default_rng(0).uniform(0, 2, (4, len(kind.pieces)))
            looked = list(look(table, one, queues_of(one, table.runs)))
            seen.append([critical.on_path, critical.waiting, critical.tail,
                         makespans(graph, factors),
                         *(getattr(part, name) for part in looked
                           for name in ("gap", "waited", "rest_name"))])  # fmt: skip
        for a, b in zip(*seen, strict=True):
            assert np.array_equal(a, b)


def _edges(pairs: set[tuple[int, int]]) -> I32:
    return np.array(sorted(pairs, key=lambda p: p[::-1]), np.int32).reshape(-1, 2)


def _closure(kind: Kind) -> set[tuple[int, int]]:
    pairs = {(a, b) for a, b in kind.edges.tolist()}
    while more := {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs:
        pairs |= more
    return pairs


def _fewest(kind: Kind) -> set[tuple[int, int]]:
    pairs = _closure(kind)
    return {(a, c) for a, c in pairs if not any((a, b) in pairs and (b, c) in pairs
                                                for b in range(len(kind.pieces)))}  # fmt: skip
