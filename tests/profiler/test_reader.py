"""Our reader gives back what was written, agrees with Perfetto's classes, and refuses the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from dielet.errors import DamagedFile, MissingFile
from dielet.profiler.host import HostSlice
from dielet.profiler.reader import Trace, read_trace
from dielet.profiler.scan import split
from dielet.program.types import Queue
from tests.profiler import oracle
from tests.profiler.make import linear, program, serial
from tests.profiler.test_writer import FOUR, written


def texts(trace: Trace, numbers: np.ndarray) -> list[str]:
    return [trace.texts[n] if n >= 0 else "" for n in numbers.tolist()]


def as_oracle(trace: Trace) -> list[tuple]:
    """Slices in the oracle's terms: (path, name, category, start, end, args)."""
    args: list[dict] = [{} for _ in range(len(trace))]
    for key, argument in trace.arguments.items():
        values = argument.values.tolist()
        shown = texts(trace, argument.values) if argument.is_text else values
        for at, value in zip(argument.slices.tolist(), shown, strict=True):
            args[at][key] = value
    names, categories = texts(trace, trace.name), texts(trace, trace.category)
    return [
        ("/".join(trace.path(int(uuid))), name, category, start, start + duration, arg)
        for uuid, name, category, start, duration, arg in zip(
            trace.track, names, categories, trace.start.tolist(), trace.duration.tolist(), args,
            strict=True,
        )
    ]  # fmt: skip


def same(ours: Trace, theirs: oracle.Trace) -> None:
    expected = [
        (theirs.path(s.track), s.name, s.category, s.start, s.end, s.args) for s in theirs.slices
    ]
    assert as_oracle(ours) == expected
    number = {id(piece): at for at, piece in enumerate(theirs.slices)}
    edges = sorted((number[id(a)], number[id(b)]) for a, b in theirs.edges())
    assert sorted(map(tuple, ours.flows.tolist())) == edges
    assert ours.attributes == theirs.attributes
    for uuid, track in theirs.tracks.items():
        info = ours.tracks[uuid]
        assert (info.name, info.parent, info.rank, info.unit) == (
            track.name, track.parent, track.rank, track.unit,
        )  # fmt: skip
        if track.samples:
            times, values = ours.counters[uuid]
            assert list(zip(times.tolist(), values.tolist(), strict=True)) == track.samples
    assert not ours.truncated and ours.stray == 0


