"""The walk through tasks in time, in plain Python: what `native` generates, and is tested against.

All times are whole picoseconds.  Everything that happens at one instant is taken together before
shares are dealt anew, and no decision depends on anything but times, lanes and resources.
"""

from __future__ import annotations

import numpy as np

from dielet.errors import InternalError
from dielet.simulator.tasks import BYTE, Tasks, Walk

NEVER = 1 << 62


class _Leg:
    """A transfer under way: what is left of it, how fast it goes, when it will be over."""

    def __init__(self, lane: int, work: int, path: list[int], since: int) -> None:
        self.lane, self.work, self.path, self.since = lane, work, path, since
        self.rate = 0
        self.finish = NEVER
        self.limiter = path[0]


class _Walker:
    def __init__(self, tasks: Tasks) -> None:
        n = len(tasks)
        self.tasks = tasks
        self.capacity = [int(c) for c in tasks.capacity]
        self.queue: list[list[int]] = [[] for _ in range(tasks.lanes)]
        for task, lane in enumerate(tasks.lane):
            self.queue[lane].append(task)
        self.taken = [0] * tasks.lanes
        self.free = [0] * tasks.lanes  # when the lane's last task ended
        self.last = [-1] * tasks.lanes
        self.running: list[int] = [-1] * tasks.lanes
        self.event = [NEVER] * tasks.lanes  # when the lane's state changes next
        self.begun = [False] * tasks.lanes
        self.computed = [0] * tasks.lanes
        self.legs: list[list[_Leg]] = [[] for _ in range(tasks.lanes)]
        self.start, self.end = [0] * n, [-1] * n
        self.limiter, self.cause = [-1] * n, [-1] * n

    def walk(self) -> Walk:
        remaining = len(self.tasks)
        while remaining:
            self._start_what_can()
            now = min(self.event)
            if now == NEVER:
                raise InternalError(f"{remaining} tasks wait for each other")
            touched: set[int] = set()
            for lane in range(self.tasks.lanes):
                if self.event[lane] == now:
                    remaining -= self._advance(lane, now, touched)
            if touched:
                self._share(now, touched)
        columns = (self.start, self.end, self.limiter, self.cause)
        return Walk(*(np.array(column, np.int64) for column in columns))

    def _start_what_can(self) -> None:
        t = self.tasks
        for lane, queue in enumerate(self.queue):
            if self.running[lane] >= 0 or self.taken[lane] == len(queue):
                continue
            task = queue[self.taken[lane]]
            begin, cause = self.free[lane], self.last[lane]
            for w in range(t.wait_first[task], t.wait_first[task + 1]):
                other = int(t.wait_task[w])
                if self.end[other] < 0:
                    break
                seen = self.end[other] + int(t.wait_delay[w])
                if seen > begin:
                    begin, cause = seen, other
            else:
                self.running[lane], self.begun[lane] = task, False
                self.start[task], self.cause[task] = begin, cause
                self.event[lane] = begin + int(t.setup[task])

    def _advance(self, lane: int, now: int, touched: set[int]) -> int:
        """Let the lane's next thing happen: its legs begin, or some end.  1 if its task ended."""
        t, task = self.tasks, self.running[lane]
        if not self.begun[lane]:
            self.begun[lane] = True
            self.computed[lane] = now + int(t.compute[task])
            for number in range(t.leg_first[task], t.leg_first[task + 1]):
                path = [int(r) for r in t.path[t.path_first[number] : t.path_first[number + 1]]]
                self.legs[lane].append(_Leg(lane, int(t.leg_bytes[number]) * BYTE, path, now))
                touched.update(path)
        for leg in [leg for leg in self.legs[lane] if leg.finish == now]:
            self.legs[lane].remove(leg)
            touched.update(leg.path)
            self.limiter[task] = leg.limiter
        self._next_event(lane, now)
        if self.event[lane] > now or self.legs[lane]:
            return 0
        if self.computed[lane] == now:
            self.limiter[task] = -1
        self.end[task] = self.free[lane] = now
        self.last[lane], self.running[lane] = task, -1
        self.taken[lane] += 1
        self.event[lane] = NEVER
        return 1

    def _next_event(self, lane: int, now: int) -> None:
        if self.legs[lane]:
            self.event[lane] = min(leg.finish for leg in self.legs[lane])
        else:
            self.event[lane] = max(now, self.computed[lane])

    def _share(self, now: int, touched: set[int]) -> None:
        """Deal the bandwidths anew among all legs that hang together with `touched`."""
        legs = self._connected(touched)
        left = {r: self.capacity[r] for leg in legs for r in leg.path}
        users = {r: sum(leg.path.count(r) for leg in legs) for r in left}
        rates: dict[_Leg, int] = {}
        while len(rates) < len(legs):
            tightest = min((r for r in users if users[r]), key=lambda r: (left[r] // users[r], r))
            share = max(1, left[tightest] // users[tightest])
            for leg in legs:
                if leg not in rates and tightest in leg.path:
                    rates[leg] = share
                    leg.limiter = tightest
                    for r in leg.path:
                        left[r] -= share
                        users[r] -= 1
        for leg, rate in rates.items():
            if rate != leg.rate:
                leg.work -= leg.rate * (now - leg.since)
                leg.rate, leg.since = rate, now
                leg.finish = now + -(-leg.work // rate)
        for lane in {leg.lane for leg in legs}:
            self._next_event(lane, now)

    def _connected(self, touched: set[int]) -> list[_Leg]:
        """The legs that use a touched resource, or one that such a leg uses, and so on."""
        rest = [leg for legs in self.legs for leg in legs]
        found: list[_Leg] = []
        while True:
            more = [leg for leg in rest if not touched.isdisjoint(leg.path)]
            if not more:
                return found
            found += more
            rest = [leg for leg in rest if leg not in more]
            touched.update(r for leg in more for r in leg.path)


def walk(tasks: Tasks) -> Walk:
    """Run all tasks.  Raises InternalError when some wait for each other."""
    return _Walker(tasks).walk()
