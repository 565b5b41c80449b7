"""The walk against closed forms, exact to the picosecond, in Python and as generated code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dielet.errors import InternalError
from dielet.simulator import native, walk
from dielet.simulator.tasks import MAX_LEG_BYTES, Task, Tasks, Walk, make_tasks

WALKS = {"python": walk.walk, "native": native.walk}
GB = 10**9  # bytes per second: a byte per nanosecond


@pytest.fixture(params=WALKS)
def run(request: pytest.FixtureRequest) -> Callable[[Tasks], Walk]:
    return WALKS[request.param]


def times(found: Walk) -> list[tuple[int, int]]:
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


def test_one_transfer(run: Callable[[Tasks], Walk]) -> None:
    task = Task(0, setup=500_000, legs=[(4096, [0, 1])])
    found = run(make_tasks([task], [8 * GB, 2 * GB], 1))
    assert times(found) == [(0, 500_000 + 4096 * 1000 // 2)]
    assert found.limiter.tolist() == [1] and found.cause.tolist() == [-1]


def test_a_time_that_is_no_whole_number_is_rounded_up(run: Callable[[Tasks], Walk]) -> None:
    found = run(make_tasks([Task(0, legs=[(1, [0])])], [3 * GB], 1))
    assert times(found) == [(0, 334)]


def test_two_share_a_link_and_the_one_that_is_left_has_it_alone(
    run: Callable[[Tasks], Walk],
) -> None:
    tasks = [Task(0, legs=[(1000, [0])]), Task(1, legs=[(3000, [0])])]
    # Half each until 2000 ns, then 2000 bytes remain at the full rate.
    assert times(run(make_tasks(tasks, [GB], 2))) == [(0, 2_000_000), (0, 4_000_000)]


def test_shares_are_max_min_fair(run: Callable[[Tasks], Walk]) -> None:
    # A narrow link holds the first to 1; the other two share what it leaves of the wide one.
    tasks = [
        Task(0, legs=[(1000, [0, 1])]),
        Task(1, legs=[(4500, [1])]),
        Task(2, legs=[(4500, [1])]),
    ]
    found = run(make_tasks(tasks, [GB, 10 * GB], 3))
    assert times(found) == [(0, 1_000_000)] * 3
    assert found.limiter.tolist() == [0, 1, 1]


def test_a_late_comer_takes_its_share(run: Callable[[Tasks], Walk]) -> None:
    tasks = [Task(0, legs=[(3000, [0])]), Task(1, setup=1_000_000, legs=[(1000, [0])])]
    # Alone for 1000 ns; then half each: the second needs 2000 ns, the first has 1000 left by then.
    assert times(run(make_tasks(tasks, [GB], 2))) == [(0, 4_000_000), (0, 3_000_000)]


def test_a_chain_adds_up_with_the_delays_of_its_signals(run: Callable[[Tasks], Walk]) -> None:
    tasks = [Task(i % 3, 10, 100, waits=[(i - 1, 7)] if i else []) for i in range(6)]
    found = run(make_tasks(tasks, [], 3))
    assert found.end.tolist() == [110 + i * 117 for i in range(6)]
    assert found.cause.tolist() == [-1, 0, 1, 2, 3, 4]


def test_a_queue_is_in_order(run: Callable[[Tasks], Walk]) -> None:
    # The second task of lane 0 could run at once, but the one before it waits.
    tasks = [Task(1, compute=50), Task(0, compute=5, waits=[(0, 0)]), Task(0, compute=5)]
    assert times(run(make_tasks(tasks, [], 2))) == [(0, 50), (50, 55), (55, 60)]


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
@pytest.mark.parametrize(("load", "work"), [(100, 100), (100, 30), (30, 100)])
def test_a_pipeline_with_slots(run: Callable[[Tasks], Walk], slots: int, load: int, work: int):
    """Loads fill slots that computations free: one slot alternates, two or more overlap."""
    n = 10
    tasks = []
    for i in range(n):
        freed = [(2 * (i - slots) + 1, 0)] if i >= slots else []
        tasks.append(Task(0, legs=[(load, [0])], waits=freed))
        tasks.append(Task(1, compute=1000 * work, waits=[(2 * i, 0)]))
    end = int(run(make_tasks(tasks, [GB], 2)).end.max())
    if slots == 1:
        assert end == 1000 * n * (load + work)
    else:
        assert end == 1000 * (load + work + (n - 1) * max(load, work))


def test_a_barrier(run: Callable[[Tasks], Walk]) -> None:
    before = [Task(lane, compute=10 * (lane + 1)) for lane in range(4)]
    after = [Task(lane, compute=5, waits=[(i, 3) for i in range(4)]) for lane in range(4)]
    found = run(make_tasks(before + after, [], 4))
    assert found.start[4:].tolist() == [43] * 4


@pytest.mark.parametrize(("ops", "bound"), [(999, "memory"), (1000, "compute"), (4000, "compute")])
def test_a_roofline_point_on_each_side_of_the_ridge(
    run: Callable[[Tasks], Walk], ops: int, bound: str
) -> None:
    """1000 bytes at a byte per ns against `ops` operations at one per ns: the ridge is at 1000."""
    found = run(make_tasks([Task(0, compute=ops * 1000, legs=[(1000, [0])])], [GB], 1))
    assert times(found) == [(0, 1000 * max(ops, 1000))]
    assert found.limiter.tolist() == [-1 if bound == "compute" else 0]


def test_legs_of_one_task_share_too(run: Callable[[Tasks], Walk]) -> None:
    task = Task(0, legs=[(1000, [0]), (1000, [0]), (1000, [1])])
    found = run(make_tasks([task], [GB, GB], 1))
    assert times(found) == [(0, 2_000_000)] and found.limiter.tolist() == [0]


def test_nothing_to_do(run: Callable[[Tasks], Walk]) -> None:
    assert len(run(make_tasks([], [], 2)).end) == 0
    assert times(run(make_tasks([Task(0), Task(1, waits=[(0, 0)])], [], 2))) == [(0, 0), (0, 0)]


def test_tasks_that_wait_for_each_other_are_an_error(run: Callable[[Tasks], Walk]) -> None:
    tasks = [Task(0, waits=[(1, 0)]), Task(1, waits=[(0, 0)]), Task(2)]
    with pytest.raises(InternalError, match="2 tasks wait for each other"):
        run(make_tasks(tasks, [], 3))


def test_impossible_legs_are_refused() -> None:
    for leg in ((0, [0]), (1, []), (MAX_LEG_BYTES + 1, [0])):
        with pytest.raises(InternalError, match="cannot be"):
            make_tasks([Task(0, legs=[leg])], [GB], 1)


def test_any_number_of_legs(run: Callable[[Tasks], Walk]) -> None:
    """Nine share one memory, beside a lane that has one of them and one that has none."""
    tasks = [Task(1, legs=[(1000, [0])] * 9), Task(0, legs=[(1000, [0])]), Task(2, compute=7)]
    found = run(make_tasks(tasks, [GB], 3))
    assert times(found) == [(0, 10_000_000), (0, 10_000_000), (0, 7)]


def test_the_largest_leg_does_not_overflow(run: Callable[[Tasks], Walk]) -> None:
    found = run(make_tasks([Task(0, legs=[(MAX_LEG_BYTES, [0])])] * 2, [GB], 1))
    assert np.diff(found.end).tolist() == [MAX_LEG_BYTES * 1000]
