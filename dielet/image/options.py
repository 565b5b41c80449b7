"""What `compile` may be told, checked as soon as it is said."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, fields
from typing import Any

from dielet.errors import Unsupported, UsageError
from dielet.formats.cache import KV_FORMATS
from dielet.formats.packed import GROUPS, PANEL
from dielet.partition import PLANS
from dielet.program.select import ladder

WEIGHTS = ("bf16", "int8", "int4")
MAX_BATCH = 64
HEAD_ROWS = 16  # tokens whose logits one pass can give, for checking several guesses at once
MAX_CHUNK = 4096  # tokens of a prefill program
CHUNK_UNIT = 16  # rows: kernels work on tiles of the chunk


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation; None means: decide by the checkpoint or the device.

    chiplets: parts that a device's share of the model is divided into.  num_devices: devices that
    the model is divided over first.  partition: the plan of the division, if not the device's own.
    group: weights that share a scale.
    minimum: whether a group has an offset of its own; by default int4 has and int8 has not.
    max_seq_len: longest sequence, in tokens; a multiple of 32.  prefill_chunk: tokens per prefill
    program.  kv_ladder: KV capacities with a program each; the last one is max_seq_len.
    kv: number format of the key and value cache, bf16 by default.
    roles: a file that says how a checkpoint of an unknown family names things (docs/models.md).
    calibrate: a text by which int4 scales are chosen; int8_budget: by how many percent the linears
    may grow for those that lose most to be kept in int8.
    batch_sizes: sequences that one decode program takes, each with programs of its own; 1 is
    always among them.  layers: compile only the first so many.  random_weights: a seed, instead
    of a checkpoint's.
    """

    device: str = "host"
    chiplets: int | None = None
    num_devices: int | None = None
    partition: str | None = None
    weights: str | None = None
    group: int | None = None
    minimum: bool | None = None
    max_seq_len: int | None = None
    prefill_chunk: int = 128
    kv_ladder: tuple[int, ...] | None = None
    kv: str | None = None
    batch_sizes: tuple[int, ...] = (1,)
    layers: int | None = None
    random_weights: int | None = None
    roles: str | None = None
    calibrate: str | None = None
    int8_budget: float | None = None

    def __post_init__(self) -> None:
        for name, kind, what in _KINDS:
            _of_kind(name, getattr(self, name), kind, what)
        _one_of("weights", self.weights, WEIGHTS)
        _one_of("group", self.group, GROUPS)
        if self.group is not None and self.weights == "bf16":
            raise UsageError(f"group {self.group} goes with int8 or int4 weights; bf16 has none")
        _one_of("kv", self.kv, KV_FORMATS)
        _one_of("partition", self.partition, PLANS)
        if self.minimum is not None and self.weights == "bf16":
            raise UsageError("minimum goes with int8 or int4 weights; bf16 has none")
        _check_calibration(self)
        _in_range("chiplets", self.chiplets, 1, 64)
        _in_range("num_devices", self.num_devices, 1, 64)
        _in_range("layers", self.layers, 1, 1 << 10)
        _in_range("max_seq_len", self.max_seq_len, 32, 1 << 22)
        _in_range("prefill_chunk", self.prefill_chunk, CHUNK_UNIT, MAX_CHUNK)
        if self.prefill_chunk is None or self.prefill_chunk % CHUNK_UNIT:
            raise UsageError(
                f"prefill_chunk {self.prefill_chunk} must be a multiple of {CHUNK_UNIT}"
            )
        if self.roles is not None and self.random_weights is not None:
            raise UsageError("roles go with a checkpoint's weights, not with random_weights")
        if self.random_weights is not None and self.random_weights < 0:
            raise UsageError(f"random_weights seed {self.random_weights} must not be negative")
        if not self.batch_sizes or any(not 1 <= size <= MAX_BATCH for size in self.batch_sizes):
            raise UsageError(f"batch_sizes {self.batch_sizes}: each must be from 1 to {MAX_BATCH}")
        if len(set(self.batch_sizes)) < len(self.batch_sizes):
            raise UsageError(f"batch_sizes {self.batch_sizes}: name each of them once")
        if self.kv_ladder is not None:
            _check_ladder(self.kv_ladder, self.max_seq_len)

    @staticmethod
    def of(**given: Any) -> CompileOptions:
        """From keywords; an unknown one is an error that suggests the nearest."""
        known = [field.name for field in fields(CompileOptions)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"
                raise UsageError(f"compile has no option '{name}'{hint}")
        return CompileOptions(**given)

    def resolved_max_seq_len(self, max_position: int, longest: int | None = None) -> int:
        """The sequence length to compile for: asked for, or up to 8192, in whole panels.

        max_position: that the model was trained with; longest: that may be asked for.
        """
        longest = max_position if longest is None else longest
        most = max_position // PANEL * PANEL
        if not most:
            raise Unsupported(
                f"the model has {max_position} positions; the shortest context that can be "
                f"compiled is {PANEL}"
            )
        if self.max_seq_len is None:
            asked = self.kv_ladder[-1] if self.kv_ladder else min(most, 8192)
        else:
            asked = self.max_seq_len
        if asked > longest:
            raise UsageError(
                f"max_seq_len {asked} is beyond the model's {longest} positions; "
                f"use at most {longest // PANEL * PANEL}"
            )
        if asked % PANEL:
            raise UsageError(
                f"max_seq_len {asked} must be a multiple of {PANEL}; use {asked // PANEL * PANEL}"
            )
        return asked

    def resolved_batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted({1, *self.batch_sizes}))

    def resolved_ladder(self, max_seq_len: int) -> tuple[int, ...]:
        return self.kv_ladder or ladder(max_seq_len)


