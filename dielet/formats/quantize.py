"""Choose the codes and scales of float weights so that the squared error is least.

Nearest rounding with absmax/7 wastes a code and lets one outlier set the step of its whole group.
Here every group tries several steps around its largest magnitude, keeps the one with the least
error after a least-squares fit of the scale, fits once more, rounds the scale to the float16 that
is stored, and only then chooses the codes: what is stored and what was optimised agree.

With an importance for each input, the squared error is weighted by it: of a linear's outputs, an
error in a weight shows as much as what is multiplied by it is large.  Both searches are then made,
and each group keeps what suits the importance better.

The work runs on blocks [group, M] of M groups side by side, transposed so that every step is one
long vector operation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.errors import NumericError
from dielet.formats.bf16 import from_bf16, to_bf16
from dielet.formats.packed import PANEL, Packed, WeightFormat, pack
from dielet.formats.parallel import for_panels

F32 = NDArray[np.float32]
Rows = Callable[[int, int], F32]  # (lo, hi) -> float32 [hi - lo, K]

# Steps that are tried, as the code that the largest magnitude (symmetric) or the range (minimum)
# is given: beyond the largest code means that outliers are clipped.  Six of them come within 2 % of
# the error of forty.
_SYMMETRIC = {
    "int4": tuple(-c for c in np.linspace(6.75, 9.75, 6)),
    "int8": tuple(-c for c in np.linspace(126.0, 131.0, 6)),
}
_RANGE = {
    "int4": tuple(np.linspace(13.5, 18.5, 6)),
    "int8": tuple(np.linspace(253.0, 258.0, 6)),
}
# Weights in one block.  Smaller ones fit the second-level cache, but then threads spend their time
# handing the interpreter lock to each other: 2**18 is 2.5 times as fast on two threads as 2**15.
_BLOCK = 1 << 18
# Beside its largest magnitude a group may have little that matters: with importances, steps that
# clip more are tried too, and the scale is fitted more than once.
_CLIPPING = {
    "int4": tuple(-c for c in np.linspace(6.75, 16.0, 12)),
    "int8": tuple(-c for c in np.linspace(126.0, 160.0, 12)),
}
_CLIPPED_RANGE = {
    "int4": tuple(np.linspace(13.5, 27.0, 12)),
    "int8": tuple(np.linspace(253.0, 290.0, 12)),
}
_FITS = 3
_OUTSIDE = 0.1  # of the mean importance: weights that matter less may lie beyond the codes
_LEAST_IMPORTANCE = 1e-3  # of a group's mean: what never mattered yet may matter in another text
_SMALLEST = 1e-7  # a group below this has a scale that float16 cannot hold: it is zero
_LARGEST = float(np.finfo(np.float16).max)


def quantize(
    fmt: WeightFormat,
    rows: F32,
    name: str = "weight",
    threads: int | None = None,
    importance: F32 | None = None,
) -> Packed:
    """float32 [N, K] -> packed [panels, groups] in `fmt`, at the least squared error it can find.

    `name` is what an error calls the tensor.  `importance` [K], none negative, weights the squared
    errors of the inputs.  The result does not depend on `threads` (default: every core).  Raises
    NumericError for NaN, infinity, and what float16 or bf16 cannot hold.
    """
    N, K = rows.shape
    return quantize_rows(
        fmt, lambda lo, hi: rows[lo:hi], N, K, name=name, threads=threads, importance=importance
    )


def quantize_rows(
    fmt: WeightFormat,
    rows: Rows,
    N: int,
    K: int,
    *,
    name: str = "weight",
    threads: int | None = None,
    out: Packed | None = None,
    importance: F32 | None = None,
) -> Packed:
    """Like `quantize`, but the rows are asked for a few panels at a time, from every thread."""
    fmt.check_columns(K, name)
    assert not fmt.zeros, f"{name}: codes are taken over into {fmt.name}, never chosen for it"
    assert importance is None or (importance.shape == (K,) and importance.min() >= 0)
    if out is None:
        out = np.empty(fmt.packed_shape(N, K), fmt.record(K))

    def convert(lo: int, hi: int) -> None:
        part = np.ascontiguousarray(rows(lo, hi), np.float32)
        panels = out[lo // PANEL : -(-hi // PANEL)]
        with np.errstate(all="ignore"):
            _quantize_panels(fmt, part, panels, f"{name} rows {lo}..{hi - 1}", importance)

    for_panels(N, K, convert, threads)
    return out


def _quantize_panels(
    fmt: WeightFormat, rows: F32, out: Packed, where: str, importance: F32 | None
) -> None:
    N, K = rows.shape
    if fmt.kind == "bf16":
        bits = to_bf16(rows)
        if not np.isfinite(from_bf16(bits)).all():
            raise NumericError(_complaint(fmt, rows, where))
        pack(fmt, bits, out=out)
        return
    groups = rows.reshape(-1, fmt.group)
    codes = np.empty(groups.shape, np.uint8)
    scale = np.empty(len(groups), np.float16)
    minimum = np.empty(len(groups), np.float16) if fmt.minimum else None
    width = max(1, _BLOCK // fmt.group)
    for lo in range(0, len(groups), width):
        part = slice(lo, lo + width)
        x = np.ascontiguousarray(groups[part].T)
        found = _search(fmt, x, _Even(len(x)))
        if importance is not None:
            by_group = importance.reshape(-1, fmt.group)
            numbers = np.arange(lo, lo + x.shape[1]) % len(by_group)
            _improve(fmt, x, found, np.ascontiguousarray(by_group[numbers].T))
        codes[part], scale[part] = found.q.T, found.scale
        if minimum is not None:
            minimum[part] = found.minimum
    shape = (N, K // fmt.group)
    largest = max(rows.max(), -rows.min())  # NaN where a weight is
    # Sums over larger ones may overflow, and what is fitted to an infinite sum is a scale of zero.
    limit = _LARGEST if fmt.minimum else _LARGEST * fmt.zero_point
    if not (np.isfinite(scale).all() and largest <= limit):
        raise NumericError(_complaint(fmt, rows, where))
    pack(
        fmt,
        codes.reshape(N, K),
        scale.reshape(shape),
        None if minimum is None else minimum.reshape(shape),
        out=out,
    )


@dataclass(frozen=True)
class _Found:
    """Codes [group, M] of M groups, and their scale and minimum [M] (0 where there is none)."""

    q: NDArray[np.uint8]
    scale: NDArray[np.float16]
    minimum: NDArray[np.float16]

    def error(self, fmt: WeightFormat, x: F32, importance: F32) -> F32:
        """The weighted squared error of every group, [M]."""
        wrong = self.q.astype(np.float32)
        if not fmt.minimum:
            wrong -= fmt.zero_point
        wrong *= self.scale.astype(np.float32)
        wrong += self.minimum.astype(np.float32)
        wrong -= x
        return np.einsum("km,km,km->m", importance, wrong, wrong)


class _Even:
    """Sums over a group's weights, which all matter alike."""

    symmetric, ranges, fits = _SYMMETRIC, _RANGE, 1
    least_square, least_variance = np.float32(1), np.float32(0.5)  # of codes that are not all one

    def __init__(self, group: int) -> None:
        self.total: np.float32 | F32 = np.float32(group)

    def edges(self, x: F32) -> tuple[F32, F32]:
        """The largest and the smallest of x, between which steps are tried."""
        return x.max(axis=0), x.min(axis=0)

    def mean(self, a: F32) -> F32:
        found: F32 = a.mean(axis=0)
        return found

    def dot(self, a: F32, b: F32) -> F32:
        return np.einsum("km,km->m", a, b)


