"""Quantisation: better than nearest rounding, what is stored is what was chosen, errors by name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dielet.errors import NumericError, UsageError
from dielet.formats.packed import GROUPS, WeightFormat, unpack
from dielet.formats.quantize import quantize, quantize_rows

FORMATS = [
    WeightFormat(kind, group, minimum)
    for kind in ("int8", "int4")
    for group in GROUPS
    for minimum in (False, True)
]
SHAPES = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy tails": lambda rng, size: rng.standard_t(3, size),
    "one-sided": lambda rng, size: rng.random(size) + 0.5,
    "sparse": lambda rng, size: rng.standard_normal(size) * (rng.random(size) < 0.05),
}


def nearest(fmt: WeightFormat, x: np.ndarray) -> np.ndarray:
    """What plain rounding gives: absmax/7 or absmax/127, or the range in 15 or 255 steps."""
    groups = x.reshape(-1, fmt.group)
    if fmt.minimum:
        low = groups.min(axis=1, keepdims=True)
        step = (groups.max(axis=1, keepdims=True) - low) / fmt.largest_code
    else:
        low = 0
        step = np.abs(groups).max(axis=1, keepdims=True) / (fmt.zero_point - 1)
    step[step == 0] = 1
    return (np.rint((groups - low) / step) * step + low).reshape(x.shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_squared_error_is_below_that_of_nearest_rounding(fmt, shape):
    x = SHAPES[shape](np.random.default_rng(1), (64, 512)).astype(np.float32)
    error = np.square(unpack(fmt, quantize(fmt, x), 64, 512) - x).sum()
    plain = np.square(nearest(fmt, x) - x).sum()
    usual = {"int4": 0.75, "int8": 0.93} if not fmt.minimum else {"int4": 0.9, "int8": 0.95}
    assert error <= plain * (usual[fmt.kind] if shape == "normal" else 1.0)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_codes_are_the_nearest_for_the_stored_scale(fmt):
    """No single code could be changed for the better: scale and codes belong together."""
    x = np.random.default_rng(2).standard_normal((32, fmt.group)).astype(np.float32)
    packed = quantize(fmt, x)
    error = np.abs(unpack(fmt, packed, 32, fmt.group) - x)
    scale = packed["scale"][0, 0].astype(np.float32)[:, None]
    low = packed["min"][0, 0].astype(np.float32)[:, None] if fmt.minimum else 0
    for code in range(fmt.largest_code + 1):
        other = scale * np.float32(code - (0 if fmt.minimum else fmt.zero_point)) + low
        assert (error <= np.abs(other - x) + 1e-5 * np.abs(scale)).all()


def test_symmetric_int4_uses_all_sixteen_codes():
    x = np.linspace(-8, 7, 32, dtype=np.float32)[None].repeat(32, axis=0)
    x[16:] *= -1  # the larger side may be either
    q = quantize(WeightFormat("int4", 32), x)["q"]
    assert set(np.unique(q & 15)) | set(np.unique(q >> 4)) == set(range(16))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_values_on_the_grid_are_kept_exactly(fmt):
    rng = np.random.default_rng(3)
    q = rng.integers(0, fmt.largest_code + 1, (32, 2, fmt.group))
    q[..., 0], q[..., 1] = 0, fmt.largest_code
    x = (q - fmt.zero_point).astype(np.float32).reshape(32, -1) / 64
    assert np.array_equal(unpack(fmt, quantize(fmt, x), *x.shape), x)


@given(
    st.sampled_from(FORMATS),
    hnp.arrays(
        np.float32,
        (3, 128),
        elements=st.floats(-60000, 60000, width=32, allow_subnormal=True),
        fill=st.floats(-1, 1, width=32),
    ),
)
@settings(max_examples=60, deadline=None)
def test_any_finite_weights_give_finite_values_no_worse_than_zero(fmt, x):
    seen = unpack(fmt, quantize(fmt, x), 3, 128)
    assert np.isfinite(seen).all()
    groups, kept = x.reshape(-1, fmt.group).astype(np.float64), seen.reshape(-1, fmt.group)
    allowed = np.square(groups).sum(axis=1) * 1.001 + fmt.group * 4e-14  # float16 ends at 6e-8
    assert (np.square(kept - groups).sum(axis=1) <= allowed).all()


@pytest.mark.parametrize("fmt", [*FORMATS, WeightFormat("bf16")], ids=lambda f: f.name)
def test_threads_and_pieces_do_not_change_a_bit(fmt):
    x = np.random.default_rng(4).standard_normal((1500, 512)).astype(np.float32)
    one = quantize(fmt, x, threads=1)
    assert quantize(fmt, x, threads=3).tobytes() == one.tobytes()
    asked = []

    def rows(lo: int, hi: int) -> np.ndarray:
        asked.append(hi - lo)
        return x[lo:hi]

    assert quantize_rows(fmt, rows, 1500, 512, threads=1).tobytes() == one.tobytes()
    assert sum(asked) == 1500 and len(asked) > 1
    assert quantize(fmt, x[32:64]).tobytes() == one[1:2].tobytes()


@pytest.mark.parametrize("fmt", [*FORMATS, WeightFormat("bf16")], ids=lambda f: f.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_name_the_tensor(fmt, bad):
    x = np.ones((40, 128), np.float32)
    x[35, 17] = bad
    with pytest.raises(NumericError, match=r"v_proj rows 0\.\.39: 1 of 5120 weights are NaN or in"):
        quantize(fmt, x, "v_proj")


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("largest", [3e8, 1e19, -2e37, 3e38])
@pytest.mark.parametrize("all_of_them", [False, True])
def test_weights_beyond_float16_name_the_tensor(fmt, largest, all_of_them):
    x = np.zeros((32, 128), np.float32)
    x[3, 5] = largest
    if all_of_them:
        x[:] = largest
    with pytest.raises(NumericError, match=r"v_proj.*(3e\+08|1e\+19|2e\+37|3e\+38).*65504"):
        quantize(fmt, x, "v_proj")


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_large_weights_within_a_format_are_kept(fmt):
    """What is taken is near what was given, up to where the scale leaves float16."""
    x = np.full((32, 128), 5e4 * (1 if fmt.minimum else fmt.zero_point), np.float32)
    x[:, ::2] *= -1
    x[:, 1::4] /= 2
    seen = unpack(fmt, quantize(fmt, x, "v_proj"), 32, 128)
    np.testing.assert_allclose(seen, x, atol=np.abs(x).max() / 7)


def test_the_width_must_be_a_multiple_of_the_group():
    with pytest.raises(UsageError, match="down_proj has 96 inputs"):
        quantize(WeightFormat("int4", 64), np.zeros((32, 96), np.float32), "down_proj")


def weighted(fmt, packed, x, importance):
    """The weighted squared error of every group, in float64."""
    wrong = unpack(fmt, packed, *x.shape).astype(np.float64) - x
    return (np.square(wrong) * importance).reshape(len(x), -1, fmt.group).sum(axis=-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_with_importances_no_group_has_a_larger_weighted_error(fmt, shape):
    rng = np.random.default_rng(5)
    x = SHAPES[shape](rng, (64, 512)).astype(np.float32)
    importance = np.exp(1.5 * rng.standard_normal(512)).astype(np.float32)
    importance[rng.permutation(512)[:40]] = 0
    plain = weighted(fmt, quantize(fmt, x), x, importance)
    ours = weighted(fmt, quantize(fmt, x, importance=importance), x, importance)
    assert (ours <= plain * (1 + 1e-5) + 1e-12).all()
    if shape == "normal":
        assert ours.sum() < plain.sum() * {"int4": 0.85, "int8": 0.9}[fmt.kind]


@pytest.mark.parametrize("minimum", [False, True])
def test_an_outlier_that_nothing_is_multiplied_by_costs_no_precision(minimum):
    """Thirty-one weights on a grid of sixteenths, and one far away whose input is always zero: the
    best choice has no weighted error at all, and the even one a large one."""
    fmt = WeightFormat("int4", 32, minimum)
    x = (np.arange(32, dtype=np.float32) % 16 - 8)[None].repeat(32, axis=0) / 16
    x[:, 5] = 3.0
    importance = np.ones(32, np.float32)
    importance[5] = 0
    assert weighted(fmt, quantize(fmt, x), x, importance).min() > 0.05
    ours = weighted(fmt, quantize(fmt, x, importance=importance), x, importance)
    assert ours.max() < (1e-3 if minimum else 1e-6)


def best_of_grid(x, importance):
    """The least weighted error of one symmetric int4 group over a fine grid of scales."""
    steps = np.linspace(0.3, 1.2, 4000) * np.abs(x).max() / 7
    scale = np.concatenate([steps, -steps]).astype(np.float16).astype(np.float64)[:, None]
    wrong = scale * np.clip(np.rint(x / scale), -8, 7) - x
    return (np.square(wrong) * importance).sum(axis=1).min()


def test_weighted_scales_are_near_the_best_of_a_fine_grid():
    rng = np.random.default_rng(6)
    x = rng.standard_normal((32, 64)).astype(np.float32)
    importance = np.exp(rng.standard_normal(64)).astype(np.float32)
    fmt = WeightFormat("int4", 32)
    ours = weighted(fmt, quantize(fmt, x, importance=importance), x, importance)
    best = [
        [best_of_grid(row[lo : lo + 32], importance[lo : lo + 32]) for lo in (0, 32)]
        for row in x.astype(np.float64)
    ]
    assert ours.sum() < 1.05 * np.sum(best)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_equal_importances_are_never_worse_than_none(fmt):
    x = np.random.default_rng(7).standard_normal((64, 256)).astype(np.float32)
    even = np.ones(256, np.float32)
    plain = weighted(fmt, quantize(fmt, x), x, even)
    for scale in (1.0, 1e-9, 1e9):
        ours = weighted(fmt, quantize(fmt, x, importance=even * np.float32(scale)), x, even)
        assert (ours <= plain * (1 + 1e-5)).all()
    nothing = quantize(fmt, x, importance=even * 0)
    assert nothing.tobytes() == quantize(fmt, x).tobytes()


def test_importances_do_not_depend_on_threads_or_pieces():
    fmt = WeightFormat("int4", 32, True)
    rng = np.random.default_rng(8)
    x = rng.standard_normal((1500, 512)).astype(np.float32)
    importance = rng.random(512).astype(np.float32)
    one = quantize(fmt, x, threads=1, importance=importance)
    assert quantize(fmt, x, threads=3, importance=importance).tobytes() == one.tobytes()
    assert quantize(fmt, x[32:64], importance=importance).tobytes() == one[1:2].tobytes()
    half = quantize(fmt, x[:, 256:], importance=importance[256:])
    assert half.tobytes() == np.ascontiguousarray(one[:, 8:]).tobytes()
