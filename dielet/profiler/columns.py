"""The events of a trace as they are read: collected in parts, then put together as slices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dielet.errors import DamagedFile
from dielet.profiler import perfetto as p
from dielet.profiler.scan import FIXED64, Buffer, Group, Hole, Shapes, fields

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]

EVENT = (p.TRACK_EVENT,)
LIFE_SHIFT = 40  # a text's number, and above it the life of its sequence's state
INLINE = -1  # less these: the text stood in the event itself
_ENTRIES = Shapes(set(), set(), {})
FLOW_FIELDS = (p.FLOW, p.TERMINATING_FLOW, p.OLD_FLOW, p.OLD_TERMINATING_FLOW)


class Texts:
    """Texts by what they say, and by the numbers that sequences give them."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._tables: dict[int, dict[int, int]] = {kind: {} for kind in p.TEXT_KINDS}
        self._many: dict[int, list[tuple[I64, I32]]] = {kind: [] for kind in p.TEXT_KINDS}

    @cached_property
    def known(self) -> list[str]:
        """All texts by number, once they have all been defined."""
        return [text.decode(errors="replace") for text in self._numbers]

    def number(self, text: bytes) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def define(self, kind: int, life: int, entry: bytes) -> None:
        """An interned entry {iid, text} of a sequence's life."""
        parts = dict(fields(entry))
        iid, text = parts.get(1, 0), parts.get(2, b"")
        if isinstance(iid, int) and isinstance(text, bytes):
            self._tables[kind].setdefault(life << LIFE_SHIFT | iid, self.number(text))

    def define_all(self, kind: int, data: Buffer, starts: I64, lengths: I64, lives: I64) -> None:
        """Many interned entries, in place in `data`."""
        for group in _ENTRIES.groups(data, starts, lengths):
            iid, text = group.find(1), group.find(2)
            if iid is None or text is None:
                continue
            keys = lives[group.places] << LIFE_SHIFT | group.numbers(iid).astype(np.int64)
            known = self._numbers
            numbers = [known.setdefault(value, len(known)) for value in group.texts(text)]
            self._many[kind].append((keys, np.array(numbers, np.int32)))

    def find(self, kind: int, keys: I64) -> I32:
        """Numbers of the texts that `keys` stand for; -1 where there is none."""
        out = np.full(len(keys), -1, np.int32)
        inline = keys < INLINE
        out[inline] = INLINE - 1 - keys[inline]
        table = self._tables[kind]
        parts = [
            (np.fromiter(table, np.int64), np.fromiter(table.values(), np.int32)),
            *self._many[kind],
        ]
        known = np.concatenate([part[0] for part in parts])
        texts = np.concatenate([part[1] for part in parts])
        if len(known) and (low := int(known.min())) > int(known.max()) - 4 * len(known) - 1024:
            table_of = np.full(int(known.max()) - low + 1, -1, np.int32)  # numbers without gaps
            table_of[known[::-1] - low] = texts[::-1]
            inside = (keys >= low) & (keys - low < len(table_of))
            out[inside] = table_of[keys[inside] - low]
        elif len(known):
            order = np.argsort(known, kind="stable")
            known, texts = known[order], texts[order]
            at = np.clip(np.searchsorted(known, keys), 0, len(known) - 1)
            found = (known[at] == keys) & ~inline
            out[found] = texts[at[found]]
        return out


@dataclass(frozen=True)
class Slices:
    """Slices in order of start, and for the packet of each event the slice it belongs to."""

    track: U64
    start: I64
    duration: I64
    name: I32
    category: I32
    stray: int
    of_packet: I64  # by number of the packet: the slice, or -1