class _Weighted(_Even):
    """Sums over a group's weights by `importance` [group, M], whose mean is made 1."""

    symmetric, ranges, fits = _CLIPPING, _CLIPPED_RANGE, _FITS
    least_square = least_variance = np.float32(_LEAST_IMPORTANCE / 2)

    def __init__(self, importance: F32) -> None:
        mean = importance.mean(axis=0)
        self.weight = np.divide(
            importance, mean, out=np.ones_like(importance), where=mean > np.finfo(np.float32).tiny
        )
        np.maximum(self.weight, np.float32(_LEAST_IMPORTANCE), out=self.weight)
        self.total = self.weight.sum(axis=0)

    def edges(self, x: F32) -> tuple[F32, F32]:
        return super().edges(np.where(self.weight < _OUTSIDE, self.mean(x), x))

    def mean(self, a: F32) -> F32:
        found: F32 = np.einsum("km,km->m", self.weight, a) / self.total
        return found

    def dot(self, a: F32, b: F32) -> F32:
        return np.einsum("km,km,km->m", self.weight, a, b)


def _improve(fmt: WeightFormat, x: F32, found: _Found, importance: F32) -> None:
    """Where the search by `importance` [group, M] found better, put that in `found`."""
    other = _search(fmt, x, _Weighted(importance))
    better = other.error(fmt, x, importance) < found.error(fmt, x, importance)
    for ours, theirs in (
        (found.q, other.q), (found.scale, other.scale), (found.minimum, other.minimum)
    ):  # fmt: skip
        np.copyto(ours, theirs, where=better)


def _search(fmt: WeightFormat, x: F32, sums: _Even) -> _Found:
    return _with_minimum(fmt, x, sums) if fmt.minimum else _symmetric(fmt, x, sums)


