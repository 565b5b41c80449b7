"""Read a text in bf16, see what enters every linear, and choose int4 scales and formats by it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from dielet.calibrate.errors import Sampled
from dielet.calibrate.inputs import Inputs
from dielet.calibrate.measure import Agreement, agreements
from dielet.calibrate.watch import WatchedRuntime
from dielet.checkpoint.base import Checkpoint
from dielet.formats.packed import WeightFormat
from dielet.image import (
    CompileOptions,
    Progress,
    compile_checkpoint,
    open_directory,
    plan_checkpoint,
)
from dielet.image.accuracy import Accuracy, Calibration, LinearAccuracy
from dielet.image.formats import int8_beside
from dielet.image.manifest import forget_files

F32 = NDArray[np.float32]
Tokens = NDArray[np.int32]
Note = Callable[[str], None]

LEAST_TOKENS = 256
_LONGEST = 512  # tokens that are read as one text
_CHUNK = 128
_SAYS_EVERY = 10.0  # seconds, of what takes long
_SAMPLE = 32  # rows of a linear's inputs whose outputs are computed
_IN_BF16 = {"weights": "bf16", "group": None, "minimum": None}
_NOT_OF_WEIGHTS = {
    "device": "host", "chiplets": 1, "num_devices": None, "partition": None, "kv": None,
    "batch_sizes": (1,), "prefill_chunk": _CHUNK, "calibrate": None, "int8_budget": None,
}  # fmt: skip


@dataclass(frozen=True)
class Stretches:
    """A calibration text in stretches of tokens, each read from its beginning: those that choose
    and, from the end of the text, those that measure."""

    sha256: str
    choosing: tuple[Tokens, ...]
    measuring: tuple[Tokens, ...]

    @staticmethod
    def of(text: bytes, tokens: Sequence[int], lead: Sequence[int], length: int) -> Stretches:
        """`tokens` of `text`: the last eighth measures.  `lead` begins every stretch of `length`
        tokens at most (the token that begins a text)."""
        held_out = len(tokens) // 8
        cut = len(tokens) - held_out
        return Stretches(
            hashlib.sha256(text).hexdigest(),
            _stretches(tokens[:cut], lead, length),
            _stretches(tokens[cut:], lead, length),
        )


def _stretches(tokens: Sequence[int], lead: Sequence[int], length: int) -> tuple[Tokens, ...]:
    body = length - len(lead)
    return tuple(
        np.array([*lead, *tokens[lo : lo + body]], np.int32) for lo in range(0, len(tokens), body)
    )


def stretch_length(max_position: int) -> int:
    """Tokens of a stretch for a model of so many positions: whole panels of the cache."""
    return min(_LONGEST, max_position // 32 * 32)


def calibrate(
    checkpoint: Checkpoint,
    text: Stretches,
    options: CompileOptions,
    folder: Path,
    note: Note,
) -> Calibration:
    """What `options.calibrate`, which `text` is of, comes to for a checkpoint.

    The checkpoint is compiled in bf16 and int4 inside of `folder`, for this machine whatever the
    device: weights are what is measured.  The result is the same on every run on one kind of
    machine.  `note` is told what is being done.
    """
    length = stretch_length(checkpoint.spec.max_position)
    common = replace(options, **{**_NOT_OF_WEIGHTS, "max_seq_len": length, "kv_ladder": (length,)})  # type: ignore[arg-type]
    with ExitStack() as stack:

        def loaded(name: str, options: CompileOptions, found: Calibration) -> WatchedRuntime:
            progress = _seldom(note, name)
            path = compile_checkpoint(checkpoint, folder / name, options, progress, found)
            stack.callback(forget_files, path)
            return stack.enter_context(closing(WatchedRuntime(open_directory(path))))

        note("calibrate: compiling in bf16")
        reference = loaded("bf16", replace(common, **_IN_BF16), Calibration())  # type: ignore[arg-type]
        seen = read(reference, text.choosing, note)
        note("calibrate: choosing scales")
        int8 = frozenset[str]()
        if options.int8_budget is not None:
            int8 = choose_int8(checkpoint, common, seen, options.int8_budget)
        chosen = Calibration(seen.importance(), int8)
        plain, ours = loaded("plain", common, Calibration()), loaded("int4", common, chosen)
        held_out = sum(map(len, text.measuring))
        note(f"calibrate: measuring over {held_out} tokens that chose nothing")
        inputs = [Inputs(max(1, held_out // _SAMPLE)) for _ in range(3)]
        without, found = agreements(reference, [plain, ours], _told(text.measuring, note), inputs)
    linears = _linears(checkpoint, common, chosen, inputs[0], inputs[2])
    report = _report(text, without, found, options.int8_budget, linears)
    return replace(chosen, accuracy=report)


def _seldom(note: Note, name: str) -> Progress:
    """Tell `note` how far a long compilation has come."""
    last = monotonic()

    def report(done: int, total: int, tensor: str) -> None:
        nonlocal last
        if monotonic() - last > _SAYS_EVERY:
            last = monotonic()
            note(f"calibrate: {name}: {100 * done // total} % compiled")

    return report


def read(reference: WatchedRuntime, texts: Sequence[Tokens], note: Note) -> Inputs:
    """What enters the linears of a model in bf16 that reads `texts`."""
    seen = Inputs(max(1, sum(map(len, texts)) // _SAMPLE))
    for tokens in _told(texts, note):
        for _ in reference.watch(tokens, seen.see):
            pass
    return seen


def _told(texts: Sequence[Tokens], note: Note) -> Iterator[Tokens]:
    """`texts`, with a word to `note` of how far it has come, at first and then now and again."""
    total, done, last = sum(map(len, texts)), 0, -math.inf
    for tokens in texts:
        if monotonic() - last > _SAYS_EVERY:
            last = monotonic()
            note(f"calibrate: {100 * done // total} % of {total} tokens")
        yield tokens
        done += len(tokens)


def choose_int8(
    checkpoint: Checkpoint, options: CompileOptions, seen: Inputs, percent: float
) -> frozenset[str]:
    """The linears to keep in int8: those that lose most in int4 for the bytes that they cost.

    All linears together grow by at most `percent`.
    """
    formats = _formats(checkpoint, options)
    importance = seen.importance()
    sizes = {name: fmt.nbytes(*_shape(checkpoint, name)) for name, fmt in formats.items()}
    room = percent / 100 * sum(sizes.values())
    candidates = []
    for name, fmt in formats.items():
        source = checkpoint.tensor(name)
        if fmt.kind != "int4" or fmt in source.exact_formats:
            continue
        wider = int8_beside(name, source, fmt).nbytes(source.N, source.K)
        error = Sampled.of(source, fmt, importance[name]).relative_error(
            importance[name], seen.sample(name)
        )
        candidates.append((-error / (wider - sizes[name]), name, wider - sizes[name]))
    kept = set()
    for _, name, cost in sorted(candidates):
        if cost <= room:
            room -= cost
            kept.add(name)
    return frozenset(kept)


def _formats(
    checkpoint: Checkpoint, options: CompileOptions, int8: frozenset[str] = frozenset()
) -> Mapping[str, WeightFormat]:
    """Of the decoder's linears."""
    plan = plan_checkpoint(checkpoint, options, int8)
    shares = {share.parameter for share in plan.decoder.shares if share.K}
    return {name: fmt for name, fmt in plan.formats.items() if name in shares}


