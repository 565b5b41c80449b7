"""Traces as Perfetto's own protobuf classes read them, and what must hold of every one of ours."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from dielet.profiler.names import parse

BEGIN, END, COUNTER = 1, 2, 4
COMPRESSED = b"\x92\x03"  # the tag of compressed_packets, after that and the length of its packet


@dataclass
class Slice:
    track: int
    name: str
    category: str
    start: int
    end: int = -1
    flows: tuple[int, ...] = ()
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def duration(self) -> int:
        return self.end - self.start


@dataclass
class Track:
    uuid: int
    name: str
    parent: int
    rank: int
    unit: str
    children: list[Track] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    samples: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Trace:
    attributes: dict[str, Any]
    tracks: dict[int, Track]
    slices: list[Slice]

    def path(self, uuid: int) -> str:
        track = self.tracks[uuid]
        above = self.path(track.parent) + "/" if track.parent else ""
        return above + track.name

    def track(self, path: str) -> Track:
        (found,) = [t for t in self.tracks.values() if self.path(t.uuid) == path]
        return found

    def tree(self) -> list[str]:
        """Indented names, in the order of the screen."""
        lines = []

        def add(track: Track, depth: int) -> None:
            lines.append("  " * depth + track.name)
            for child in sorted(track.children, key=lambda t: t.rank):
                add(child, depth + 1)

        for root in sorted((t for t in self.tracks.values() if not t.parent), key=lambda t: t.rank):
            add(root, 0)
        return lines

    def commands(self) -> list[Slice]:
        return [s for s in self.slices if s.category not in ("Host", "Device Workload")]

    def edges(self) -> list[tuple[Slice, Slice]]:
        """Arrows: (source, destination) for every flow id, which joins exactly two slices."""
        ends: dict[int, list[Slice]] = {}
        for piece in self.slices:
            for flow in piece.flows:
                ends.setdefault(flow, []).append(piece)
        assert all(len(pair) == 2 for pair in ends.values())
        return [(a, b) for a, b in ends.values()]


def packets(data: bytes) -> list[Any]:
    trace = pb.Trace()
    trace.ParseFromString(data)
    found = []
    for packet in trace.packet:
        if packet.HasField("compressed_packets"):
            run = zlib.decompress(packet.compressed_packets)
            assert len(run) < 512 << 10
            found += packets(run)
        else:
            found.append(packet)
    return found


def read(path: Path) -> Trace:
    """Parse a trace and check what must hold of every trace."""
    trace = parsed(path)
    check_names(trace)
    check_tracks(trace)
    check_slices(trace)
    for source, destination in trace.edges():
        assert source is not destination
        assert source.start <= destination.start
    return trace


def parsed(path: Path) -> Trace:
    """By Perfetto's rules: interned texts before their use, descriptors before counters' values."""
    data = path.read_bytes()
    assert data[0] == 0x0A
    attributes: dict[str, Any] = {}
    tracks: dict[int, Track] = {}
    slices: list[Slice] = []
    texts: dict[str, dict[int, str]] = {"names": {}, "categories": {}, "keys": {}, "strings": {}}
    open_slices: dict[int, list[Slice]] = {}
    cleared = False
    last: dict[int, int] = {}
    for packet in packets(data):
        if packet.sequence_flags:
            assert packet.trusted_packet_sequence_id
            first = bool(packet.sequence_flags & 1)
            assert first != cleared, "the state is cleared once, by the first packet"
            cleared = True
            assert packet.sequence_flags & 2
        interned = packet.interned_data
        for kind, entries in (
            ("names", interned.event_names),
            ("categories", interned.event_categories),
            ("keys", interned.debug_annotation_names),
        ):
            for entry in entries:
                assert entry.iid and entry.iid not in texts[kind]
                texts[kind][entry.iid] = entry.name
        for entry in interned.debug_annotation_string_values:
            assert entry.iid and entry.iid not in texts["strings"]
            texts["strings"][entry.iid] = entry.str.decode()
        for attribute in packet.trace_attributes.attribute:
            assert attribute.key not in attributes
            is_text = attribute.HasField("string_value")
            attributes[attribute.key] = attribute.string_value if is_text else attribute.long_value
        if packet.HasField("track_descriptor"):
            add_track(tracks, packet.track_descriptor)
        if packet.HasField("track_event"):
            assert packet.HasField("timestamp") and packet.trusted_packet_sequence_id
            assert not packet.HasField("timestamp_clock_id")
            track = packet.track_event.track_uuid
            assert packet.timestamp >= last.get(track, 0), "a track's packets are in order of time"
            last[track] = packet.timestamp
            add_event(packet, texts, tracks, slices, open_slices)
    assert not any(open_slices.values()), "every slice ends"
    slices.sort(key=lambda piece: piece.start)
    return Trace(attributes, tracks, slices)


def add_track(tracks: dict[int, Track], d: Any) -> None:
    assert d.uuid and d.uuid not in tracks
    assert d.sibling_merge_behavior == 2
    unit = d.counter.unit_name or {3: "bytes"}.get(d.counter.unit, "")
    assert bool(unit) == d.HasField("counter")
    assert unit or d.child_ordering == 3
    tracks[d.uuid] = Track(d.uuid, d.name, d.parent_uuid, d.sibling_order_rank, unit)
    if d.parent_uuid:
        tracks[d.parent_uuid].children.append(tracks[d.uuid])


def add_event(
    packet: Any,
    texts: dict[str, dict[int, str]],
    tracks: dict[int, Track],
    slices: list[Slice],
    open_slices: dict[int, list[Slice]],
) -> None:
    event = packet.track_event
    track = tracks[event.track_uuid]
    stack = open_slices.setdefault(track.uuid, [])
    if event.type == COUNTER:
        assert track.unit
        track.samples.append((packet.timestamp, event.double_counter_value))
    elif event.type == END:
        stack.pop().end = packet.timestamp
    else:
        assert event.type == BEGIN and packet.sequence_flags == 2
        (category,) = event.category_iids
        args = {
            texts["keys"][a.name_iid]: (
                a.uint_value if a.HasField("uint_value") else texts["strings"][a.string_value_iid]
            )
            for a in event.debug_annotations
        }
        assert len(args) == len(event.debug_annotations)
        piece = Slice(
            track.uuid,
            texts["names"][event.name_iid],
            texts["categories"][category],
            packet.timestamp,
            flows=tuple(event.flow_ids),
            args=args,
        )
        stack.append(piece)
        slices.append(piece)
        track.slices.append(piece)


def check_names(trace: Trace) -> None:
    single = "execution" in trace.attributes
    for piece in trace.slices:
        name = parse(piece.name)
        assert name is not None and str(name) == piece.name
        assert (name.instance is None) == single
        assert (name.workload is None) == (piece.category == "Host")
        assert (name.layer is None) == (piece.category == "Device Workload")


def check_tracks(trace: Trace) -> None:
    for track in trace.tracks.values():
        assert track.children or track.slices or track.samples, "no track is empty"
        names = [child.name for child in track.children]
        assert len(names) == len(set(names))
        ranks = [child.rank for child in track.children]
        assert len(ranks) == len(set(ranks))


def check_slices(trace: Trace) -> None:
    for track in trace.tracks.values():
        previous = 0
        for piece in track.slices:
            assert piece.start >= previous, f"slices overlap on {trace.path(track.uuid)}"
            assert piece.end >= piece.start
            previous = piece.end
        for (a, _), (b, _) in zip(track.samples, track.samples[1:], strict=False):
            assert a <= b