class Events:
    """Columns of track events."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[np.generic]]] = defaultdict(list)
        self._flows: list[tuple[I64, U64]] = []
        self._counters: dict[int, list[tuple[I64, NDArray[np.float64]]]] = defaultdict(list)
        self._arguments: dict[
            tuple[int, int | bytes, int], list[tuple[I64, NDArray[np.generic]]]
        ] = defaultdict(list)
        self._default_tracks: dict[int, int] = {}

    def default_track(self, life: int, uuid: int) -> None:
        self._default_tracks[life] = uuid

    def add(self, group: Group, packets: I64, lives: I64, texts: Texts) -> None:
        """The events of one shape; `packets`: their numbers in the trace."""
        kind = self._constant(group, p.TYPE)
        time = group.find(p.TIMESTAMP)
        if time is None or kind not in (p.BEGIN, p.END, p.INSTANT, p.COUNTER):
            return  # an engine would ignore it too
        times = group.numbers(time).astype(np.int64)
        track = self._tracks(group, lives)
        if kind == p.COUNTER:
            self._add_counter(group, track, times)
            return
        count = len(packets)
        for name, column in (
            ("packet", packets),
            ("time", times),
            ("kind", np.full(count, kind, np.int8)),
            ("track", track),
            ("name", self._key(group, lives, p.NAME, p.NAME_TEXT, texts)),
            ("category", self._key(group, lives, p.CATEGORY, p.CATEGORY_TEXT, texts)),
        ):
            self._parts[name].append(column)
        for hole in group.holes:
            if hole.path[:1] == EVENT and len(hole.path) == 2 and hole.path[1] in FLOW_FIELDS:
                self._flows.append((packets, group.numbers(hole)))
            elif hole.path[:2] == (*EVENT, p.ANNOTATION) and len(hole.path) == 3:
                self._add_argument(group, packets, lives, hole, texts)

    def slices(self, texts: Texts, packets: int) -> Slices:
        """Pair beginnings with ends: on each track the innermost slice ends first.

        packets: how many there are in all.
        """
        order = self._by_track(packets)
        packet, time, kind, name, category = (
            self._column(key)[order] for key in ("packet", "time", "kind", "name", "category")
        )
        track = self._column("track")[order].astype(np.uint64)
        begins = (kind == p.BEGIN) | (kind == p.INSTANT)
        partner, stray = _pairs(track, kind)
        if stray:
            _check_ends(track, kind, time, packet, partner)
        number = np.full(len(packet), -1, np.int64)
        first = np.flatnonzero(begins)
        in_file = np.full(packets, -1, np.int64)
        in_file[packet[first]] = first
        by_start = in_file[in_file >= 0]
        if (np.diff(time[by_start]) < 0).any():
            by_start = by_start[np.argsort(time[by_start], kind="stable")]
        number[by_start] = np.arange(len(by_start))
        ended = np.flatnonzero((kind == p.END) & (partner >= 0))
        duration = np.full(len(packet), -1, np.int64)
        duration[partner[ended]] = time[ended] - time[partner[ended]]
        duration[kind == p.INSTANT] = 0
        number[ended] = number[partner[ended]]
        of_packet = np.full(packets, -1, np.int64)
        of_packet[packet] = number
        return Slices(
            track=track[by_start],
            start=time[by_start],
            duration=duration[by_start],
            name=texts.find(p.NAMES, name[by_start]),
            category=texts.find(p.CATEGORIES, category[by_start]),
            stray=stray,
            of_packet=of_packet,
        )

    def _by_track(self, packets: int) -> I64:
        """The order of events by track, on each by time, and of equal times as in the file."""
        packet, time = self._column("packet"), self._column("time")
        places = np.full(packets, -1, np.int64)
        places[packet] = np.arange(len(packet))
        order = places[places >= 0]
        if (np.diff(time[order]) < 0).any():
            order = order[np.argsort(time[order], kind="stable")]
        uuids, track = np.unique(self._column("track"), return_inverse=True)
        small = track.astype(np.uint16 if len(uuids) < 1 << 16 else np.int64)
        return order[np.argsort(small[order], kind="stable")]

    def _column(self, key: str) -> NDArray[np.int64]:
        parts = self._parts[key]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def flows(self, slices: Slices) -> I64:
        """int64 [n, 2]: the slices that each flow joins, in order of their starts."""
        if not self._flows:
            return np.zeros((0, 2), np.int64)
        ids = np.concatenate([numbers for _, numbers in self._flows])
        at = slices.of_packet[np.concatenate([packets for packets, _ in self._flows])]
        ids, at = ids[at >= 0], at[at >= 0]
        count = max(len(slices.start), 1)
        if len(ids) and int(ids.max()) < (1 << 63) // count - 1:
            both = np.sort(ids.astype(np.int64) * count + at)  # one sort of numbers, not of places
            ids, at = np.divmod(both, count)
        else:
            order = np.lexsort((at, ids))
            ids, at = ids[order], at[order]
        joined = np.flatnonzero((ids[1:] == ids[:-1]) & (at[1:] != at[:-1]))
        return np.stack([at[joined], at[joined + 1]], axis=1)

    def counters(self) -> dict[int, tuple[I64, NDArray[np.float64]]]:
        """By track: times and values, in order of time."""
        out = {}
        for uuid, parts in self._counters.items():
            times = np.concatenate([part[0] for part in parts])
            values = np.concatenate([part[1] for part in parts])
            order = np.argsort(times, kind="stable")
            out[uuid] = times[order], values[order]
        return out

    def arguments(
        self, texts: Texts, slices: Slices
    ) -> dict[str, tuple[I64, NDArray[np.generic], bool]]:
        """By key: slices, values, and whether those are numbers of texts."""
        found: dict[tuple[str, bool], list[tuple[I64, NDArray[np.generic]]]] = defaultdict(list)
        known = texts.known
        for (life, key, value), parts in self._arguments.items():
            is_text = value in (p.STRING, p.STRING_TEXT)
            name = key.decode(errors="replace") if isinstance(key, bytes) else ""
            if isinstance(key, int):
                (number,) = texts.find(p.KEYS, np.array([life << LIFE_SHIFT | key])).tolist()
                name = known[number] if number >= 0 else ""
            for packets, values in parts:
                if is_text:
                    values = texts.find(p.STRINGS, values.astype(np.int64))
                found[name, is_text].append((slices.of_packet[packets], values))
        out = {}
        for (name, is_text), columns in found.items():
            whole = np.zeros(len(slices.start), np.result_type(*(column[1] for column in columns)))
            there = np.zeros(len(slices.start), bool)
            for at, values in columns:
                mine = at >= 0  # not of an end that nothing began
                whole[at[mine]], there[at[mine]] = values[mine], True
            found_at = np.flatnonzero(there)
            out[name] = found_at, whole[found_at], is_text
        return out

    def _tracks(self, group: Group, lives: I64) -> U64:
        hole = group.find(*EVENT, p.TRACK)
        if hole is not None:
            return group.numbers(hole)
        return np.array([self._default_tracks.get(life, 0) for life in lives.tolist()], np.uint64)

    def _add_counter(self, group: Group, track: U64, times: I64) -> None:
        if hole := group.find(*EVENT, p.COUNTER_DOUBLE):
            values = group.numbers(hole).view(np.float64)
        elif hole := group.find(*EVENT, p.COUNTER_INT):
            values = group.numbers(hole).astype(np.int64).astype(np.float64)
        else:
            return
        for uuid in np.unique(track).tolist():
            mine = track == uuid
            self._counters[uuid].append((times[mine], values[mine]))

    def _key(self, group: Group, lives: I64, number: int, text: int, texts: Texts) -> I64:
        """Keys of a text that is given by number, or stands in the event."""
        if hole := group.find(*EVENT, number):
            return lives << LIFE_SHIFT | group.numbers(hole).astype(np.int64)
        if hole := group.find(*EVENT, text):
            return INLINE - 1 - np.array([texts.number(t) for t in group.texts(hole)], np.int64)
        return np.zeros(len(lives), np.int64)

    def _add_argument(
        self, group: Group, packets: I64, lives: I64, hole: Hole, texts: Texts
    ) -> None:
        field = hole.path[2]
        values: NDArray[np.generic]
        if field == p.STRING_TEXT:
            values = INLINE - 1 - np.array([texts.number(t) for t in group.texts(hole)], np.int64)
        elif field == p.STRING:
            values = lives << LIFE_SHIFT | group.numbers(hole).astype(np.int64)
        elif field in (p.BOOL, p.UINT, p.INT):
            values = group.numbers(hole).astype(np.int64)
        elif field == p.DOUBLE and hole.wire == FIXED64:
            values = group.numbers(hole).view(np.float64)
        else:
            return
        if (lives == lives[0]).all():
            self._arguments[int(lives[0]), hole.key, field].append((packets, values))
            return
        for life in np.unique(lives).tolist():
            mine = lives == life
            self._arguments[life, hole.key, field].append((packets[mine], values[mine]))

    @staticmethod
    def _constant(group: Group, field: int) -> int:
        hole = group.find(*EVENT, field)
        return 0 if hole is None else int(group.numbers(hole)[0])


def _pairs(track: U64, kind: NDArray[np.generic]) -> tuple[I64, int]:
    """Per event: of an end the beginning that it belongs to, else -1; and how many ends have none.

    Events are in order of track, then time.  A beginning stands as deep as the end of it, and
    between the two nothing else of that depth does.
    """
    count = len(track)
    partner = np.full(count, -1, np.int64)
    step = (kind == p.BEGIN).astype(np.int64) - (kind == p.END)
    depth = np.cumsum(step)
    firsts = np.flatnonzero(np.r_[True, track[1:] != track[:-1]]) if count else np.zeros(0, int)
    lengths = np.diff(np.r_[firsts, count])
    depth -= np.repeat(depth[firsts] - step[firsts], lengths) if count else 0
    floor = np.minimum.reduceat(depth, firsts) if count else depth
    if (floor < 0).any():
        return _pairs_with_strays(track, kind)
    level = np.where(kind == p.END, depth + 1, depth)
    marks = np.flatnonzero(step != 0)
    order = marks[np.lexsort((marks, level[marks], track[marks]))]
    ends = np.flatnonzero(kind[order] == p.END)
    partner[order[ends]] = order[ends - 1]
    return partner, 0


def _check_ends(
    track: U64, kind: NDArray[np.generic], time: I64, packet: I64, partner: I64
) -> None:
    """Refuses a slice whose end, later in the file, is earlier in time than its beginning."""
    is_open = kind == p.BEGIN
    is_open[partner[partner >= 0]] = False
    begins = np.flatnonzero(is_open)
    for end in np.flatnonzero((kind == p.END) & (partner < 0)).tolist():
        low, high = np.searchsorted(begins, [end, np.searchsorted(track, track[end], "right")])
        before = begins[low:high][packet[begins[low:high]] < packet[end]]
        if len(before):
            raise DamagedFile(
                f"a slice begins at {int(time[before[0]])} ns and ends at {int(time[end])} ns, "
                "before it begins; its clock was set back, or the file is altered: profile again"
            )


def _pairs_with_strays(track: U64, kind: NDArray[np.generic]) -> tuple[I64, int]:
    """The same, one event after the other: ends that nothing began are passed over."""
    partner = np.full(len(track), -1, np.int64)
    stacks: dict[int, list[int]] = defaultdict(list)
    stray = 0
    for place, (uuid, what) in enumerate(zip(track.tolist(), kind.tolist(), strict=True)):
        if what == p.BEGIN:
            stacks[uuid].append(place)
        elif what == p.END:
            if stacks[uuid]:
                partner[place] = stacks[uuid].pop()
            else:
                stray += 1
    return partner, stray
