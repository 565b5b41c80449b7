"""Laws that hold for every set of tasks, and a second opinion from simpy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from dielet.simulator import native, walk
from dielet.simulator.tasks import Task, make_tasks
from tests.simulator.programs import LANES, RESOURCES, Case, cases


def alone(task: Task, rates: list[int]) -> int:
    """How long the task would take with everything to itself, rounded down."""
    floors = [task.compute]
    for r in range(RESOURCES):
        for nbytes, path in task.legs:
            if r in path:
                floors.append(nbytes * 10**12 // rates[r])
    return task.setup + max(floors)


@given(cases())
def test_generated_code_walks_like_python(case: Case) -> None:
    a, b = walk.walk(case.made()), native.walk(case.made())
    for name in ("start", "end", "limiter", "cause"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@given(cases())
def test_waits_and_queues_are_kept(case: Case) -> None:
    found = native.walk(case.made())
    free = [0] * LANES
    for number, task in enumerate(case.tasks):
        begin = max([free[task.lane], *(int(found.end[w]) + d for w, d in task.waits)])
        assert found.start[number] == begin
        free[task.lane] = int(found.end[number])


@given(cases())
def test_never_faster_than_the_critical_path_or_the_roofline(case: Case) -> None:
    found = native.walk(case.made())
    finish: list[int] = []
    free = [0] * LANES
    for number, task in enumerate(case.tasks):
        shortest = alone(task, case.rates)
        assert found.end[number] - found.start[number] >= shortest
        begin = max([free[task.lane], *(finish[w] + d for w, d in task.waits)])
        finish.append(begin + shortest)
        free[task.lane] = finish[-1]
    end = int(found.end.max())
    assert end >= max(finish)
    for r in range(RESOURCES):
        nbytes = sum(n for task in case.tasks for n, path in task.legs if r in path)
        assert end >= nbytes * 10**12 // case.rates[r]


@given(cases(), st.integers(0, RESOURCES - 1), st.sampled_from([2, 10]))
def test_more_bandwidth_never_hurts_beyond_the_anomaly_of_list_schedules(
    case: Case, resource: int, factor: int
) -> None:
    """Graham: making one thing faster can lengthen a schedule, but never to twice its length."""
    before = int(native.walk(case.made()).end.max())
    rates = [rate * (factor if r == resource else 1) for r, rate in enumerate(case.rates)]
    after = int(native.walk(case.made(rates)).end.max())
    assert after <= 2 * before
    everything = int(native.walk(case.made([rate * factor for rate in case.rates])).end.max())
    assert everything <= 2 * before


@given(cases())
def test_without_sharing_faster_engines_never_hurt(case: Case) -> None:
    """With no resource in common there is no anomaly at all: every task ends no later."""
    private = [
        Task(t.lane, t.setup, t.compute, [(n, [t.lane]) for n, _ in t.legs[:1]], t.waits)
        for t in case.tasks
    ]
    faster = [Task(t.lane, t.setup // 2, t.compute // 2, t.legs, t.waits) for t in private]
    slow = native.walk(make_tasks(private, [10**9] * LANES, LANES))
    fast = native.walk(make_tasks(faster, [2 * 10**9] * LANES, LANES))
    assert (fast.end <= slow.end).all()


@given(cases(), st.randoms(use_true_random=False))
def test_declaring_independent_tasks_in_another_order_changes_nothing(
    case: Case, rng: random.Random
) -> None:
    """Any order that keeps each lane's own: the same times for the same tasks."""
    pending = [[n for n, t in enumerate(case.tasks) if t.lane == lane] for lane in range(LANES)]
    order: list[int] = []
    while any(pending):
        order.append(rng.choice([p for p in pending if p]).pop(0))
    number = {old: new for new, old in enumerate(order)}
    moved = [
        Task(t.lane, t.setup, t.compute, t.legs, [(number[w], d) for w, d in t.waits])
        for t in (case.tasks[old] for old in order)
    ]
    a, b = native.walk(case.made()), native.walk(make_tasks(moved, case.rates, LANES))
    np.testing.assert_array_equal(a.start[order], b.start)
    np.testing.assert_array_equal(a.end[order], b.end)
    np.testing.assert_array_equal(a.limiter[order], b.limiter)


