"""Reads events of traces like ours as generated code: times, numbers, and who each slice is.

What it meets beside events (tracks, attributes, texts that are no names) it hands back, and goes
on when that has been taken in.  It gives up on what only general readers can do: texts within
events, tracks whose events are out of order, several sequences.
"""

from __future__ import annotations

from collections.abc import Callable

from dielet.codegen.function import Function, Module, Pointer, Repeat, Var
from dielet.codegen.single import single_function
from dielet.codegen.values import F64, I1, I8, I16, I32, I64, PTR, Value
from dielet.profiler import perfetto as p

SYMBOL = "trace_scan"
DONE, OTHER, COMPRESSED, RUN, FULL, CUT, STRANGE, DAMAGED = range(8)
"""What the function returns: `data` is read; a packet for others; packed packets; a slice on a
track that is kept whole; no room; the last packet is cut off; not for us; damaged."""

STATE = (
    "data", "at", "end", "packet", "length", "rows", "most_rows", "samples", "most_samples",
    "rests", "most_rests", "steps", "most_steps", "facts", "most_facts", "longs", "most_longs",
    "last_key", "last_step", "stray", "default_track", "sequence",
)  # fmt: skip
"""Words of the table: places are bytes of `data`; `most_` is what there is room for."""
ARRAYS = {
    "start": I64, "duration": I32, "fact": I32, "place": I32, "step": I32, "rest": I32,
    "percent": I16, "track": I16,
    "sample_time": I64, "sample_value": F64, "sample_track": I16,
    "name": I64, "name_step": I32, "name_rest": I32,
    "rest_hash": I64, "rest_number": I32, "rest_place": I64, "rest_length": I32,
    "step_hash": I64, "step_number": I32, "step_key": I64,
    "fact_hash": I64, "fact_number": I32, "fact_nbytes": I64, "fact_ops": I64, "fact_bound": I8,
    "long": I64, "column": I8, "bound_of": I8, "is_run": I8, "open": I32, "latest": I64,
}  # fmt: skip
"""Addresses that follow them: per row, per counter sample, per name, tables, by key and by track.

A slice's bytes, operations and bound are one fact, of which there are few different ones.  A
duration is in ns; below -1 it is a place in `long`, counted from -2 down."""
TRACKS, KEYS = 1 << 15, 256
REST_SLOTS, STEP_SLOTS, FACT_SLOTS = 1 << 17, 1 << 19, 1 << 17
NAMES = 1 << 18
"""The latest names that are remembered: each is defined shortly before it is used."""
NBYTES, OPS, PERCENT, BOUND = 1, 2, 3, 4  # in `column`: where a key's value goes
_SEED, _SPREAD = 0xCBF29CE484222325 - (1 << 64), 0x9E3779B97F4A7C15 - (1 << 64)
_FIXED64, _LENGTH, _FIXED32 = 1, 2, 5
_MORE = 0x80808080_80808080 - (1 << 64)  # the bit of every byte that says that another follows
_LONGEST, _MOST_PERCENT = (1 << 31) - 1, (1 << 15) - 1
_ANNOTATION_TAG, _KEY_TAG = p.ANNOTATION << 3 | 2, p.KEY << 3
_STRING_TAG = p.STRING << 3 & 127 | 128 | p.STRING >> 4 << 8  # two bytes


def scan_module(fused: bool) -> Module:
    module = Module(fused)
    _Writer(module.function(SYMBOL, [PTR], I64)).write()
    return module


