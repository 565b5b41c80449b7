"""Perfetto's messages, as much of them as we write: field numbers and whole small packets.

Numbers are from perfetto's protos (`trace_packet.proto`, `track_event/*.proto`), which keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from dielet.profiler.wire import fixed64, number, text, varint

SEQUENCE = 1  # trusted_packet_sequence_id of everything that we write
CLEARED, NEEDS_STATE = 1, 2  # sequence_flags

# TracePacket
TIMESTAMP, SEQUENCE_ID, TRACK_EVENT, INTERNED, FLAGS = 8, 10, 11, 12, 13
COMPRESSED, DEFAULTS, TRACK_DESCRIPTOR, ATTRIBUTES = 50, 59, 60, 126
EVENT_DEFAULTS = 11  # TracePacketDefaults
# TrackEvent
CATEGORY, ANNOTATION, TYPE, NAME, TRACK = 3, 4, 9, 10, 11
CATEGORY_TEXT, NAME_TEXT, COUNTER_INT, COUNTER_DOUBLE = 22, 23, 30, 44
FLOW, TERMINATING_FLOW, OLD_FLOW, OLD_TERMINATING_FLOW = 47, 48, 36, 42
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  # type
# DebugAnnotation
KEY, BOOL, UINT, INT, DOUBLE, STRING_TEXT, KEY_TEXT, STRING = 1, 2, 3, 4, 5, 6, 10, 17
# InternedData
CATEGORIES, NAMES, KEYS, STRINGS = 1, 2, 3, 29
TEXT_KINDS = (CATEGORIES, NAMES, KEYS, STRINGS)

EXPLICIT, KEEP_APART = 3, 2  # child_ordering, sibling_merge_behavior
PACKET_TAG = 0x0A


def packet(body: bytes) -> bytes:
    """One packet of a file."""
    return bytes((PACKET_TAG,)) + varint(len(body)) + body


def stateful(body: bytes, flags: int = NEEDS_STATE) -> bytes:
    """A packet that defines or uses interned texts."""
    return packet(number(SEQUENCE_ID, SEQUENCE) + number(FLAGS, flags) + body)


def track_descriptor(
    uuid: int,
    name: str,
    parent: int | None,
    rank: int,
    description: str = "",
    unit: str | None = None,
) -> bytes:
    """The packet that announces a track; with a `unit` it is a counter."""
    body = number(1, uuid) + text(2, name)
    if parent is not None:
        body += number(5, parent)
    if unit is not None:
        body += text(8, number(3, 3) if unit == "bytes" else text(6, unit))
    else:
        body += number(11, EXPLICIT)
    body += number(12, rank)
    if description:
        body += text(14, description)
    return packet(text(TRACK_DESCRIPTOR, body + number(15, KEEP_APART)))


def attributes(values: Mapping[str, int | str]) -> bytes:
    """The packet of facts about the whole trace."""
    return packet(
        text(
            ATTRIBUTES,
            b"".join(
                text(1, text(1, key) + (number(2, v) if isinstance(v, int) else text(3, v)))
                for key, v in values.items()
            ),
        )
    )


def interned(entries: Iterable[tuple[int, int, str]], flags: int = NEEDS_STATE) -> bytes:
    """The packet that defines texts: (CATEGORIES, NAMES, KEYS or STRINGS; iid; text)."""
    body = b"".join(text(kind, number(1, iid) + text(2, value)) for kind, iid, value in entries)
    return stateful(text(INTERNED, body), flags)


@lru_cache(1 << 14)
def string_argument(key: int, value: int) -> bytes:
    """A debug annotation: interned key and interned text."""
    return text(ANNOTATION, number(KEY, key) + number(STRING, value))


def flow(identity: int) -> bytes:
    return fixed64(FLOW, identity)
