"""The layers of a model that see a window of the text: what the vendor's options say of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dielet.checkpoint.spec import ModelSpec
from dielet.compat.rbln_npu import CHUNK_STEP, Family
from dielet.errors import UsageError


@dataclass(frozen=True)
class Windows:
    """size: tokens that a token sees, itself included, in `layers` of the model's `of` layers."""

    size: int = 0
    layers: tuple[int, ...] = ()
    of: int = 0

    @staticmethod
    def in_model(spec: ModelSpec) -> Windows:
        return Windows(spec.window, spec.windowed, spec.layers)

    @property
    def cache_impl(self) -> str:
        if not self.layers:
            return "static"
        return "sliding_window" if len(self.layers) == self.of else "hybrid"


def window_options(given: Any, family: Family, windows: Windows) -> dict[str, Any]:
    """cache_impl, sliding_window and sliding_window_layers, which are the model's.

    given: what was asked for; UsageError where that is something else, or cannot be.
    """
    said = given.cache_impl if "cache_impl" in given.given else None
    asked = said or windows.cache_impl
    if asked not in ("static", "sliding_window", "hybrid"):
        raise UsageError(f"cache_impl is {asked!r}; use static, sliding_window or hybrid")
    found = {
        "cache_impl": windows.cache_impl,
        "sliding_window": windows.size or None,
        "sliding_window_layers": list(windows.layers),
    }
    wanted = {
        "cache_impl": asked,
        "sliding_window": given.sliding_window or found["sliding_window"],
        "sliding_window_layers": list(given.sliding_window_layers or windows.layers),
    }
    for name, value in wanted.items():
        if value != found[name]:
            raise UsageError(
                f"{name} is {value!r:.80}, and the model's config.json makes it "
                f"{found[name]!r:.80}; leave it out"
            )
    if windows.cache_impl == "sliding_window" and given.use_attention_mask:
        raise UsageError("cache_impl sliding_window takes no use_attention_mask; leave it out")
    if windows.size < given.max_seq_len:  # else no token is ever out of sight
        _check_size(windows.size, given.prefill_chunk_size, family)
    return found


def _check_size(size: int, chunk: int, family: Family) -> None:
    """UsageError unless a device's memory of a window holds it and a chunk."""
    most = family.window - chunk
    if size <= most:
        return
    fits = (family.window - size) // CHUNK_STEP * CHUNK_STEP
    remedy = f"an rbln_max_seq_len of at most {size}, where it never acts"
    if fits > 0:
        remedy = f"an rbln_prefill_chunk_size of at most {fits}, or {remedy}"
    raise UsageError(
        f"the model's sliding_window is {size}; on {family.name} with a prefill chunk of {chunk} "
        f"it is at most {most}: use {remedy}"
    )