class _Writer:
    """Writes `i64 trace_scan(ptr table)`."""

    def __init__(self, k: Function) -> None:
        self.k = k
        self.table = Pointer(k.args[0], I64)
        self.word = {name: place for place, name in enumerate(STATE)}
        self.a = {
            name: k.pointer(self.table[len(STATE) + n], kind)
            for n, (name, kind) in enumerate(ARRAYS.items())
        }
        self.data = k.pointer(self.get("data"), I8)
        self.code = k.var(k.i64(DONE))
        self.at, self.end = k.var(self.get("at")), self.get("end")
        names = "time event event_end interned interned_end flags other"
        names += " kind track name note note_end key value counter nbytes ops percent bound"
        self.v = {name: k.var(k.i64(0)) for name in names.split()}

    def get(self, name: str) -> Value:
        return self.table[self.word[name]]

    def set(self, name: str, value: Value) -> None:
        self.table[self.word[name]] = value

    def byte(self, at: Value) -> Value:
        return self.data[at].zext(I64)

    def varint(self, at: Var, end: Value) -> Value:
        """The number at `at`, which moves behind it; one without an end is damage."""
        k = self.k
        value = k.var(k.i64(0))
        self.damaged_if(at.value >= end)
        with k.when(at.value < end):
            first = self.byte(at.value)
            at.value = at.value + 1
            value.value = first & 127
            with k.when(first >= 128):
                shift = k.var(k.i64(7))
                with k.repeat() as again:
                    self.damaged_if((at.value >= end) | (shift.value > 63))
                    again.until(self.code.value.ne(DONE))
                    byte = self.byte(at.value)
                    value.value = value.value | (byte & 127) << shift.value
                    at.value = at.value + 1
                    shift.value = shift.value + 7
                    again.until(byte < 128)
        return value.value

    def word_at(self, at: Value) -> Value:
        address = self.data.at(at).address
        return self.k.emit(I64, f"load i64, {address}, align 1")

    def width(self, word: Value) -> Value:
        """Bytes of the number that `word` begins with, 0 if it is longer."""
        stops = (word & _MORE) ^ _MORE
        zeros = self.k.call("llvm.cttz.i64", I64, stops, self.k.const(I1, 0))
        return stops.eq(0).choose(self.k.i64(0), (zeros >> 3) + 1)

    def number(self, word: Value) -> Value:
        """The number that `word` begins with: sevens of bits are moved together, then pairs."""
        stops = (word & _MORE) ^ _MORE
        value = word & (stops ^ (stops - 1)) & ~_MORE
        value = (value & 0x007F007F_007F007F) | (value & 0x7F007F00_7F007F00) >> 1
        value = (value & 0x00003FFF_00003FFF) | (value & 0x3FFF0000_3FFF0000) >> 2
        return (value & 0x0FFFFFFF) | (value & 0x0FFFFFFF_00000000) >> 4

    def damaged_if(self, condition: Value) -> None:
        self.code.value = condition.choose(self.k.i64(DAMAGED), self.code.value)

    def strange_if(self, condition: Value) -> None:
        self.code.value = condition.choose(self.k.i64(STRANGE), self.code.value)

    def fields(
        self, at: Var, end: Value, take: Callable[[Value, Value, Value, Value], None]
    ) -> None:
        """Call `take(field, wire, value, end)` for each: a number, or where a body begins and ends.

        Of fixed fields the value is where they stand.
        """
        with self.k.repeat() as again:
            again.until((at.value >= end) | self.code.value.ne(DONE))
            self.one_field(at, end, take)

    def one_field(
        self, at: Var, end: Value, take: Callable[[Value, Value, Value, Value], None]
    ) -> None:
        k = self.k
        tag = self.varint(at, end)
        wire = tag & 7
        value, stop = k.var(at.value), k.var(k.i64(0))
        with k.when(wire.eq(0)):
            value.value = self.varint(at, end)
        with k.when(wire.eq(_LENGTH)):
            length = self.varint(at, end)
            value.value = at.value
            stop.value = at.value + length
            self.damaged_if((length < 0) | (length > end - at.value))
            at.value = stop.value
        with k.when(wire.eq(_FIXED64)):
            at.value = at.value + 8
        with k.when(wire.eq(_FIXED32)):
            at.value = at.value + 4
        self.damaged_if((wire > _FIXED32) | wire.eq(3) | wire.eq(4) | (at.value > end))
        with k.when(self.code.value.eq(DONE)):
            take(tag >> 3, wire, value.value, stop.value)

    def keep(self, variable: str, condition: Value, value: Value) -> None:
        var = self.v[variable]
        var.value = condition.choose(value, var.value)

    def write(self) -> None:
        k = self.k
        with k.repeat() as again:
            again.until((self.at.value >= self.end) | self.code.value.ne(DONE))
            self.packet(again)
        self.set("at", self.at.value)
        k.ret(self.code.value)

    def packet(self, again: Repeat) -> None:
        k, begin = self.k, self.at.value
        self.damaged_if(self.byte(begin).ne(p.PACKET_TAG))
        again.until(self.code.value.ne(DONE))
        at = k.var(begin + 1)
        length = self.varint(at, self.end)
        body, stop = at.value, at.value + length
        cut = (length > self.end - body) | self.code.value.ne(DONE) | (length < 0)
        self.code.value = cut.choose(k.i64(CUT), self.code.value)
        again.until(cut)
        # Room for what one packet can add, so that none has to be undone.
        full = (self.get("rows") >= self.get("most_rows")) | (
            self.get("samples") >= self.get("most_samples")
        )
        self.code.value = full.choose(k.i64(FULL), self.code.value)
        again.until(full)
        for name in ("event", "interned", "flags", "other"):
            self.v[name].value = 0
        self.v["time"].value = -1

        def take(field: Value, wire: Value, value: Value, end: Value) -> None:
            self.keep("time", field.eq(p.TIMESTAMP), value)
            self.keep("flags", field.eq(p.FLAGS), value)
            for number, name in ((p.TRACK_EVENT, "event"), (p.INTERNED, "interned")):
                here = field.eq(number) & wire.eq(_LENGTH)
                self.keep(name, here, value)
                self.keep(f"{name}_end", here, end)
            for number in (p.DEFAULTS, p.TRACK_DESCRIPTOR, p.ATTRIBUTES):
                self.keep("other", field.eq(number), k.i64(OTHER))
            self.keep("other", field.eq(p.COMPRESSED), k.i64(COMPRESSED))
            with k.when(field.eq(p.SEQUENCE_ID)):
                known = self.get("sequence")
                self.strange_if(known.ne(0) & known.ne(value))
                self.set("sequence", value)

        at.value = body
        self.fields(at, stop, take)
        self.v["other"].value = (
            (self.v["flags"].value & p.CLEARED).ne(0).choose(k.i64(OTHER), self.v["other"].value)
        )
        with k.when(self.v["interned"].value.ne(0)):
            self.interned()
        with k.when(self.v["event"].value.ne(0) & (self.v["time"].value >= 0)):
            # What defines a text for itself and is an event too is taken in first by others.
            self.strange_if(self.v["other"].value.ne(0))
            with k.when(self.code.value.eq(DONE)):
                self.event(begin)
        with k.when(self.code.value.eq(DONE)):
            self.code.value = self.v["other"].value
        self.set("packet", body)
        self.set("length", length)
        self.at.value = stop

    def interned(self) -> None:
        """Names of slices are taken in here, other texts elsewhere."""
        k = self.k
        at = k.var(self.v["interned"].value)

        def take(field: Value, wire: Value, value: Value, end: Value) -> None:
            self.keep("other", field.ne(p.NAMES), k.i64(OTHER))
            with k.when(field.eq(p.NAMES) & wire.eq(_LENGTH)):
                entry = k.var(value)
                self.v["key"].value = -1
                self.v["note"].value = 0
                self.v["note_end"].value = 0

                def part(field: Value, wire: Value, value: Value, end: Value) -> None:
                    self.keep("key", field.eq(1), value)
                    is_text = field.eq(2) & wire.eq(_LENGTH)
                    self.keep("note", is_text, value)
                    self.keep("note_end", is_text, end)

                self.fields(entry, end, part)
                self.strange_if(self.v["key"].value < 0)
                with k.when(self.code.value.eq(DONE)):
                    self.name(self.v["key"].value, self.v["note"].value, self.v["note_end"].value)

        self.fields(at, self.v["interned_end"].value, take)

    def digits(self, at: Var, end: Value) -> tuple[Value, Value]:
        """(number, whether there is one and a `_` after it); `at` moves behind that."""
        k = self.k
        value, begin = k.var(k.i64(0)), at.value
        with k.repeat() as again:
            again.until(at.value >= end)
            digit = self.byte(at.value) - ord("0")
            again.until((digit < 0) | (digit > 9))
            value.value = value.value * 10 + digit
            at.value = at.value + 1
        good, found = k.var(k.i64(0)), at.value
        with k.when((found > begin) & (found - begin < 10) & (found < end)):
            good.value = self.byte(found).eq(ord("_")).choose(k.i64(1), k.i64(0))
        at.value = at.value + 1
        return value.value, good.value

    def name(self, iid: Value, begin: Value, end: Value) -> None:
        """`i{instance}_{sequence}_{rest}`, the first part perhaps missing."""
        k, a = self.k, self.a
        at, instance, good = k.var(begin), k.var(k.i64(0)), k.var(k.i64(1))
        slot = iid & (NAMES - 1)
        a["name"].store(slot, iid)
        a["name_step"].store(slot, k.const(I32, -1))
        a["name_rest"].store(slot, k.const(I32, -1))
        with k.when(begin < end), k.when(self.byte(begin).eq(ord("i"))):
            at.value = begin + 1
            number, fine = self.digits(at, end)
            instance.value = number + 1
            good.value = fine
        sequence, fine = self.digits(at, end)
        with k.when((good.value & fine).ne(0) & (at.value < end)):
            key = instance.value << 32 | sequence
            with k.when(key.ne(self.get("last_key"))):
                self.set("last_key", key)
                self.set("last_step", self.numbered("step", key * _SPREAD | 1, STEP_SLOTS, "steps"))
                a["step_key"].store(self.get("last_step"), key)
            before = self.get("rests")
            rest = self.numbered("rest", self.hashed(at.value, end) | 1, REST_SLOTS, "rests")
            with k.when(rest >= before):
                a["rest_place"].store(rest, at.value)
                a["rest_length"].store(rest, (end - at.value).trunc(I32))
            a["name_step"].store(slot, self.get("last_step").trunc(I32))
            a["name_rest"].store(slot, rest.trunc(I32))

    def hashed(self, begin: Value, end: Value) -> Value:
        """64 bits of a text, by words; the last one may overlap the one before."""
        k = self.k
        mix = k.var((end - begin) ^ _SEED)
        with k.loop(begin, end - 7, 8) as place:
            mix.value = self.mixed(mix.value, self.word_at(place))
        is_short = end - begin < 8
        with k.when(is_short), k.loop(begin, end) as place:
            mix.value = self.mixed(mix.value, self.byte(place))
        with k.when(is_short.eq(k.const(I1, 0))):
            mix.value = self.mixed(mix.value, self.word_at(end - 8))
        return mix.value * _SPREAD

    def mixed(self, mix: Value, part: Value) -> Value:
        mix = (mix ^ part) * _SPREAD
        return mix ^ mix >> 29

    def numbered(self, table: str, mark: Value, slots: int, counter: str) -> Value:
        """The number of a mark that is not 0, a new one if it was not seen before."""
        k, a = self.k, self.a
        slot = k.var(((mark >> 20) ^ mark >> 40) & (slots - 1))
        found = k.var(k.i64(-1))
        with k.repeat() as again:
            known = a[f"{table}_hash"][slot.value]
            with k.when(known.eq(mark)):
                found.value = a[f"{table}_number"][slot.value].sext(I64)
            again.until(found.value >= 0)
            with k.when(known.eq(0)):
                count = self.get(counter)
                self.strange_if(count >= self.get(f"most_{counter}"))
                with k.when(self.code.value.eq(DONE)):
                    a[f"{table}_hash"].store(slot.value, mark)
                    a[f"{table}_number"].store(slot.value, count.trunc(I32))
                    self.set(counter, count + 1)
                found.value = (self.code.value.eq(DONE)).choose(count, k.i64(0))
            again.until(found.value >= 0)
            slot.value = (slot.value + 1) & (slots - 1)
        return found.value

    def event(self, packet: Value) -> None:
        k, v = self.k, self.v
        for name in ("kind", "name", "counter"):
            v[name].value = 0
        for name in ("nbytes", "ops", "percent", "bound"):
            v[name].value = -1
        v["track"].value = self.get("default_track")
        row = self.get("rows")
        at = k.var(v["event"].value)

        def take(field: Value, wire: Value, value: Value, end: Value) -> None:
            self.keep("kind", field.eq(p.TYPE), value)
            self.keep("track", field.eq(p.TRACK), value)
            self.keep("name", field.eq(p.NAME), value)
            self.keep("counter", field.eq(p.COUNTER_DOUBLE) & wire.eq(_FIXED64), value)
            self.strange_if(field.eq(p.NAME_TEXT) | field.eq(p.COUNTER_INT))
            with k.when(field.eq(p.ANNOTATION) & wire.eq(_LENGTH)):
                self.annotation(value, end)

        end = v["event_end"].value
        with k.repeat() as again:
            again.until((at.value >= end) | self.code.value.ne(DONE))
            begin = at.value
            self.usual_annotation(at, end)
            with k.when(at.value.eq(begin)):
                self.one_field(at, end, take)
        kind, track = v["kind"].value, v["track"].value
        self.strange_if((track < 0) | (track >= TRACKS))
        with k.when(self.code.value.eq(DONE)):
            self.strange_if(v["time"].value < self.a["latest"][track])
        with k.when(self.code.value.eq(DONE)):
            self.a["latest"].store(track, v["time"].value)
            with k.when(kind.eq(p.COUNTER)):
                self.sample(track)
            with k.when(kind.eq(p.END)):
                self.finish(track)
            with k.when(kind.eq(p.BEGIN) | kind.eq(p.INSTANT)):
                self.begin(row, packet, kind, track)

    def usual_annotation(self, at: Var, end: Value) -> None:
        """If one follows whose key is a byte and whose number has at most eight: take it in, and
        move `at` behind it.  Most of a trace are these."""
        k, begin = self.k, at.value
        with k.when((end - begin >= 6) & (self.end - begin >= 16)):
            head, tags = self.word_at(begin), self.word_at(begin) >> 32
            is_string = (tags & 0xFFFF).eq(_STRING_TAG)
            is_number = is_string | (tags & 255).eq(p.UINT << 3) | (tags & 255).eq(p.INT << 3)
            value = begin + is_string.choose(k.i64(6), k.i64(5))
            word = self.word_at(value)
            stop = begin + 2 + (head >> 8 & 255)
            # Its tag, a length and a key of one byte, the key's tag.
            usual = (head & 0x80FF80FF).eq(_ANNOTATION_TAG | _KEY_TAG << 16)
            fits = (value + self.width(word)).eq(stop) & (value < stop) & (stop <= end)
            with k.when(usual & is_number & fits):
                self.argument(head >> 24 & 255, self.number(word))
                at.value = stop

    def annotation(self, begin: Value, end: Value) -> None:
        k, v = self.k, self.v
        at = k.var(begin)
        v["key"].value = 0
        v["value"].value = -1

        def take(field: Value, wire: Value, value: Value, end: Value) -> None:
            self.strange_if(field.eq(p.KEY_TEXT))
            self.keep("key", field.eq(p.KEY), value)
            for number in (p.UINT, p.INT, p.STRING):
                self.keep("value", field.eq(number), value)

        self.fields(at, end, take)
        self.strange_if((v["key"].value < 0) | (v["key"].value >= KEYS))
        with k.when(self.code.value.eq(DONE)):
            self.argument(v["key"].value, v["value"].value)

    def argument(self, key: Value, value: Value) -> None:
        """A key, which there is room for, and its number, or its text's."""
        k = self.k
        column = self.a["column"][key].zext(I64)
        with k.when(column.ne(0)):
            for name, number in (("nbytes", NBYTES), ("ops", OPS), ("percent", PERCENT)):
                self.keep(name, column.eq(number), value)
            with k.when(column.eq(BOUND) & (value >= 0) & (value < KEYS)):
                self.v["bound"].value = self.a["bound_of"][value].sext(I64)

    def sample(self, track: Value) -> None:
        at = self.v["counter"].value
        with self.k.when(at.ne(0)):
            count = self.get("samples")
            value = self.k.pointer(self.data.at(at).address, F64).cast(F64)
            loaded = self.k.emit(F64, f"load double, {value.address}, align 1")
            self.a["sample_time"].store(count, self.v["time"].value)
            self.a["sample_value"].store(count, loaded)
            self.a["sample_track"].store(count, track.trunc(I16))
            self.set("samples", count + 1)

    def finish(self, track: Value) -> None:
        """While a slice is open, its duration is the row of the one around it."""
        k, a = self.k, self.a
        row = a["open"][track].sext(I64)
        with k.when(row < 0):
            self.set("stray", self.get("stray") + 1)
        with k.when(row >= 0):
            a["open"].store(track, a["duration"][row])
            lasted, longs = self.v["time"].value - a["start"][row], self.get("longs")
            is_long = lasted > _LONGEST
            self.strange_if(is_long & (longs >= self.get("most_longs")))
            with k.when(is_long & self.code.value.eq(DONE)):
                a["long"].store(longs, lasted)
                self.set("longs", longs + 1)
            a["duration"].store(row, is_long.choose(-2 - longs, lasted).trunc(I32))

    def begin(self, row: Value, packet: Value, kind: Value, track: Value) -> None:
        k, a, v = self.k, self.a, self.v
        name, slot = v["name"].value, v["name"].value & (NAMES - 1)
        is_named = name.ne(0)
        self.strange_if(is_named & a["name"][slot].ne(name))
        percent = v["percent"].value
        self.strange_if((percent < -1) | (percent > _MOST_PERCENT))
        fact = self.fact()
        with k.when(self.code.value.eq(DONE)):
            none = k.const(I32, -1)
            a["start"].store(row, v["time"].value)
            a["track"].store(row, track.trunc(I16))
            a["place"].store(row, packet.trunc(I32))
            a["step"].store(row, is_named.choose(a["name_step"][slot], none))
            a["rest"].store(row, is_named.choose(a["name_rest"][slot], none))
            a["percent"].store(row, percent.trunc(I16))
            a["fact"].store(row, fact.trunc(I32))
            a["duration"].store(row, k.const(I32, 0))
            with k.when(kind.eq(p.BEGIN)):
                a["duration"].store(row, a["open"][track])
                a["open"].store(track, row.trunc(I32))
            self.set("rows", row + 1)
            is_run = a["is_run"][track].ne(0)
            self.v["other"].value = is_run.choose(k.i64(RUN), self.v["other"].value)

    def fact(self) -> Value:
        """The number of what this slice moves and computes, and of what bounds it."""
        k, a, v = self.k, self.a, self.v
        parts = {name: v[name].value for name in ("nbytes", "ops", "bound")}
        mix = k.i64(_SEED)
        for part in parts.values():
            mix = self.mixed(mix, part)
        before = self.get("facts")
        fact = self.numbered("fact", mix * _SPREAD | 1, FACT_SLOTS, "facts")
        with k.when(fact >= before):
            for name, part in parts.items():
                column = a[f"fact_{name}"]
                column.store(fact, part if column.elem == I64 else part.trunc(column.elem))
        for name, part in parts.items():
            column = a[f"fact_{name}"]
            known = column[fact] if column.elem == I64 else column[fact].sext(I64)
            self.strange_if(known.ne(part))
        return fact


def scan_function() -> Callable[[int], int]:
    return single_function(SYMBOL, __file__, scan_module)
