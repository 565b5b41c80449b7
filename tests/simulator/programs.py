"""Random tasks for hypothesis: any waits that point back, any legs, any rates."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from dielet.simulator.tasks import Task, Tasks, make_tasks

LANES, RESOURCES = 4, 3


@dataclass(frozen=True)
class Case:
    tasks: list[Task]
    rates: list[int]

    def made(self, rates: list[int] | None = None) -> Tasks:
        return make_tasks(self.tasks, rates or self.rates, LANES)


@st.composite
def cases(draw: st.DrawFn, most: int = 14) -> Case:
    legs = st.tuples(
        st.integers(1, 5000),
        st.lists(st.integers(0, RESOURCES - 1), min_size=1, max_size=2, unique=True),
    )
    tasks = []
    for number in range(draw(st.integers(1, most))):
        back = st.tuples(st.integers(0, max(number - 1, 0)), st.sampled_from([0, 11, 300]))
        tasks.append(
            Task(
                lane=draw(st.integers(0, LANES - 1)),
                setup=draw(st.sampled_from([0, 0, 40, 700])),
                compute=draw(st.sampled_from([0, 0, 900, 100_000, 2_000_000])),
                legs=draw(st.lists(legs, max_size=6)),
                waits=draw(st.lists(back, max_size=2)) if number else [],
            )
        )
    rates = st.sampled_from([10**9, 3 * 10**9, 7 * 10**10])
    return Case(tasks, draw(st.lists(rates, min_size=RESOURCES, max_size=RESOURCES)))
