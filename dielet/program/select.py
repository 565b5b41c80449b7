"""Choose the program for a step: a pure function of phase, past and new tokens."""

from __future__ import annotations

from collections.abc import Sequence

from dielet.errors import CapacityError


def ladder(max_seq_len: int, first: int = 512) -> tuple[int, ...]:
    """KV capacities first, 2*first, ... ending exactly at `max_seq_len`."""
    rungs = []
    rung = first
    while rung < max_seq_len:
        rungs.append(rung)
        rung *= 2
    return (*rungs, max_seq_len)


def rung_for(rungs: Sequence[int], past: int, new: int) -> int:
    """The smallest capacity that holds `past + new` tokens; CapacityError when none does."""
    for rung in rungs:
        if past + new <= rung:
            return rung
    raise CapacityError(
        f"{past + new} tokens ({past} in the cache and {new} new) do not fit the context of "
        f"{rungs[-1]}; shorten the prompt or compile with a larger max_seq_len"
    )


def program_name(rungs: Sequence[int], chunk: int, past: int, new: int) -> str:
    """The program that runs `new` tokens (1 ... chunk) after `past`: decode for one token."""
    rung = rung_for(rungs, past, new)
    return f"decode_1_kv{rung}" if new == 1 else f"prefill_{chunk}_kv{rung}"


def chunks(new: int, chunk: int) -> list[int]:
    """How a prompt of `new` tokens is cut: full chunks, then the rest."""
    return [chunk] * (new // chunk) + ([new % chunk] if new % chunk else [])
