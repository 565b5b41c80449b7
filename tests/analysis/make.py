"""Traces made by hand, with Perfetto's own protobuf classes, so that every answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

DEVICE = "Device 0 (toy, modelled)"
NEURAL, WEIGHTS, TASK = "Neural Engine Clusters", "Neural DMA", "Task DMA"
WORKLOAD, HOST = "Device Workload", "Host"


class Maker:
    """Collects slices and counters of tracks that are named by their paths; times in ns."""

    def __init__(self, **attributes: int | str) -> None:
        self._attributes = attributes
        self._tracks: dict[tuple[str, ...], int] = {}
        self._units: dict[tuple[str, ...], str] = {}
        self._events: list[tuple[int, int, int, pb.TracePacket]] = []
        self._flows = 0

    def track(self, *path: str, unit: str = "") -> int:
        if path not in self._tracks:
            if len(path) > 1:
                self.track(*path[:-1])
            self._tracks[path] = len(self._tracks) + 1
            self._units[path] = unit
        return self._tracks[path]

    def flow(self) -> int:
        self._flows += 1
        return self._flows

    def slice(
        self,
        path: tuple[str, ...],
        name: str,
        start: int,
        end: int | None,
        flows: tuple[int, ...] = (),
        **args: int | str,
    ) -> None:
        """end None: the slice is never closed.  Underscores in the keys of `args` are spaces."""
        track = self.track(*path)
        begin = self._event(track, start, 1)
        begin.track_event.name = name
        begin.track_event.categories.append(path[-1])
        begin.track_event.flow_ids.extend(flows)
        for key, value in args.items():
            note = begin.track_event.debug_annotations.add()
            note.name = {"percent": "% of peak"}.get(key, key.replace("_", " "))
            if isinstance(value, str):
                note.string_value = value
            else:
                note.uint_value = value
        self._events.append((start, 1, len(self._events), begin))
        if end is not None:
            self._events.append((end, 0, len(self._events), self._event(track, end, 2)))

    def counter(self, path: tuple[str, ...], unit: str, values: dict[int, float]) -> None:
        track = self.track(*path, unit=unit)
        for time, value in values.items():
            packet = self._event(track, time, 4)
            packet.track_event.double_counter_value = value
            self._events.append((time, 0, len(self._events), packet))

    def _event(self, track: int, time: int, kind: int) -> pb.TracePacket:
        packet = pb.TracePacket(timestamp=time, trusted_packet_sequence_id=1)
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def write(self, path: Path) -> Path:
        trace = pb.Trace()
        for name, value in self._attributes.items():
            packet = trace.packet.add(trusted_packet_sequence_id=1)
            attribute = packet.trace_attributes.attribute.add(key=name.replace("__", "."))
            if isinstance(value, str):
                attribute.string_value = value
            else:
                attribute.long_value = value
        for names, uuid in self._tracks.items():
            descriptor = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
            descriptor.uuid, descriptor.name = uuid, names[-1]
            if len(names) > 1:
                descriptor.parent_uuid = self._tracks[names[:-1]]
            if self._units[names]:
                descriptor.counter.unit_name = self._units[names]
        for *_, packet in sorted(self._events, key=lambda event: event[:3]):
            trace.packet.append(packet)
        path.write_bytes(trace.SerializeToString())
        return path


def engine(chiplet: int, name: str) -> tuple[str, ...]:
    return DEVICE, f"Chiplet {chiplet}", name


def toy(**changes: int) -> Maker:
    """One prompt, one decode step with its head, on two chiplets:

        ns            0    50   100       400  480  500                          900  920   1000
        Host          tokens              sample
        Workload                prefill             decode                            head
        0 Neural DMA                                up.weight 500-700, down.weight 700-780
        1 Neural DMA                                up.weight 500-760
        0 Neural                a 100-400           up 710-810                        lm_head
        1 Neural                                    up 770-880
        0 Task DMA                                  sum 885-895

    Products wait for their weights (in words), the sum for both products (arrows).
    """
    end_of_1 = changes.get("end_of_1", 880)
    t = Maker(
        dielet_version="0", model="toy", device="toy", device_clock="modelled",
        dropped_command_count=0, command_count=8, peaks_of_each="chiplet", peaks_count=2,
        **{"peak memory__dram": 10_000_000_000, "peak engine__neural.bf16": 100_000_000_000},
    )  # fmt: skip
    work, host = (DEVICE, WORKLOAD), (DEVICE, HOST)
    t.slice(host, "i0_0_tokens_0", 0, 50)
    t.slice(host, "i1_0_sample_0", 400, 480)
    t.slice(work, "i0_0_Device Workload_0", 100, 400, phase="prefill", program="prefill_4_kv64",
            tokens=4, capacity=64, valid=3, past=0)  # fmt: skip
    t.slice(work, "i1_0_Device Workload_0", 500, 900, phase="decode", program="decode_1_kv64",
            tokens=1, capacity=64, valid=1, past=3)  # fmt: skip
    t.slice(work, "i1_0_Device Workload_1", 920, 1000, phase="head", program="head_1",
            tokens=1, capacity=0, valid=1, past=3)  # fmt: skip
    up = "i1_0_W0_model.model.layers.0.mlp.up_proj"
    t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 100, 400, kind="linear", bytes=30,
            operations=600, percent=50, bound_by="compute", shape="3x4 . 4x8", format="bf16",
            memory="shared, scratchpad -> shared")  # fmt: skip
    weight = {"kind": "weight_copy", "shape": "1x1600", "format": "packed",
              "memory": "dram -> scratchpad", "bound_by": "memory"}  # fmt: skip
    t.slice(engine(0, WEIGHTS), f"{up}.weight_0", 500, 700, bytes=1600, percent=80, **weight)
    down = "i1_0_W0_model.model.layers.1.mlp.down_proj.weight_0"
    t.slice(engine(0, WEIGHTS), down, 700, 780, bytes=800, percent=100, **weight)
    t.slice(engine(1, WEIGHTS), f"{up}.weight_0", 500, 760, bytes=1600, percent=60, **weight)
    product = {"kind": "linear", "shape": "1x25 . 25x32", "format": "bf16", "operations": 1600,
               "memory": "shared, scratchpad -> shared", "bytes": 1700, "percent": 16,
               "bound_by": "wait"}  # fmt: skip
    first, second = t.flow(), t.flow()
    cause = "model.model.layers.0.mlp.up_proj.weight_0 (chiplet {})"
    t.slice(engine(0, NEURAL), f"{up}_0", 710, 810, (first,), waited_for=cause.format(0), **product)
    t.slice(engine(1, NEURAL), f"{up}_0", 770, end_of_1, (second,), waited_for=cause.format(1),
            **product)  # fmt: skip
    t.slice(engine(0, TASK), "i1_0_W0_sum_0", 885, 895, (first, second), kind="copy", bytes=64,
            memory="shared -> shared of chiplet 1", shape="1x16", format="f32", percent=1,
            bound_by="setup")  # fmt: skip
    t.slice(engine(0, NEURAL), "i1_0_W1_model.lm_head_0", 920, 1000, kind="linear", bytes=90,
            operations=400, percent=25, bound_by="compute", shape="1x4 . 4x50", format="bf16",
            memory="shared, scratchpad -> shared")  # fmt: skip
    return t


def answers(times: list[int], host: int = 10, **attributes: Any) -> Maker:
    """A prefill of 100 ns and decode steps of `times`, with `host` ns before each."""
    t = Maker(device_clock="modelled", dielet_version="0", dropped_command_count=0, **attributes)
    at = host
    for n, duration in enumerate([100, *times]):
        step = "i0_0" if n == 0 else f"i1_{n - 1}"
        phase = "decode" if n else "prefill"
        t.slice((DEVICE, HOST), f"{step}_work_0", at - host, at)
        valid, past = (1, n + 4) if n else (5, 0)
        t.slice((DEVICE, WORKLOAD), f"{step}_Device Workload_0", at, at + duration, phase=phase,
                program=phase, tokens=1 if n else 8, valid=valid, past=past)  # fmt: skip
        t.slice(engine(0, NEURAL), f"{step}_W0_a_0", at, at + duration, kind="linear", bytes=40)
        at += duration + host
    return t
