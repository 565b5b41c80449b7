"""The walk as generated code: the same steps as `walk`, word for word, a hundred times as fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from dielet.codegen.function import Function, Module, Pointer, Var
from dielet.codegen.single import single_function
from dielet.codegen.values import I64, PTR, Value
from dielet.errors import InternalError
from dielet.simulator.tasks import BYTE, Tasks, Walk
from dielet.simulator.walk import NEVER

SYMBOL = "simulator_walk"

# The words of the table that the function is given: counts, then addresses of i64 arrays.
INPUTS = (
    "lane_first", "lane_tasks", "setup", "compute", "wait_first", "wait_task", "wait_delay",
    "leg_first", "leg_bytes", "path_first", "path", "capacity",
)  # fmt: skip
OUTPUTS = ("start", "end", "limiter", "cause")  # per task
PER_LANE = ("taken", "free", "last", "running", "event", "begun", "computed", "open")
PER_SLOT = (
    "leg", "work", "rate", "since", "finish", "held_at", "place", "joined", "active", "owner",
)  # fmt: skip
PER_RESOURCE = ("mark", "left", "users")
ARRAYS = (*INPUTS, *OUTPUTS, *PER_LANE, *PER_SLOT, *PER_RESOURCE)
COUNTS = ("lanes", "tasks", "resources", "slots")  # slots: the most legs of any task


def walk_module(fused: bool) -> Module:
    module = Module(fused)
    _Writer(module.function(SYMBOL, [PTR], I64)).write()
    return module


class _Writer:
    """Writes `i64 simulator_walk(ptr table)`: how many tasks never started."""

    def __init__(self, k: Function) -> None:
        self.k = k
        table = Pointer(k.args[0], I64)
        self.lanes, self.tasks, self.resources, self.slots = (table[i] for i in range(len(COUNTS)))
        self.a = {
            name: k.pointer(table[i], I64) for i, name in enumerate(ARRAYS, start=len(COUNTS))
        }
        self.now = k.var(k.i64(0))
        self.remaining = k.var(self.tasks)
        self.freed = k.var(k.i64(1))  # whether a task has ended since lanes were last started
        self.touched = k.var(k.i64(0))
        self.count = k.var(k.i64(0))  # legs under way: `active` lists their slots

    def write(self) -> None:
        k = self.k
        with k.repeat() as again:
            again.until(self.remaining.value <= 0)
            with k.when(self.freed.value.ne(0)):
                self.start_what_can()
            self.now.value = self.earliest()
            again.until(self.now.value.eq(NEVER))
            self.freed.value = 0
            self.touched.value = 0
            with k.loop(self.lanes) as lane, k.when(self.a["event"][lane].eq(self.now.value)):
                self.advance(lane)
            with k.when(self.touched.value.ne(0)):
                self.share()
        k.ret(self.remaining.value)

    def earliest(self) -> Value:
        first = self.k.var(self.k.i64(NEVER))
        with self.k.loop(self.lanes) as lane:
            first.value = self.k.minimum(self.a["event"][lane], first.value)
        return first.value

    def start_what_can(self) -> None:
        k, a = self.k, self.a
        with k.loop(self.lanes) as lane, k.when(a["running"][lane] < 0):
            at = a["lane_first"][lane] + a["taken"][lane]
            with k.when(at < a["lane_first"][lane + 1]):
                task = a["lane_tasks"][at]
                begin, cause = k.var(a["free"][lane]), k.var(a["last"][lane])
                ready = k.var(k.i64(1))
                w, stop = k.var(a["wait_first"][task]), a["wait_first"][task + 1]
                with k.repeat() as again:
                    again.until((w.value >= stop) | ready.value.eq(0))
                    other = a["wait_task"][w.value]
                    end = a["end"][other]
                    ready.value = (end < 0).choose(k.i64(0), ready.value)
                    seen = end + a["wait_delay"][w.value]
                    later = seen > begin.value
                    begin.value = later.choose(seen, begin.value)
                    cause.value = later.choose(other, cause.value)
                    w.value = w.value + 1
                with k.when(ready.value.ne(0)):
                    a["running"][lane], a["begun"][lane] = task, k.i64(0)
                    a["start"][task], a["cause"][task] = begin.value, cause.value
                    a["event"][lane] = begin.value + a["setup"][task]

    def advance(self, lane: Value) -> None:
        k, a, now = self.k, self.a, self.now.value
        task = a["running"][lane]
        with k.when(a["begun"][lane].eq(0)):
            a["begun"][lane] = k.i64(1)
            a["computed"][lane] = now + a["compute"][task]
            first, last = a["leg_first"][task], a["leg_first"][task + 1]
            a["open"][lane] = last - first
            with k.loop(first, last) as leg:
                self.open_leg(lane * self.slots + (leg - first), leg)
        with k.loop(lane * self.slots, (lane + 1) * self.slots) as slot:
            here = (a["leg"][slot] >= 0) & a["finish"][slot].eq(now)
            with k.when(here):
                self.touch(a["leg"][slot])
                a["limiter"][task] = a["held_at"][slot]
                a["open"][lane] = a["open"][lane] - 1
                self.close_leg(slot)
        self.next_event(lane)
        with k.when((a["event"][lane] <= now) & a["open"][lane].eq(0)):
            with k.when(a["computed"][lane].eq(now)):
                a["limiter"][task] = k.i64(-1)
            a["end"][task] = now
            a["free"][lane] = now
            a["last"][lane], a["running"][lane] = task, k.i64(-1)
            a["taken"][lane] = a["taken"][lane] + 1
            a["event"][lane] = k.i64(NEVER)
            self.remaining.value = self.remaining.value - 1
            self.freed.value = 1

    def open_leg(self, slot: Value, leg: Value) -> None:
        k, a = self.k, self.a
        a["leg"][slot] = leg
        a["work"][slot] = a["leg_bytes"][leg] * BYTE
        a["rate"][slot] = k.i64(0)
        a["since"][slot] = self.now.value
        a["finish"][slot] = k.i64(NEVER)
        a["place"][slot] = self.count.value
        a["active"][self.count.value] = slot
        self.count.value = self.count.value + 1
        self.touch(leg)

    def close_leg(self, slot: Value) -> None:
        """Take the slot off the list; the last one of the list takes its place."""
        a = self.a
        self.count.value = self.count.value - 1
        moved, place = a["active"][self.count.value], a["place"][slot]
        a["active"][place] = moved
        a["place"][moved] = place
        a["leg"][slot] = self.k.i64(-1)

    def touch(self, leg: Value) -> None:
        self.touched.value = 1
        with self.resources_of(leg) as r:
            self.a["mark"][r] = self.k.i64(1)

    def resources_of(self, leg: Value) -> AbstractContextManager[Value]:
        return _each(self.k, self.a["path_first"], self.a["path"], leg)

    def next_event(self, lane: Value) -> None:
        k, a = self.k, self.a
        first = k.var(k.i64(NEVER))
        with k.when(a["open"][lane] > 0), k.loop(self.slots) as i:
            slot = lane * self.slots + i
            finish = (a["leg"][slot] < 0).choose(k.i64(NEVER), a["finish"][slot])
            first.value = k.minimum(finish, first.value)
        with k.when(a["open"][lane].eq(0)):
            computed = a["computed"][lane]
            first.value = (computed > self.now.value).choose(computed, self.now.value)
        a["event"][lane] = first.value

    def share(self) -> None:
        k, a = self.k, self.a
        with k.loop(self.count.value) as i:
            a["joined"][a["active"][i]] = k.i64(0)
        unfrozen = k.var(k.i64(0))
        self.connect(unfrozen)
        with k.repeat() as again:
            again.until(unfrozen.value <= 0)
            self.freeze_tightest(unfrozen)
        with k.loop(self.resources) as r:
            a["mark"][r] = a["left"][r] = a["users"][r] = k.i64(0)

    def connect(self, unfrozen: Var) -> None:
        """joined = 1 for every leg that hangs together with a marked resource."""
        k, a = self.k, self.a
        more = k.var(k.i64(1))
        with k.repeat() as again:
            again.until(more.value.eq(0))
            more.value = 0
            with k.loop(self.count.value) as i:
                slot = a["active"][i]
                with k.when(a["joined"][slot].eq(0)):
                    hit = k.var(k.i64(0))
                    with self.resources_of(a["leg"][slot]) as r:
                        hit.value = hit.value | a["mark"][r]
                    with k.when(hit.value.ne(0)):
                        more.value = 1
                        a["joined"][slot] = k.i64(1)
                        unfrozen.value = unfrozen.value + 1
                        with self.resources_of(a["leg"][slot]) as r:
                            a["mark"][r] = k.i64(1)
                            a["users"][r] = a["users"][r] + 1
                            a["left"][r] = a["capacity"][r]

    def freeze_tightest(self, unfrozen: Var) -> None:
        """Of the resources in use find the one with the smallest share; its legs get that."""
        k, a = self.k, self.a
        best, share = k.var(k.i64(-1)), k.var(k.i64(NEVER))
        with k.loop(self.resources) as r, k.when(a["users"][r] > 0):
            # Division is unsigned; what is left may be below zero when shares of 1 were forced.
            left = (a["left"][r] < 0).choose(k.i64(0), a["left"][r])
            each = left // a["users"][r]
            tighter = each < share.value
            best.value = tighter.choose(r, best.value)
            share.value = tighter.choose(each, share.value)
        rate = (share.value < 1).choose(k.i64(1), share.value)
        with k.loop(self.count.value) as i:
            slot = a["active"][i]
            with k.when(a["joined"][slot].eq(1)):
                uses = k.var(k.i64(0))
                with self.resources_of(a["leg"][slot]) as r:
                    uses.value = r.eq(best.value).choose(k.i64(1), uses.value)
                with k.when(uses.value.ne(0)):
                    a["joined"][slot] = k.i64(2)
                    a["held_at"][slot] = best.value
                    unfrozen.value = unfrozen.value - 1
                    with self.resources_of(a["leg"][slot]) as r:
                        a["left"][r] = a["left"][r] - rate
                        a["users"][r] = a["users"][r] - 1
                    self.set_rate(slot, rate)

    def set_rate(self, slot: Value, rate: Value) -> None:
        k, a, now = self.k, self.a, self.now.value
        old = a["rate"][slot]
        with k.when(old.ne(rate)):
            work = a["work"][slot] - old * (now - a["since"][slot])
            a["work"][slot], a["rate"][slot], a["since"][slot] = work, rate, now
            a["finish"][slot] = now + (work + rate - 1) // rate
        self.next_event(a["owner"][slot])


@contextmanager
def _each(k: Function, first: Pointer, items: Pointer, row: Value) -> Iterator[Value]:
    """Loop over the entries of one row of a ragged table."""
    with k.loop(first[row], first[row + 1]) as i:
        yield items[i]


def _function() -> Callable[[int], int]:
    return single_function(SYMBOL, __file__, walk_module)


def walk(tasks: Tasks) -> Walk:
    """Run all tasks.  Raises InternalError when some wait for each other."""
    n, resources = len(tasks), len(tasks.capacity)
    arrays = {name: getattr(tasks, name) for name in INPUTS[2:]}
    arrays["lane_tasks"] = np.argsort(tasks.lane, kind="stable").astype(np.int64)
    counts = np.bincount(tasks.lane, minlength=tasks.lanes)
    arrays["lane_first"] = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    slots = int(np.diff(tasks.leg_first).max(initial=0))
    sizes = {
        OUTPUTS: n,
        PER_LANE: tasks.lanes,
        PER_SLOT: tasks.lanes * slots,
        PER_RESOURCE: resources,
    }
    for names, size in sizes.items():
        arrays |= {name: np.zeros(max(size, 1), np.int64) for name in names}
    for name in ("end", "limiter", "cause", "last", "running", "leg"):
        arrays[name].fill(-1)
    arrays["event"].fill(NEVER)
    arrays["owner"] = np.repeat(np.arange(tasks.lanes, dtype=np.int64), slots)
    addresses = [arrays[name].ctypes.data for name in ARRAYS]
    table = np.array([tasks.lanes, n, resources, slots, *addresses], np.int64)
    left = _function()(table.ctypes.data)
    if left:
        raise InternalError(f"{left} tasks wait for each other")
    return Walk(*(arrays[name][:n] for name in OUTPUTS))