def _shape(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    source = checkpoint.tensor(name)
    return source.N, source.K


def _linears(
    checkpoint: Checkpoint,
    options: CompileOptions,
    chosen: Calibration,
    right: Inputs,
    entered: Inputs,
) -> tuple[LinearAccuracy, ...]:
    found = []
    for name, fmt in _formats(checkpoint, options, chosen.int8).items():
        sampled = Sampled.of(checkpoint.tensor(name), fmt, chosen.importance[name])
        inputs = right.sample(name)
        found.append(
            LinearAccuracy(
                name,
                fmt.name,
                fmt.nbytes(*_shape(checkpoint, name)),
                sampled.cosine(inputs, inputs),
                sampled.cosine(inputs, entered.sample(name)),
            )
        )
    return tuple(found)


def _report(
    text: Stretches,
    plain: Agreement,
    found: Agreement,
    budget: float | None,
    linears: tuple[LinearAccuracy, ...],
) -> Accuracy:
    return Accuracy(
        text_sha256=text.sha256,
        tokens=sum(map(len, text.choosing)),
        held_out_tokens=found.positions,
        same_best_token=found.same_best_token,
        mean_kl=found.mean_kl,
        plain_same_best_token=plain.same_best_token,
        plain_mean_kl=plain.mean_kl,
        int8_budget=budget,
        linears=linears,
    )
