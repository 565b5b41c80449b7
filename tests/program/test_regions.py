"""Regions overlap and cover exactly as their bytes do."""

from hypothesis import given
from hypothesis import strategies as st

from dielet.program import Region


def bytes_of(region: Region) -> set[int]:
    return {
        region.offset + row * region.stride + column
        for row in range(region.rows)
        for column in range(region.width)
    }


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Region, Region]:
    stride = draw(st.integers(1, 12))

    def region() -> Region:
        width = draw(st.integers(1, 12))
        own = stride if draw(st.booleans()) else draw(st.integers(1, 12))
        rows = draw(st.integers(1, 4)) if width <= own else 1
        return Region("shared", draw(st.integers(0, 40)), rows, own, width)

    return region(), region()


@given(pairs())
def test_overlap_is_never_missed_and_exact_for_one_stride(pair: tuple[Region, Region]) -> None:
    a, b = pair
    shared = bool(bytes_of(a) & bytes_of(b))
    assert a.overlaps(b) or not shared
    if a.stride == b.stride and max(a.width, b.width) <= a.stride:
        assert a.overlaps(b) == shared
    if a.rows == b.rows == 1:
        assert a.overlaps(b) == shared


@given(pairs())
def test_covers_never_claims_too_much(pair: tuple[Region, Region]) -> None:
    a, b = pair
    if a.covers(b):
        assert bytes_of(b) <= bytes_of(a)
    assert a.covers(a)


def test_other_spaces_never_meet() -> None:
    assert not Region("io", 0, 1, 8, 8).overlaps(Region("kv", 0, 1, 8, 8))
