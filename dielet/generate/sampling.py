"""The choice of the next token: greedy, or drawn from what the filters leave.

Filters, their order and their edge cases are those of `transformers`: repetition penalty,
temperature, top-k, top-p, min-p, each a no-op at its neutral value.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dielet.errors import UsageError
from dielet.generate.protocol import FloatArray, Logits

MAX_SEED = 2**63 - 1
MAX_PENALTY = 1e6  # beyond it float32 scores overflow


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.  `temperature` 0 is greedy: the other filters then have no effect,
    except the repetition penalty, which changes the scores themselves."""

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: a fresh one for every sampled answer

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, math.inf, "0 for greedy")
        _check_integer("top_k", self.top_k, 0, 2**31 - 1, "0 for no limit")
        _check_number("top_p", self.top_p, 0.0, 1.0, "1 for no limit")
        _check_number("min_p", self.min_p, 0.0, 1.0, "0 for no limit")
        penalty = self.repetition_penalty
        _check_number("repetition_penalty", penalty, 0.0, MAX_PENALTY, "1 for no penalty")
        if penalty == 0:
            raise UsageError("repetition_penalty is 0; it must be above 0 (1 for no penalty)")
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, MAX_SEED, "or leave it out")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def seeded(self) -> Sampling:
        """The same settings with the seed that will really be used (None stays for greedy)."""
        if self.greedy:
            return replace(self, seed=None)
        if self.seed is not None:
            return self
        return replace(self, seed=secrets.randbelow(2**32))


def from_generation_config(config: Mapping[str, Any], source: str) -> Sampling:
    """The defaults that a model recommends in its generation_config.json.

    As in `transformers`: greedy unless `do_sample` is true.  Raises UsageError naming `source`.
    """
    sample = bool(config.get("do_sample", False))
    given: dict[str, Any] = {"temperature": 1.0 if sample else 0.0}
    if sample and config.get("temperature") is not None:
        given["temperature"] = config["temperature"]
    for name in ("top_k", "top_p", "min_p", "repetition_penalty"):
        if config.get(name) is not None:
            given[name] = config[name]
    try:
        return Sampling(**given)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


class Sampler:
    """Chooses the tokens of one answer; not shared between answers."""

    def __init__(self, settings: Sampling, vocab: int, prompt: Iterable[int]) -> None:
        self.settings = settings.seeded()
        self._seen: npt.NDArray[np.bool_] | None = None
        if settings.repetition_penalty != 1.0:
            self._seen = np.zeros(vocab, dtype=np.bool_)
            self._seen[np.fromiter(prompt, dtype=np.int64)] = True

    @cached_property
    def _random(self) -> np.random.Generator:  # greedy answers load none of it: 2 MB
        return np.random.Generator(np.random.PCG64(self.settings.seed or 0))

    def choose(self, logits: Logits) -> int:
        """The next token.  Draws exactly one random number when sampling, none when greedy."""
        token = self._choose(logits)
        if self._seen is not None:
            self._seen[token] = True
        return token

    def _choose(self, logits: Logits) -> int:
        if self._seen is None and self.settings.greedy:
            return logits.argmax
        scores = logits.values
        if self._seen is not None:
            scores = penalise(scores, self._seen, self.settings.repetition_penalty)
        if self.settings.greedy:
            return int(np.argmax(scores))
        ids, scores = keep(scores, self.settings)
        return int(ids[draw(scores, float(self._random.random()))])


def penalise(
    scores: FloatArray, seen: npt.NDArray[np.bool_], penalty: float
) -> FloatArray:  # [vocab]
    """Scores [vocab] with those of seen tokens made less likely (more, for a penalty below 1)."""
    ids = np.flatnonzero(seen)
    scores = scores.copy()
    before = scores[ids]
    with np.errstate(over="ignore"):
        scores[ids] = np.where(before < 0, before * penalty, before / penalty)
    return scores


def keep(scores: FloatArray, settings: Sampling) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """The tokens that temperature, top-k, top-p and min-p leave: (ascending ids, their scores)."""
    # The best score is taken off first: no temperature, however small, can then overflow.
    with np.errstate(over="ignore"):
        scores = (scores - scores.max()) / np.float32(max(settings.temperature, 1e-38))
    ids = np.arange(len(scores), dtype=np.int64)
    if 0 < settings.top_k < len(scores):
        worst = np.partition(scores, len(scores) - settings.top_k)[len(scores) - settings.top_k]
        ids = np.flatnonzero(scores >= worst)  # equals of the last one stay, as in transformers
    if settings.top_p < 1.0:
        ids = ids[_nucleus(_softmax(scores[ids]), settings.top_p)]
    if settings.min_p > 0.0:
        chances = _softmax(scores[ids])
        ids = ids[chances >= np.float32(settings.min_p) * chances.max()]
    return ids, scores[ids]


def draw(scores: FloatArray, uniform: float) -> int:
    """The index that `uniform` in [0, 1) falls on when chances are softmax(scores)."""
    ladder = np.cumsum(np.exp(scores), dtype=np.float64)
    return int(np.searchsorted(ladder, uniform * ladder[-1], side="right"))


def _softmax(scores: FloatArray) -> FloatArray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def _nucleus(chances: FloatArray, top_p: float) -> npt.NDArray[np.int64]:
    """Ascending indices of the likeliest tokens: all but the tail that sums to <= 1 - top_p.

    Only values are sorted, which numpy does many times faster than sorting indices.  Of equal
    chances at the border the lower ids go first, as in a stable sort.
    """
    values = np.sort(chances)
    tail = np.cumsum(values, dtype=np.float64)  # chance of a token and all less likely ones
    dropped = min(int(np.searchsorted(tail, 1.0 - top_p, side="right")), len(values) - 1)
    edge = values[dropped]
    kept = chances > edge
    equal = np.flatnonzero(chances == edge)
    kept[equal[len(equal) - (len(values) - dropped - np.count_nonzero(kept)) :]] = True
    return np.flatnonzero(kept)


def _check_number(name: str, value: object, low: float, high: float, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UsageError(f"{name} is {value!r}; it must be a number ({hint})")
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise UsageError(f"{name} is beyond 1e308; it must be finite ({hint})") from None
    if not (low <= number <= high and math.isfinite(number)):
        limit = f"from {low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
        raise UsageError(f"{name} is {value}; it must be finite and {limit} ({hint})")


def _check_integer(name: str, value: object, low: int, high: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UsageError(f"{name} is {value!r}; it must be a whole number ({hint})")
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; it must be from {low} to {high} ({hint})")
