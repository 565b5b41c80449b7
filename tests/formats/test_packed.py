"""The packed layout: every byte where the page says, and every value back again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dielet.errors import UsageError
from dielet.formats.bf16 import from_bf16, to_bf16
from dielet.formats.packed import GROUPS, PANEL, WeightFormat, pack, unpack, unpack_rows

INTEGER = [
    WeightFormat(kind, group, minimum, zeros)
    for kind in ("int8", "int4")
    for group in GROUPS
    for minimum, zeros in ((False, False), (True, False), (True, True))
]
FORMATS = [WeightFormat("bf16"), *INTEGER]


def codes(fmt: WeightFormat, N: int, K: int, seed: int = 0):
    """Random codes, scales and minima of a weight [N, K]."""
    rng = np.random.default_rng(seed)
    q = rng.integers(0, fmt.largest_code + 1, (N, K)).astype(np.uint8)
    scale = rng.standard_normal((N, K // fmt.group)).astype(np.float16)
    if fmt.zeros:
        return q, scale, -rng.integers(0, fmt.largest_code + 2, scale.shape).astype(np.float16)
    minimum = rng.standard_normal(scale.shape).astype(np.float16) if fmt.minimum else None
    return q, scale, minimum


def values(fmt: WeightFormat, q, scale, minimum):
    """The definition, in numpy's plainest words."""
    wide = np.repeat(scale.astype(np.float32), fmt.group, axis=1)
    if minimum is None:
        return wide * (q.astype(np.float32) - np.float32(fmt.zero_point))
    if fmt.zeros:
        return wide * (q + np.repeat(minimum.astype(np.float32), fmt.group, axis=1))
    return wide * q + np.repeat(minimum.astype(np.float32), fmt.group, axis=1)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_names_round_trip(fmt):
    assert WeightFormat.parse(fmt.name) == fmt


@pytest.mark.parametrize("name", ["", "int4", "int4g16", "int8g32x", "bf16g32", "fp8", "INT8g32"])
def test_unknown_names_are_refused_with_what_is_known(name):
    with pytest.raises(UsageError, match="int4g32m"):
        WeightFormat.parse(name)


def test_impossible_formats_are_refused():
    with pytest.raises(UsageError, match="fp8"):
        WeightFormat("fp8")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="32, 64, 128"):
        WeightFormat("int4", 48)
    with pytest.raises(UsageError, match="no groups"):
        WeightFormat("bf16", 32)
    with pytest.raises(UsageError, match=r"q_proj has 96 inputs.*int4g64.*multiple of 64"):
        WeightFormat("int4", 64).check_columns(96, "q_proj")
    with pytest.raises(UsageError, match="use minimum"):
        WeightFormat("int4", 64, zeros=True)
    with pytest.raises(UsageError):
        WeightFormat("bf16").record(3)


@pytest.mark.parametrize("fmt", INTEGER, ids=lambda f: f.name)
@pytest.mark.parametrize("N", [1, 31, 32, 33, 70])
def test_integer_formats_round_trip(fmt, N):
    K = 2 * fmt.group
    q, scale, minimum = codes(fmt, N, K)
    packed = pack(fmt, q, scale, minimum)
    assert packed.shape == fmt.packed_shape(N, K) == (-(-N // PANEL), 2)
    assert packed.nbytes == fmt.nbytes(N, K)
    expected = values(fmt, q, scale, minimum)
    assert np.array_equal(unpack(fmt, packed, N, K), expected)
    ids = [N - 1, 0, N // 2, N - 1]
    assert np.array_equal(unpack_rows(fmt, packed, ids, K), expected[ids])
    padding = unpack(fmt, packed, packed.shape[0] * PANEL, K)[N:]
    assert not padding.any() and not np.signbit(padding).any()


@pytest.mark.parametrize("N", [1, 32, 45])
def test_bf16_round_trips_from_floats_and_from_bits(N):
    fmt, K = WeightFormat("bf16"), 50
    x = np.random.default_rng(N).standard_normal((N, K)).astype(np.float32)
    packed = pack(fmt, x)
    assert packed.nbytes == fmt.nbytes(N, K)
    assert np.array_equal(unpack(fmt, packed, N, K), from_bf16(to_bf16(x)))
    assert pack(fmt, to_bf16(x)).tobytes() == packed.tobytes()


@given(st.sampled_from(INTEGER), st.data())
@settings(max_examples=40, deadline=None)
def test_bytes_lie_where_kernels_look(fmt, data):
    N, K = 40, 2 * fmt.group
    q, scale, minimum = codes(fmt, N, K)
    stream = pack(fmt, q, scale, minimum).tobytes()
    n, k = data.draw(st.integers(0, N - 1)), data.draw(st.integers(0, K - 1))
    panel, lane, g, kk = n // PANEL, n % PANEL, k // fmt.group, k % fmt.group
    code_bytes = fmt.group * PANEL // (2 if fmt.kind == "int4" else 1)
    record = code_bytes + 64 + (64 if fmt.minimum else 0)
    start = (panel * 2 + g) * record
    if fmt.kind == "int8":
        assert stream[start + (kk // 4 * PANEL + lane) * 4 + kk % 4] == q[n, k]
    else:
        byte = stream[start + (kk // 8 * PANEL + lane) * 4 + kk % 4]
        assert (byte & 15 if kk % 8 < 4 else byte >> 4) == q[n, k]
    at = start + code_bytes + 2 * lane
    assert np.frombuffer(stream[at : at + 2], "<f2")[0] == scale[n, g]
    if minimum is not None:
        assert np.frombuffer(stream[at + 64 : at + 66], "<f2")[0] == minimum[n, g]


def test_bf16_bytes_lie_where_kernels_look():
    N, K = 33, 6
    bits = np.arange(N * K, dtype=np.uint16).reshape(N, K)
    words = np.frombuffer(pack(WeightFormat("bf16"), bits).tobytes(), "<u2").reshape(2, 3, 32, 2)
    for n in range(N):
        for k in range(K):
            assert words[n // 32, k // 2, n % 32, k % 2] == bits[n, k]


def test_packing_into_a_slice_writes_nothing_else():
    fmt = WeightFormat("int4", 32, True)
    whole = np.zeros((3, 2), fmt.record(64))
    q, scale, minimum = codes(fmt, 32, 64)
    pack(fmt, q, scale, minimum, out=whole[1:2])
    assert whole[1].tobytes() == pack(fmt, q, scale, minimum).tobytes()
    assert not any(whole[0].tobytes()) and not any(whole[2].tobytes())
