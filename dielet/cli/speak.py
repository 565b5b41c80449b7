"""Stream one answer to the console, stop it on Ctrl-C, and print its receipt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from dielet.cli.console import Console, duration, size

if TYPE_CHECKING:
    from dielet.generate.answer import Result, Stream
    from dielet.generate.receipt import Receipt


def speak(stream: Stream, console: Console) -> Result:
    """Print the pieces of `stream` as they come.

    The first Ctrl-C ends the answer after the running program, so that no text is lost; a second
    one ends the process as usual.
    """
    with stopping(stream), stream:
        last = ""
        for piece in stream:
            console.out(piece, end="")
            last = piece
        if not last.endswith("\n"):
            console.out()
    return stream.result


@contextmanager
def stopping(stream: Stream) -> Iterator[None]:
    """While inside, SIGINT cancels `stream`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def cancel(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stream.cancel()

    before = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def answer_object(result: Result) -> dict[str, Any]:
    """What `--json` says of an answer: the receipt, and the answer itself."""
    return {
        **result.receipt.as_dict(),
        "seed": result.seed,
        "text": result.text,
        "tokens": result.tokens,
    }


def prompt_parts(receipt: Receipt) -> str:
    """How long the prompt was, and how much of it was known or dropped."""
    parts = [f"{receipt.prompt_tokens} tokens"]
    if receipt.reused_tokens:
        parts.append(f"{receipt.reused_tokens} of them known")
    if receipt.dropped_tokens:
        parts.append(f"{receipt.dropped_tokens} dropped from the context")
    return ", ".join(parts)


def receipt_lines(receipt: Receipt) -> dict[str, str]:
    """The receipt for people: name -> value."""
    rows = {"load": duration(receipt.load_s)}
    if receipt.ttft_s is not None:
        speed = receipt.prefill_tok_s
        rate = "" if speed is None else f", {speed:.0f} tokens/s"
        rows["prompt"] = (
            f"{prompt_parts(receipt)}, first answer token after {duration(receipt.ttft_s)}{rate}"
        )
    decode = "" if receipt.decode_tok_s is None else f", {receipt.decode_tok_s:.1f} tokens/s"
    rows["answer"] = f"{receipt.new_tokens} tokens{decode}, ended by: {receipt.finish_reason}"
    if receipt.read_gb_s is not None:
        share = receipt.share_of_bandwidth
        of = "" if share is None else f", {100 * share:.0f} % of what this machine can read"
        rows["weights"] = (
            f"{size(receipt.weight_bytes_per_token)} per token, {receipt.read_gb_s:.1f} GB/s{of}"
        )
    owners = {name: n for name, n in receipt.peak_rss_bytes.items() if name != "total"}
    parts = ", ".join(f"{name} {size(n)}" for name, n in owners.items())
    rows["memory"] = f"{size(receipt.peak_rss_bytes['total'])} at most ({parts})"
    plural = "" if receipt.program_switches == 1 else "es"
    rows["programs"] = f"{receipt.program_switches} switch{plural}"
    if receipt.logits_sha256 is not None:
        rows["logits"] = f"sha256 {receipt.logits_sha256[:16]} of the last ones"
    return rows
