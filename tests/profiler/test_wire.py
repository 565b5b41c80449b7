"""The encoder against Google's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from dielet.profiler import perfetto as p
from dielet.profiler.wire import double, fixed64, number, text, varint, varints, width_of, words

LONG = st.integers(0, 2**64 - 1)


@given(LONG, st.integers(1, 10))
def test_padded_varints_are_read(value: int, width: int) -> None:
    data = varint(value, width)
    assert len(data) == max(width, width_of(value))
    packet = pb.TracePacket()
    packet.ParseFromString(number(p.TIMESTAMP, value, width))
    assert packet.timestamp == value


@given(st.integers(1, 8), st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_columns_of_varints_are_the_same(width: int, values: list[int]) -> None:
    values = [value % 2 ** (7 * width) for value in values]
    rows = varints(np.array(values), width)
    assert [row.tobytes() for row in rows] == [varint(value, width) for value in values]


@given(st.floats(allow_nan=False), LONG, st.text())
def test_other_fields(value: float, identity: int, name: str) -> None:
    event = pb.TrackEvent()
    event.ParseFromString(double(44, value) + fixed64(47, identity) + text(23, name))
    assert event.double_counter_value == value
    assert list(event.flow_ids) == [identity]
    assert event.name == name


def test_columns_of_words() -> None:
    values = np.array([[1.5, -2.0], [0.0, 1e300]])
    assert words(values).tobytes() == values.tobytes()
    assert words(values).shape == (2, 2) and words(values).itemsize == 8


def test_negative_numbers_are_64_bits() -> None:
    event = pb.TrackEvent()
    event.ParseFromString(number(30, -5))
    assert event.counter_value == -5