@given(cases(8))
def test_a_replay_is_the_simulation_moved_in_time(case: Case) -> None:
    """The same tasks once more, after a barrier: each runs as the first time, only later."""
    n = len(case.tasks)
    barrier = [Task(lane, waits=[(i, 0) for i in range(n)]) for lane in range(LANES)]
    again = [
        Task(t.lane, t.setup, t.compute, t.legs, [(n + LANES + w, d) for w, d in t.waits])
        for t in case.tasks
    ]
    once = native.walk(case.made())
    twice = native.walk(make_tasks([*case.tasks, *barrier, *again], case.rates, LANES))
    shift = int(once.end.max())
    np.testing.assert_array_equal(twice.start[n + LANES :], once.start + shift)
    np.testing.assert_array_equal(twice.end[n + LANES :], once.end + shift)


class SimpyModel:
    """The same rules written as simpy processes, with exact fractions for the shares."""

    def __init__(self, case: Case) -> None:
        self.env = simpy.Environment()
        self.case = case
        self.ended = [self.env.event() for _ in case.tasks]
        self.end = [Fraction(0)] * len(case.tasks)
        self.flows: dict[int, list[Any]] = {}  # id -> [bytes left, path, done event]
        self.since = Fraction(0)
        self.changed = self.env.event()
        self.env.process(self.network())
        for lane in range(LANES):
            mine = [n for n, t in enumerate(case.tasks) if t.lane == lane]
            self.env.process(self.queue(mine))

    def run(self) -> list[float]:
        self.env.run(self.env.all_of(self.ended))
        return [float(end) for end in self.end]

    def queue(self, mine: list[int]) -> Iterator[Any]:
        for number in mine:
            task = self.case.tasks[number]
            for other, delay in task.waits:
                yield self.ended[other]
                seen = self.end[other] + delay
                if seen > self.env.now:
                    yield self.env.timeout(seen - self.env.now)
            yield self.env.timeout(task.setup)
            parts = [self.env.timeout(task.compute)]
            for nbytes, path in task.legs:
                done = self.env.event()
                self.flows[len(self.flows)] = [Fraction(nbytes), path, done]
                parts.append(done)
            self.poke()
            yield self.env.all_of(parts)
            self.end[number] = Fraction(self.env.now)
            self.ended[number].succeed()

    def poke(self) -> None:
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    def network(self) -> Iterator[Any]:
        """Wait for the next change or end of a flow; between two of them all rates are fixed."""
        while True:
            open_ = {i: flow for i, flow in self.flows.items() if flow[0] > 0}
            rates = self.rates(open_)
            first = min((open_[i][0] / rates[i] for i in open_), default=None)
            begun = Fraction(self.env.now)
            waits: list[Any] = [self.changed]
            if first is not None:
                waits.append(self.env.timeout(first))
            yield self.env.any_of(waits)
            for i, flow in open_.items():
                flow[0] -= rates[i] * (Fraction(self.env.now) - begun)
                if flow[0] <= 0:
                    flow[0] = Fraction(0)
                    flow[2].succeed()

    def rates(self, open_: dict[int, list[Any]]) -> dict[int, Fraction]:
        """Bytes per ps of every flow: raise all together, stop those that meet a full resource."""
        found: dict[int, Fraction] = {}
        left = {r: Fraction(rate, 10**12) for r, rate in enumerate(self.case.rates)}
        while len(found) < len(open_):
            rest = [i for i in open_ if i not in found]
            shares = {
                r: left[r] / users for r in left if (users := sum(r in open_[i][1] for i in rest))
            }
            tight = min(shares, key=lambda r: (shares[r], r))
            for i in rest:
                if tight in open_[i][1]:
                    found[i] = shares[tight]
                    for r in open_[i][1]:
                        left[r] -= shares[tight]
        return found


@settings(max_examples=40, deadline=None)
@given(cases(8))
def test_simpy_gives_the_same_times(case: Case) -> None:
    """To the picoseconds that rounding each event up to a whole one may add."""
    expected = SimpyModel(case).run()
    found = native.walk(case.made()).end.tolist()
    slack = 8 * len(case.tasks)
    for a, b in zip(expected, found, strict=True):
        assert a <= b + slack and b <= a * (1 + 1e-6) + slack