@pytest.mark.parametrize("compress", [False, True])
def test_round_trip(tmp_path: Path, compress: bool) -> None:
    of = program(FOUR, [linear(n % 28, f"op.{n}", {*range(max(n - 3, 0), n)}) for n in range(400)])
    head = program([Queue(0, "neural")], [linear(0, "model.lm_head")], phase="head")
    runs = []
    for n in range(12):
        at = n * 10**10
        runs += [serial(of, n % 2, n // 2, 0, at), serial(head, n % 2, n // 2, 1, at + 2 * 10**9)]
    host = [HostSlice("sample", n * 10**10 + 5 * 10**9, n * 10**10 + 6 * 10**9, n % 2, n // 2)
            for n in range(12)]  # fmt: skip
    done, traces = written(tmp_path, runs, host, compress=compress)
    for path, theirs in zip(done.files, traces, strict=True):
        same(read_trace(path), theirs)


def test_what_others_write(tmp_path: Path) -> None:
    """Nested slices, literal texts, instants, defaults, cleared state, integers, threads."""
    trace = pb.Trace()
    packet = trace.packet.add(sequence_flags=3, trusted_packet_sequence_id=7)
    packet.trace_packet_defaults.track_event_defaults.track_uuid = 5
    packet.interned_data.event_names.add(iid=1, name="first")
    packet.interned_data.event_categories.add(iid=2, name="kind")
    packet = trace.packet.add()
    packet.track_descriptor.uuid = 5
    packet.track_descriptor.thread.pid = 1
    packet.track_descriptor.thread.thread_name = "worker"
    packet = trace.packet.add()
    packet.track_descriptor.uuid = 6
    packet.track_descriptor.name = "count"
    packet.track_descriptor.parent_uuid = 5
    packet.track_descriptor.counter.unit = 2

    def event(time: int, kind: int, **fields: object) -> pb.TracePacket:
        packet = trace.packet.add(timestamp=time, sequence_flags=2, trusted_packet_sequence_id=7)
        packet.track_event.type = kind
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(packet.track_event, name).extend(value)
            else:
                setattr(packet.track_event, name, value)
        return packet

    outer = event(100, 1, name_iid=1, category_iids=[2], flow_ids=[9])
    outer.track_event.debug_annotations.add(name="weight", double_value=0.5)
    outer.track_event.debug_annotations.add(name="what", string_value="text")
    outer.track_event.debug_annotations.add(name="less", int_value=-3)
    event(150, 1, name="inner", categories=["other"], terminating_flow_ids=[9])
    event(200, 2)
    ended = event(300, 2)
    ended.track_event.debug_annotations.add(name="late", uint_value=7)
    event(300, 2)  # of nothing
    event(400, 3, name="instant")
    event(120, 4, track_uuid=6, counter_value=3)
    packet = trace.packet.add(sequence_flags=3, trusted_packet_sequence_id=7)
    packet.trace_packet_defaults.track_event_defaults.track_uuid = 5
    packet.interned_data.event_names.add(iid=1, name="second")
    event(500, 1, name_iid=1)
    path = tmp_path / "other.pb"
    path.write_bytes(trace.SerializeToString())
    ours = read_trace(path)
    assert as_oracle(ours) == [
        ("worker", "first", "kind", 100, 300,
         {"weight": 0.5, "what": "text", "less": -3, "late": 7}),
        ("worker", "inner", "other", 150, 200, {}),
        ("worker", "instant", "", 400, 400, {}),
        ("worker", "second", "", 500, 499, {}),
    ]  # fmt: skip
    assert ours.flows.tolist() == [[0, 1]]
    assert ours.stray == 1
    assert ours.path(6) == ("worker", "count")
    assert ours.tracks[6].unit == "count"
    times, values = ours.counters[6]
    assert (times.tolist(), values.tolist()) == ([120], [3.0])


def test_a_cut_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    done, _ = written(tmp_path, [serial(program(FOUR[:1], [linear(0, "a"), linear(0, "b")]))])
    data = done.files[0].read_bytes()
    whole = read_trace(done.files[0])
    ends = {len(data) - at for at in packet_starts(data)}
    for cut in set(range(1, 200, 7)) - ends:  # an end between packets cannot be seen
        path = tmp_path / "cut.pb"
        path.write_bytes(data[:-cut])
        part = read_trace(path)
        assert part.truncated
        assert len(part) <= len(whole)


def packet_starts(data: bytes) -> list[int]:
    starts, _, _ = split(np.frombuffer(data, np.uint8))
    return [int(start) - 2 - (data[start - 2] > 127) for start in starts]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is empty"),
        (b"hello", "byte 0 is 0x68"),
        (b"\x0a\x02\x08\xff", "has no end"),
        (b"\x0a\x03\x5a\x05\x08", "ends after its packet"),
        (b"\x0a\x02\x0f\x00", "wire type 7"),
        (b"\x0a\x05\x92\x03\x02xx", "compressed packet is damaged"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "bad.pb"
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=complaint):
        read_trace(path)
    with pytest.raises(MissingFile, match=r"no\.pb does not exist"):
        read_trace(tmp_path / "no.pb")


@settings(deadline=None)
@given(st.data())
def test_damaged_bytes_never_do_worse_than_an_error(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done, _ = written(Path(folder), [serial(program(FOUR[:2], [linear(1, "a")]))])
        whole = bytearray(done.files[0].read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        path = Path(folder) / "damaged.pb"
        path.write_bytes(whole)
        try:
            read_trace(path)
        except DamagedFile as error:
            assert "damaged.pb" in str(error)
