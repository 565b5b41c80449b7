"""Measure a loaded model beside the limits of the machine, in turns, so that both see the same
neighbours: rounds of probes, decode and prefill, and the median of each round's own ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import numpy as np

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import UsageError
from dielet.host.limits import READ_BYTES, probes
from dielet.host.memory import Bytes, address, anonymous
from dielet.host.runtime import Runtime, State

KINDS = ("int8", "bf16", "fp32")
STEPS = 8  # decode steps timed between two probes


@dataclass
class Figures:
    """One quantity over the rounds: `values`, and its `shares` of the limit of the same round."""

    values: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def share(self) -> float:
        return median(self.shares)


@dataclass(frozen=True)
class Measured:
    """Medians over the rounds.  Rates are per second; bandwidths GB/s (1e9), multipliers GOP/s.

    decode: by context, tokens/s and the share of the read bandwidth, counting weights and cache.
    prefill: tokens/s and the share of the peak of the multiplier that its linears use.
    """

    threads: int
    rounds: int
    bandwidth: Figures
    peaks: dict[str, Figures]
    decode: dict[int, Figures]
    prefill: Figures
    prefill_tokens: int
    prefill_kind: str
    prefill_gops: float
    bytes_per_token: dict[int, int]


def measure(
    runtime: Runtime,
    prompt_tokens: int,
    contexts: tuple[int, ...],
    rounds: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Run `rounds` rounds; `report` is told how many are done.

    Raises UsageError when a prompt or a context does not fit the model's sequence length.
    """
    longest = max(prompt_tokens, *(context + STEPS for context in contexts))
    if longest > runtime.max_seq_len:
        raise UsageError(
            f"{longest} tokens do not fit the context of {runtime.max_seq_len}; ask for fewer "
            "or compile with a larger max_seq_len"
        )
    threads = runtime.threads
    kind = "bf16" if runtime.manifest.weights == "bf16" else "int8"
    result = Measured(
        threads=threads,
        rounds=rounds,
        bandwidth=Figures(),
        peaks={name: Figures() for name in KINDS},
        decode={context: Figures() for context in contexts},
        prefill=Figures(),
        prefill_tokens=prompt_tokens,
        prefill_kind=kind,
        prefill_gops=prefill_operations(runtime, prompt_tokens) / 1e9,
        bytes_per_token={c: decode_bytes(runtime, c + STEPS // 2) for c in contexts},
    )
    memory = probed_memory()
    states = {context: filled(runtime, context) for context in contexts}
    scratch = runtime.new_state()
    _prefill(runtime, scratch, prompt_tokens)
    for round_ in range(rounds):
        for context, state in states.items():
            rate, limit = decode_beside_probe(runtime, state, context, memory)
            result.bandwidth.values.append(limit / 1e9)
            result.decode[context].values.append(rate)
            result.decode[context].shares.append(rate * result.bytes_per_token[context] / limit)
        peaks = [{name: probes().rate(name, threads) for name in KINDS}]
        rate = _prefill(runtime, scratch, prompt_tokens)
        peaks.append({name: probes().rate(name, threads) for name in KINDS})
        for name in KINDS:
            result.peaks[name].values.append(sum(peak[name] for peak in peaks) / 2e9)
        result.prefill.values.append(rate)
        achieved = rate / prompt_tokens * result.prefill_gops
        result.prefill.shares.append(achieved / result.peaks[kind].values[-1])
        report(round_ + 1, rounds)
    return result


def probed_memory() -> Bytes:
    """What the bandwidth probe reads."""
    memory = anonymous(READ_BYTES, huge=True)
    memory[::4096] = 1
    return memory


def decode_beside_probe(
    runtime: Runtime, state: State, context: int, memory: Bytes
) -> tuple[float, float]:
    """Steps per second from `context` tokens on, and bytes per second read before and after."""
    before = probes().read(address(memory), len(memory), runtime.threads)
    rate = _decode(runtime, state, context)
    after = probes().read(address(memory), len(memory), runtime.threads)
    return rate, (before + after) / 2


def decode_bytes(runtime: Runtime, context: int) -> int:
    """Bytes that one decode step reads with `context` tokens in the cache."""
    spec = runtime.spec
    seen = sum(_seen(spec, layer, context) for layer in range(spec.layers))
    return runtime.weight_bytes_per_token + seen * runtime.layout.bytes_per_token() // spec.layers


def prefill_operations(runtime: Runtime, tokens: int) -> int:
    """Multiplications and additions of the decoder over a prompt: linears, and causal attention."""
    spec = runtime.spec
    total = 0
    for layer in range(spec.layers):
        weights = spec.hidden * 2 * (spec.q_size + spec.kv_size)
        if spec.is_mixture(layer):
            experts = 3 * spec.experts_per_token * spec.expert_intermediate
            weights += spec.hidden * (spec.experts + experts)
        else:
            weights += 3 * spec.hidden * spec.intermediate
        width = _seen(spec, layer, tokens)
        seen = width * (width + 1) // 2 + (tokens - width) * width
        total += 2 * tokens * weights + 4 * seen * spec.q_size
    return total


def _seen(spec: ModelSpec, layer: int, context: int) -> int:
    """Of so many tokens, those that the last one sees in a layer."""
    return min(context, spec.window) if layer in spec.windowed else context


def _ids(runtime: Runtime, count: int) -> np.ndarray:
    return (np.arange(count) * 7919 % runtime.spec.vocab).astype(np.int32)


def filled(runtime: Runtime, context: int) -> State:
    """A state with `context` tokens of arbitrary small numbers in its cache."""
    state = runtime.new_state()
    heads = state.kv.reshape(-1, runtime.layout.head_bytes)
    heads[:, : context * runtime.layout.position_bytes] = 0x3C  # bf16 0x3C3C, about 0.01
    state.past = context
    return state


def _prefill(runtime: Runtime, state: State, tokens: int) -> float:
    """Tokens per second over a prompt from an empty cache, without the head."""
    state.rewind(0)
    ids = _ids(runtime, tokens)
    begin = perf_counter()
    for at in range(0, tokens, runtime.chunk):
        runtime.forward(state, ids[at : at + runtime.chunk], want_logits=False)
    return tokens / (perf_counter() - begin)


def _decode(runtime: Runtime, state: State, context: int) -> float:
    """Steps per second, head included, from `context` tokens in the cache on."""
    state.rewind(context)
    token = _ids(runtime, 1)
    runtime.forward(state, token)  # the step after a probe finds helpers asleep
    state.rewind(context)
    begin = perf_counter()
    for _ in range(STEPS):
        runtime.forward(state, token)
    return STEPS / (perf_counter() - begin)
