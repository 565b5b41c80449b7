"""The receipt of one answer: how fast it came, what it read, and a hash to compare runs by."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dielet.generate.protocol import FloatArray


@dataclass(frozen=True)
class Receipt:
    """Speeds count program executions and the choice of tokens, not the consumer of the text.

    A figure that this answer cannot give (a decode speed after one token) is None.
    """

    load_s: float  # from `load` to a model ready to run
    prompt_tokens: int
    ttft_s: float | None  # from the text of the prompt to the first new token
    prefill_tok_s: float | None
    new_tokens: int  # the end-of-text token included
    decode_tok_s: float | None  # the first new token, which prefill gives, is left out
    program_switches: int
    weight_bytes_per_token: int
    read_gb_s: float | None  # weight bytes per second while decoding, 1e9
    share_of_bandwidth: float | None  # of the measured read bandwidth of this machine
    peak_rss_bytes: dict[str, int]  # by owner; "total" is the most this process ever had
    decode_passes: int  # program executions that gave the tokens after the first
    logits_sha256: str | None  # of the float32 logits that gave the last token
    finish_reason: str
    reused_tokens: int  # of the prompt, whose keys and values were known from earlier
    prefill_passes: int  # program executions over the rest of the prompt
    dropped_tokens: int  # that had to go for newer ones (context_shift)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def with_bandwidth(self, gb_s: float) -> Receipt:
        """The same with `share_of_bandwidth`, given the measured read bandwidth in GB/s (1e9)."""
        if self.read_gb_s is None or gb_s <= 0:
            return self
        return replace(self, share_of_bandwidth=self.read_gb_s / gb_s)


@dataclass
class Clock:
    """What one answer measures while it is made, in seconds and tokens."""

    encode_s: float = 0.0
    begin_s: float = 0.0  # until the first execution: known keys and values are copied
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_passes: int = 0
    prefill_passes: int = 0
    prefilled: int = 0  # tokens really computed: a continued chat keeps those it has

    def add(self, *, decode: bool, tokens: int, seconds: float) -> None:
        if decode:
            self.decode_s += seconds
            self.decode_passes += 1
        else:
            self.prefill_s += seconds
            self.prefill_passes += 1
            self.prefilled += tokens

    def ttft_s(self) -> float:
        return self.encode_s + self.begin_s + self.prefill_s

    def prefill_tok_s(self) -> float | None:
        return self.prefilled / self.prefill_s if self.prefill_s > 0 else None

    def decode_tok_s(self, new_tokens: int) -> float | None:
        steps = new_tokens - 1  # the first token came with the prefill
        return steps / self.decode_s if steps > 0 and self.decode_s > 0 else None


def memory_by_owner(owners: Mapping[str, int]) -> dict[str, int]:
    """`owners`, plus "other" (interpreter, libraries, tokenizer) and "total", the peak."""
    total = peak_rss()
    other = max(0, total - sum(owners.values()))
    return {**owners, "other": other, "total": total}


def peak_rss() -> int:
    """The largest resident size that this process has had, in bytes."""
    try:
        # Not getrusage: on Linux that includes what the parent had before exec.
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def sha256(logits: FloatArray) -> str:
    """Of the values as little-endian float32, so that machines can be compared."""
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()
