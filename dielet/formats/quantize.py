"""Choose the codes and scales of float weights so that the squared error is least.

Nearest rounding with absmax/7 wastes a code and lets one outlier set the step of its whole group.
Here every group tries several steps around its largest magnitude, keeps the one with the least
error after a least-squares fit of the scale, fits once more, rounds the scale to the float16 that
is stored, and only then chooses the codes: what is stored and what was optimised agree.

The work runs on blocks [group, M] of M groups side by side, transposed so that every step is one
long vector operation.
"""

from collections.abc import Callable

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
_SMALLEST = 1e-7  # a group below this has a scale that float16 cannot hold: it is zero
_LARGEST = float(np.finfo(np.float16).max)


def quantize(
    fmt: WeightFormat, rows: F32, name: str = "weight", threads: int | None = None
) -> Packed:
    """float32 [N, K] -> packed [panels, groups] in `fmt`, at the least squared error it can find.

    `name` is what an error calls the tensor.  The result does not depend on `threads` (default:
    every core).  Raises NumericError for NaN, infinity, and what float16 or bf16 cannot hold.
    """
    N, K = rows.shape
    return quantize_rows(fmt, lambda lo, hi: rows[lo:hi], N, K, name=name, threads=threads)


def quantize_rows(
    fmt: WeightFormat,
    rows: Rows,
    N: int,
    K: int,
    *,
    name: str = "weight",
    threads: int | None = None,
    out: Packed | None = None,
) -> Packed:
    """Like `quantize`, but the rows are asked for a few panels at a time, from every thread."""
    fmt.check_columns(K, name)
    if out is None:
        out = np.empty(fmt.packed_shape(N, K), fmt.record(K))

    def convert(lo: int, hi: int) -> None:
        part = np.ascontiguousarray(rows(lo, hi), np.float32)
        panels = out[lo // PANEL : -(-hi // PANEL)]
        with np.errstate(all="ignore"):
            _quantize_panels(fmt, part, panels, f"{name} rows {lo}..{hi - 1}")

    for_panels(N, K, convert, threads)
    return out


def _quantize_panels(fmt: WeightFormat, rows: F32, out: Packed, where: str) -> None:
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
        if minimum is None:
            q, scale[part] = _symmetric(fmt, x)
        else:
            q, scale[part], minimum[part] = _with_minimum(fmt, x)
        codes[part] = q.T
    shape = (N, K // fmt.group)
    largest = max(rows.max(), -rows.min())  # NaN where a weight is
    limit = _LARGEST if fmt.minimum else np.finfo(np.float32).max
    if not (np.isfinite(scale).all() and largest <= limit):
        raise NumericError(_complaint(fmt, rows, where))
    pack(
        fmt,
        codes.reshape(N, K),
        scale.reshape(shape),
        None if minimum is None else minimum.reshape(shape),
        out=out,
    )


def _symmetric(fmt: WeightFormat, x: F32) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """x [group, M] -> codes [group, M], scale [M], so that scale*(code - zero_point) is near x.

    The scale carries the sign of the largest magnitude, which so reaches the code -zero_point:
    the side of the range that has one code more.
    """
    low, high = -fmt.zero_point, fmt.largest_code - fmt.zero_point
    top, bottom = x.max(axis=0), x.min(axis=0)
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
        return np.einsum("km,km->m", x, q), np.einsum("km,km->m", q, q)

    for code in _SYMMETRIC[fmt.kind]:
        xq, qq = fit(inverse_peak * np.float32(code))
        candidate = xq / np.maximum(qq, 1)
        gain = candidate * xq  # how much of sum(x*x) this choice explains
        better = gain > best
        np.copyto(best, gain, where=better)
        np.copyto(scale, candidate, where=better & live)
    xq, qq = fit(_inverse(scale, live))
    np.copyto(scale, xq / np.maximum(qq, 1), where=live)
    stored = scale.astype(np.float16)
    rounded = stored.astype(np.float32)
    fit(_inverse(rounded, rounded != 0))
    q += fmt.zero_point
    return q.astype(np.uint8), stored


def _with_minimum(
    fmt: WeightFormat, x: F32
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """x [group, M] -> codes [group, M], scale [M], minimum [M]: scale*code + minimum is near x."""
    group, high = len(x), fmt.largest_code
    top, bottom = x.max(axis=0), x.min(axis=0)
    middle, width = (top + bottom) / 2, top - bottom
    mean = x.mean(axis=0)
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
        q_mean = q.mean(axis=0)
        covariance = np.einsum("km,km->m", x, q) - group * mean * q_mean
        variance = np.einsum("km,km->m", q, q) - group * q_mean * q_mean
        slope = covariance / np.maximum(variance, np.float32(0.5))
        return slope, mean - slope * q_mean, slope * covariance

    for code in _RANGE[fmt.kind]:
        inverse = inverse_width * np.float32(code)
        step = _inverse(inverse, live)
        choose(inverse, middle - step * np.float32(high / 2))
        slope, zero, gain = fit()
        better = (gain > best) & live
        np.copyto(best, gain, where=better)
        np.copyto(scale, slope, where=better)
        np.copyto(at_zero, zero, where=better)
    choose(_inverse(scale, scale != 0), at_zero)
    slope, _, _ = fit()
    stored = np.where(live, slope, 0).astype(np.float16)
    rounded = stored.astype(np.float32)
    # extrapolating to code 0 may leave float16 even where no weight does
    minimum = np.clip(mean - rounded * q.mean(axis=0), -_LARGEST, _LARGEST).astype(np.float16)
    choose(_inverse(rounded, rounded != 0), minimum.astype(np.float32))
    return q.astype(np.uint8), stored, minimum


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
