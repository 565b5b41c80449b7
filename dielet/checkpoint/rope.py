"""Rotary frequencies, with the ways in which configurations stretch them.

The names and formulas are those of Hugging Face's `rope_scaling`; "factors" is GGUF's own way to
say the same as llama3: one divisor per frequency.  Two kinds depend on the length of the text:

dynamic   a position beyond the trained ones turns as in a text that ends with it, so a text that is
          decoded token by token has the turns that Hugging Face gives it, and no turn depends on
          how the text came in
longrope  the long divisors, for all positions, when a model is compiled for more positions than it
          was first trained with, else the short ones
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.errors import Unsupported, UsageError

_POSITIVE = "from 1e-18 to below 1e18"
# What each rope_type must say, and what it may.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
    "dynamic": ("factor", "max_position_embeddings"),
    "longrope": ("factor", "original_max_position_embeddings"),
    "factors": (),
}
_OPTIONAL = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    "longrope": ("attention_factor",),
}
_LISTS = {"factors": ("factors",), "longrope": ("short_factor", "long_factor")}


def check_rope_scaling(scaling: Mapping[str, Any] | None, dim: int) -> None:
    """Raise Unsupported for an unknown rope_type, UsageError for a missing or senseless entry."""
    if scaling is None:
        return
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in _REQUIRED:
        raise Unsupported(
            f"rope_type {str(kind)[:60]!r} is not supported; supported: {', '.join(_REQUIRED)}"
        )
    numbers = [(key, scaling.get(key)) for key in _REQUIRED[kind]]
    numbers += [(k, scaling[k]) for k in _OPTIONAL.get(kind, ()) if scaling.get(k) is not None]
    for key in _LISTS.get(kind, ()):
        factors = scaling.get(key)
        if not isinstance(factors, list | tuple) or len(factors) != dim // 2:
            raise UsageError(f"rope {key} must be a list of {dim // 2} numbers")
        numbers += [(key, value) for value in factors]
    for key, value in numbers:
        if not _is_positive(value):
            raise UsageError(
                f"rope scaling {kind}: {key} is {str(value)[:60]!r}; it must be {_POSITIVE}"
            )
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise UsageError(
            f"rope scaling llama3: low_freq_factor {scaling['low_freq_factor']} must be below "
            f"high_freq_factor {scaling['high_freq_factor']}"
        )


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 1e-18 <= value < 1e18


def inverse_frequencies(
    dim: int, theta: float, scaling: Mapping[str, Any] | None, positions: int = 0
) -> tuple[NDArray[np.float32], float]:
    """Radians per position of each pair, float32 [dim/2], and what to multiply cos and sin by.

    The angle of pair i at position p is p * result[i].  `positions` is the longest text meant.
    """
    check_rope_scaling(scaling, dim)
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    power = np.power(np.float32(theta), exponent)
    plain = (np.float32(1) / power).astype(np.float32)
    if scaling is None or scaling["rope_type"] == "dynamic":
        return plain, 1.0
    if scaling["rope_type"] == "longrope":
        long = positions > scaling["original_max_position_embeddings"]
        divisors = np.array(scaling["long_factor" if long else "short_factor"], np.float32)
        return np.float32(1) / (divisors * power), _longrope_attention(scaling)
    if scaling["rope_type"] == "linear":
        return plain / np.float32(scaling["factor"]), 1.0
    if scaling["rope_type"] == "factors":
        return plain / np.array(scaling["factors"], np.float32), 1.0
    if scaling["rope_type"] == "llama3":
        return _llama3(plain, scaling), 1.0
    return _yarn(plain, dim, theta, scaling), _yarn_attention(scaling)


def angles(
    dim: int, theta: float, scaling: Mapping[str, Any] | None, positions: int
) -> tuple[NDArray[np.float32], float]:
    """Radians of each pair at each position, float32 [positions, dim/2], and the factor."""
    turns, factor = inverse_frequencies(dim, theta, scaling, positions)
    at = np.arange(positions, dtype=np.float32)[:, None]
    found = at * turns[None, :]
    if scaling is not None and scaling["rope_type"] == "dynamic":
        trained = math.ceil(scaling["max_position_embeddings"])
        found[trained:] = at[trained:] * _dynamic(at[trained:] + 1, dim, theta, scaling)
    return found, factor


def _dynamic(
    lengths: NDArray[np.float32], dim: int, theta: float, s: Mapping[str, Any]
) -> NDArray[np.float32]:
    """Radians per position in texts of such lengths [n, 1]: a base that grows with the length."""
    factor = np.float32(s["factor"])
    grown = factor * lengths / np.float32(s["max_position_embeddings"]) - (factor - 1)
    base = np.float32(theta) * np.power(grown, np.float32(dim / (dim - 2)))
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return (np.float32(1) / np.power(base, exponent)).astype(np.float32)


def _longrope_attention(s: Mapping[str, Any]) -> float:
    if s.get("attention_factor") is not None:
        return float(s["attention_factor"])
    original = s["original_max_position_embeddings"]
    if s["factor"] <= 1 or original <= 1:
        return 1.0
    return math.sqrt(1 + math.log(s["factor"]) / math.log(original))


def _llama3(plain: NDArray[np.float32], s: Mapping[str, Any]) -> NDArray[np.float32]:
    """Keep the fast turns, divide the slow ones by `factor`, and blend in between."""
    turns = s["original_max_position_embeddings"] * plain.astype(np.float64) / (2 * math.pi)
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (plain * (kept + (1 - kept) / s["factor"])).astype(np.float32)


def _yarn(
    plain: NDArray[np.float32], dim: int, theta: float, s: Mapping[str, Any]
) -> NDArray[np.float32]:
    """Like llama3, but blended over the index of the pair."""

    def index_at(turns: float) -> float:
        wavelength = s["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(theta))

    low, high = index_at(s.get("beta_fast") or 32), index_at(s.get("beta_slow") or 1)
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    stretched = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return (plain * ((1 - stretched) + stretched / s["factor"])).astype(np.float32)


def _yarn_attention(s: Mapping[str, Any]) -> float:
    if s.get("attention_factor") is not None:
        return float(s["attention_factor"])

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(s["factor"]) + 1 if s["factor"] > 1 else 1.0

    if s.get("mscale") and s.get("mscale_all_dim"):
        return magnitude(s["mscale"]) / magnitude(s["mscale_all_dim"])
    return magnitude(1)
