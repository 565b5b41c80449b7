"""Measure a model beside the limits of this machine: decode against memory, prefill against the
multiplier, each as a median over rounds in which both take turns."""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import TYPE_CHECKING

from dielet.cli.console import Console, size, table
from dielet.cli.models import open_model
from dielet.cli.parser import place, whole_numbers
from dielet.errors import UsageError

if TYPE_CHECKING:
    from dielet.generate.receipt import Receipt
    from dielet.host import Runtime
    from dielet.host.measure import Measured

HELP = "speed beside the measured limits of this machine"
MOST_ROUNDS = 10_000  # hours


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=place, metavar="DIR|SRC", help="a model directory, or what to compile"
    )
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="default: 512")
    parser.add_argument(
        "--new-tokens", type=int, default=128, metavar="N",
        help="tokens of the answer whose receipt is printed; default: 128",
    )  # fmt: skip
    parser.add_argument(
        "--contexts", type=whole_numbers, default=(64, 1024), metavar="N,N,...",
        help="tokens in the cache when decoding is timed; default: 64,1024",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="default: 7")
    parser.add_argument("--threads", type=int, metavar="N", help="default: every core")


def run(args: argparse.Namespace, console: Console) -> None:
    for name in ("prompt_tokens", "new_tokens", "rounds"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(args, name)}; at least 1")
    if args.rounds > MOST_ROUNDS:
        raise UsageError(f"--rounds is {args.rounds}; at most {MOST_ROUNDS}")
    if any(context < 1 for context in args.contexts):
        raise UsageError(f"--contexts {args.contexts}: each must be at least 1")
    from dielet.host import Runtime
    from dielet.host.measure import measure

    begin = perf_counter()
    model = open_model(args.model, console, args.threads)
    load_s = perf_counter() - begin
    runtime = model.runtime
    assert isinstance(runtime, Runtime)
    receipt = answer(runtime, args.prompt_tokens, args.new_tokens, load_s).as_dict()
    console.note(f"measuring: {args.rounds} rounds")
    measured = measure(
        runtime,
        args.prompt_tokens,
        args.contexts,
        args.rounds,
        lambda done, total: console.detail(f"round {done} of {total}"),
    )
    console.result({**receipt, **as_json(measured)})
    console.out(table(rows(measured, receipt)))


def answer(runtime: Runtime, prompt_tokens: int, new_tokens: int, load_s: float) -> Receipt:
    """The receipt of one greedy answer of exactly `new_tokens` to a prompt of arbitrary tokens."""
    import numpy as np

    from dielet.generate.receipt import Receipt, memory_by_owner, sha256

    if prompt_tokens + new_tokens > runtime.max_seq_len:
        raise UsageError(
            f"{prompt_tokens} prompt and {new_tokens} new tokens do not fit the context of "
            f"{runtime.max_seq_len}; ask for fewer or compile with a larger max_seq_len"
        )
    state = runtime.new_state()
    prompt = (np.arange(prompt_tokens) * 7919 % runtime.spec.vocab).astype(np.int32)
    begin = perf_counter()
    for at in range(0, prompt_tokens, runtime.chunk):
        part = prompt[at : at + runtime.chunk]
        logits = runtime.forward(state, part, want_logits=at + runtime.chunk >= prompt_tokens)
    assert logits is not None
    first = perf_counter()
    for _ in range(new_tokens - 1):
        logits = runtime.forward(state, np.array([logits.argmax], np.int32))
        assert logits is not None
    decode_s = perf_counter() - first
    speed = (new_tokens - 1) / decode_s if new_tokens > 1 else None
    nbytes = runtime.weight_bytes_per_token
    owners = runtime.memory_by_owner()
    owners["kv"] = owners["kv"] * state.past // runtime.max_seq_len
    receipt = Receipt(
        load_s=load_s,
        prompt_tokens=prompt_tokens,
        ttft_s=first - begin,
        prefill_tok_s=prompt_tokens / (first - begin),
        new_tokens=new_tokens,
        decode_tok_s=speed,
        program_switches=state.program_switches,
        weight_bytes_per_token=nbytes,
        read_gb_s=None if speed is None else nbytes * speed / 1e9,
        share_of_bandwidth=None,
        peak_rss_bytes=memory_by_owner(owners),
        decode_passes=new_tokens - 1,
        logits_sha256=sha256(logits.values),
        finish_reason="length",
        reused_tokens=0,
        prefill_passes=-(-prompt_tokens // runtime.chunk),
        dropped_tokens=0,
    )
    return receipt.with_bandwidth(runtime.read_bandwidth())


def as_json(m: Measured) -> dict[str, object]:
    return {
        "threads": m.threads,
        "rounds": m.rounds,
        "read_bandwidth_gb_s": m.bandwidth.value,
        "peak_gop_s": {name: figures.value for name, figures in m.peaks.items()},
        "decode": {
            str(context): {
                "tok_s": figures.value,
                "bytes_per_token": m.bytes_per_token[context],
                "share_of_bandwidth": figures.share,
            }
            for context, figures in m.decode.items()
        },
        "prefill": {
            "tokens": m.prefill_tokens,
            "tok_s": m.prefill.value,
            "gop": m.prefill_gops,
            "peak": m.prefill_kind,
            "share_of_peak": m.prefill.share,
        },
    }


def rows(m: Measured, receipt: dict[str, object]) -> dict[str, str]:
    peaks = ", ".join(f"{name} {f.value:,.0f}" for name, f in m.peaks.items())
    lines = {
        "machine": f"{m.threads} threads read {m.bandwidth.value:.1f} GB/s; GOP/s: {peaks}",
        "prefill": f"{m.prefill_tokens} tokens at {m.prefill.value:,.0f} tokens/s, "
        f"{m.prefill.share:.0%} of the {m.prefill_kind} peak",
    }
    for context, figures in m.decode.items():
        lines[f"decode at {context}"] = (
            f"{figures.value:.1f} tokens/s, {size(m.bytes_per_token[context])} each, "
            f"{figures.share:.0%} of the bandwidth"
        )
    owners = receipt["peak_rss_bytes"]
    assert isinstance(owners, dict)
    lines["memory"] = ", ".join(f"{name} {size(n)}" for name, n in owners.items())
    lines["rounds"] = f"{m.rounds}, medians; probes and model in turns"
    return lines
