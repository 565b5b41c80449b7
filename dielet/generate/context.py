"""How much of earlier text stays: in the context when that is full, and in memory after answers."""

from __future__ import annotations

from collections.abc import Sequence

from dielet.errors import UsageError

KEEP = 4  # first tokens that stay unless something else is asked for
PREFIX_CACHE_MB, MOST_MB = 256, 1 << 20  # the default, and the most


def left_out(total: int, keep: int, limit: int) -> int:
    """How many tokens after the first `keep` of `total` go, so that at most `limit` stay.

    Always whole steps of half of what the context holds beside the kept ones: a growing text loses
    its oldest half at once and then nothing until the context is full again.
    """
    step = (limit - keep + 1) // 2
    return -(-max(0, total - limit) // step) * step


def most_kept(limit: int) -> int:
    """Of a context of `limit` tokens, how many may stay for good."""
    return limit - 2


def checked_keep(keep: object, limit: int) -> int:
    """The number of first tokens to keep; UsageError for what cannot be one."""
    if type(keep) is not int or not 0 <= keep <= most_kept(limit):
        raise UsageError(
            f"keep is {keep!r:.80}; it must be from 0 to {most_kept(limit)}, two less than the "
            "context of this model"
        )
    return keep


def without(tokens: Sequence[int], keep: int, count: int) -> list[int]:
    """`tokens` without the `count` that follow the first `keep`."""
    return [*tokens[:keep], *tokens[keep + count :]]


def prefix_limit(prefix_cache_mb: object) -> int:
    """The limit of a prefix cache in bytes; UsageError for what is no number of megabytes (1e6)."""
    if type(prefix_cache_mb) is not int or not 0 <= prefix_cache_mb <= MOST_MB:
        raise UsageError(
            f"prefix_cache_mb is {prefix_cache_mb!r:.80}; it must be a whole number of megabytes "
            f"from 0, which keeps nothing, to {MOST_MB}"
        )
    return prefix_cache_mb * 1_000_000
