"""Traces of a few packets, with every kind of packet and argument that the readers know."""

from __future__ import annotations

from dielet.profiler import perfetto as p
from dielet.profiler.wire import double, number, text

DEVICE, WORK, LANE, COUNT = 1, 2, 3, 4  # tracks


def _event(time: int, kind: int, track: int, body: bytes = b"") -> bytes:
    inside = number(p.TYPE, kind) + number(p.TRACK, track) + body
    return p.stateful(number(p.TIMESTAMP, time) + text(p.TRACK_EVENT, inside))


def _argument(key: bytes, value: bytes) -> bytes:
    return text(p.ANNOTATION, key + value)


def small_trace(plain: bool = False) -> bytes:
    """Two runs of one command each; plain: texts stand in the events, not in tables."""
    tracks = (
        p.track_descriptor(DEVICE, "Device 0 (toy, modelled)", None, 0)
        + p.track_descriptor(WORK, "Device Workload", DEVICE, 1)
        + p.track_descriptor(LANE, "Neural DMA", DEVICE, 2)
        + p.track_descriptor(COUNT, "DRAM GB/s", DEVICE, 3, unit="GB/s")
    )
    facts = p.attributes({"model": "toy", "device_clock": "modelled", "command_count": 2})
    tables = p.interned(
        [(p.NAMES, 1, "i0_0_W0_a_0"), (p.NAMES, 2, "i0_1_W0_a_0"), (p.CATEGORIES, 1, "Neural DMA"),
         (p.KEYS, 1, "bytes"), (p.KEYS, 2, "bound by"), (p.STRINGS, 1, "memory")],
        p.CLEARED | p.NEEDS_STATE,
    )  # fmt: skip
    if plain:
        names = [text(p.NAME_TEXT, f"i0_{n}_W0_a_0") + text(p.CATEGORY_TEXT, "x") for n in (0, 1)]
        said = _argument(text(p.KEY_TEXT, "bytes"), number(p.UINT, 64))
        said += _argument(text(p.KEY_TEXT, "waited for"), text(p.STRING_TEXT, "b"))
    else:
        names = [number(p.NAME, n) + number(p.CATEGORY, 1) for n in (1, 2)]
        said = _argument(number(p.KEY, 1), number(p.UINT, 64)) + p.string_argument(2, 1)
    events = b""
    for n, name in enumerate(names):
        at = 100 * n
        events += _event(at, p.BEGIN, LANE, name + said + p.flow(n + 1))
        events += _event(at + 50, p.END, LANE)
        events += _event(at, p.COUNTER, COUNT, double(p.COUNTER_DOUBLE, 1.5))
    return facts + tracks + tables + events


TRACES = (small_trace(), small_trace(plain=True))