def _symmetric(fmt: WeightFormat, x: F32, sums: _Even) -> _Found:
    """x [group, M] -> codes and scale, so that scale*(code - zero_point) is near x.

    The scale carries the sign of the largest magnitude, which so reaches the code -zero_point:
    the side of the range that has one code more.
    """
    low, high = -fmt.zero_point, fmt.largest_code - fmt.zero_point
    top, bottom = sums.edges(x)
    peak = np.where(top > -bottom, top, bottom)
    live = np.abs(peak) > _SMALLEST
    inverse_peak = _inverse(peak, live)
    q = np.empty_like(x)
    best = np.full(peak.shape, -1, np.float32)
    scale = np.zeros_like(peak)

    def fit(inverse_scale: F32) -> tuple[F32, F32]:
        """Fill q; give sum(x*q) and sum(q*q), from which the best scale is their quotient."""
        np.multiply(x, inverse_scale, out=q)
        np.rint(q, out=q)
        np.clip(q, low, high, out=q)
        return sums.dot(x, q), np.maximum(sums.dot(q, q), sums.least_square)

    for code in sums.symmetric[fmt.kind]:
        xq, qq = fit(inverse_peak * np.float32(code))
        candidate = xq / qq
        gain = candidate * xq  # how much of sum(x*x) this choice explains
        better = gain > best
        np.copyto(best, gain, where=better)
        np.copyto(scale, candidate, where=better & live)
    for _ in range(sums.fits):
        xq, qq = fit(_inverse(scale, live & (scale != 0)))
        np.copyto(scale, xq / qq, where=live)
    stored = scale.astype(np.float16)
    rounded = stored.astype(np.float32)
    fit(_inverse(rounded, rounded != 0))
    q += fmt.zero_point
    return _Found(q.astype(np.uint8), stored, np.zeros_like(stored))


def _with_minimum(fmt: WeightFormat, x: F32, sums: _Even) -> _Found:
    """x [group, M] -> codes, scale and minimum, so that scale*code + minimum is near x."""
    high = fmt.largest_code
    top, bottom = sums.edges(x)
    middle, width = (top + bottom) / 2, top - bottom
    mean = sums.mean(x)
    live = width > _SMALLEST
    inverse_width = _inverse(width, live)
    q = np.empty_like(x)
    best = np.full(width.shape, -1, np.float32)
    scale, at_zero = np.zeros_like(width), mean.copy()

    def choose(inverse_scale: F32, zero: F32) -> None:
        """Fill q with the codes nearest to x when code 0 stands for `zero`."""
        np.subtract(x, zero, out=q)
        np.multiply(q, inverse_scale, out=q)
        np.rint(q, out=q)
        np.clip(q, 0, high, out=q)

    def fit() -> tuple[F32, F32, F32]:
        """The scale and value at code 0 that suit q best, and the sum of squares explained."""
        q_mean = sums.mean(q)
        covariance = sums.dot(x, q) - sums.total * mean * q_mean
        variance = sums.dot(q, q) - sums.total * q_mean * q_mean
        slope = (covariance / np.maximum(variance, sums.least_variance)).astype(np.float32)
        return slope, mean - slope * q_mean, slope * covariance

    for code in sums.ranges[fmt.kind]:
        inverse = inverse_width * np.float32(code)
        step = _inverse(inverse, live)
        choose(inverse, middle - step * np.float32(high / 2))
        slope, zero, gain = fit()
        better = (gain > best) & live
        np.copyto(best, gain, where=better)
        np.copyto(scale, slope, where=better)
        np.copyto(at_zero, zero, where=better)
    for _ in range(sums.fits):
        choose(_inverse(scale, scale != 0), at_zero)
        slope, zero, _ = fit()
        np.copyto(scale, slope, where=live)
        np.copyto(at_zero, zero, where=live)
    stored = np.where(live, scale, 0).astype(np.float16)
    rounded = stored.astype(np.float32)
    # extrapolating to code 0 may leave float16 even where no weight does
    minimum = np.clip(mean - rounded * sums.mean(q), -_LARGEST, _LARGEST).astype(np.float16)
    choose(_inverse(rounded, rounded != 0), minimum.astype(np.float32))
    return _Found(q.astype(np.uint8), stored, minimum)


def _inverse(x: F32, where: NDArray[np.bool_]) -> F32:
    """1/x where asked for, else 0, so that a group without a scale gets the code of zero."""
    return np.divide(1, x, out=np.zeros_like(x), where=where)


def _complaint(fmt: WeightFormat, rows: F32, where: str) -> str:
    """Say which kind of number made the quantiser fail."""
    bad = int(np.count_nonzero(~np.isfinite(rows)))
    if bad:
        return f"{where}: {bad} of {rows.size} weights are NaN or infinite; the file is damaged"
    largest = float(np.abs(rows).max())
    limit = "bf16's 3.39e38" if fmt.kind == "bf16" else f"float16's {_LARGEST:.0f}"
    return (
        f"{where}: the largest weight, {largest:.4g}, needs a scale or value above {limit}, "
        f"so {fmt.name} cannot hold it"
    )