def _check_ladder(rungs: tuple[int, ...], max_seq_len: int | None) -> None:
    if (
        list(rungs) != sorted(set(rungs))
        or not rungs
        or rungs[0] < 32
        or any(r % 32 for r in rungs)
    ):
        raise UsageError(f"kv_ladder {rungs} must be rising multiples of 32")
    if max_seq_len is not None and rungs[-1] != max_seq_len:
        raise UsageError(f"kv_ladder ends at {rungs[-1]}; it must end at max_seq_len {max_seq_len}")


def _check_calibration(options: CompileOptions) -> None:
    budget = options.int8_budget
    if options.calibrate is not None and options.weights != "int4":
        said = f"weights are {options.weights}" if options.weights else "weights are not said"
        raise UsageError(f"calibrate goes with int4 weights; {said}, use weights=int4")
    if budget is None:
        return
    if options.calibrate is None:
        raise UsageError(
            f"int8_budget {budget!r} goes with a text to calibrate by; name one or leave it out"
        )
    if type(budget) not in (int, float) or not 0 < budget <= 100:
        raise UsageError(f"int8_budget is {budget!r}; it must be above 0, at most 100 (percent)")


_PATH = (str, os.PathLike)
_KINDS: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("device", _PATH, "the name of a device, or a path"),
    ("minimum", (bool,), "True or False"),
    ("kv_ladder", (tuple, list), "a tuple of whole numbers"),
    ("batch_sizes", (tuple, list), "a tuple of whole numbers"),
    ("random_weights", (int,), "a whole number"),
    ("roles", _PATH, "the path of a file"),
    ("calibrate", _PATH, "the path of a file"),
    ("int8_budget", (int, float), "a number of percent"),
)


def _of_kind(name: str, value: Any, kind: tuple[type, ...], what: str) -> None:
    """Raise UsageError for a value from Python that no command line could give."""
    numbers = value if isinstance(value, tuple | list) else ()
    wrong = not isinstance(value, kind) or not all(type(number) is int for number in numbers)
    if value is not None and wrong:
        raise UsageError(f"{name} is {value!r:.80}; it must be {what}")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value is not None and value not in allowed:
        raise UsageError(f"{name} is {value!r}; use one of {', '.join(map(str, allowed))}")


def _in_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and (not isinstance(value, int) or not low <= value <= high):
        raise UsageError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
