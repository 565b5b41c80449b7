"""What a trace is and contains: coverage, source, limits, steps."""

from __future__ import annotations

from msgspec import Struct


class Note(Struct, frozen=True):
    """Something that the trace does not contain.  severity: `warning` makes figures wrong or
    incomplete, `note` only leaves some of them out."""

    severity: str
    text: str


class Coverage(Struct, frozen=True):
    """What the trace contains, and what not.

    slices, commands (slices on engine tracks), host_slices, steps and dependencies are those of the
    window, losses those of the file.  arguments: share of the commands that say their bytes.
    dependencies: edges between commands that are known; resolved_waits: the share of the causes in
    words (`waited for`) that could be found.  dram_explained: bytes of the DRAM that commands
    account for over those of the counters.  complete: it lacks nothing; lacks: those of the notes
    that tell what it does.
    """

    complete: bool
    notes: tuple[Note, ...]
    slices: int
    commands: int
    host_slices: int
    steps: int
    dependencies: int
    dropped_commands: int | None
    truncated: bool
    open_slices: int
    stray_ends: int
    unnamed_slices: int
    arguments: float
    resolved_waits: float | None
    dram_explained: float | None
    window_ns: tuple[int, int]
    lacks: tuple[str, ...] = ()


class Source(Struct, frozen=True):
    """The trace.  clock: `measured`, `modelled` or `unknown`.  peaks: where limits come from."""

    path: str
    file_bytes: int
    model: str
    device: str
    clock: str
    host: str
    version: str
    peaks: str
    attributes: dict[str, int | str]


class Peaks(Struct, frozen=True):
    """The most that the whole device can do.

    dram, links (by name): bytes per second; ops: operations per second by engine and number format.
    ridge: operations per byte from which on a format is bound by computation.  executors: how many
    engines of a kind, or workers of the host, the figures are of together.
    """

    dram: float | None
    links: dict[str, float]
    ops: dict[str, dict[str, float]]
    ridge: dict[str, float]
    executors: int


class Step(Struct, frozen=True):
    """One execution: a prefill chunk or a decode step, with its head.

    host_ns: from the end of the step before it, or from the first host work for it, to its start.
    token_ns: of a decode step, from the end of the step before it to its own end.
    """

    number: int
    instance: int | None
    sequence: int
    answer: int
    phase: str
    program: str
    tokens: int | None
    valid: int | None
    past: int | None
    start_ns: int
    duration_ns: int
    head_ns: int
    host_ns: int
    token_ns: int | None
    outlier: bool


class Phase(Struct, frozen=True):
    """All runs of a phase: `prefill`, `decode`, `head` (part of those), `host` (between them).

    share: of the window.  outliers: how many runs; slowest: the step with the longest.
    """

    name: str
    runs: int
    total_ns: int
    share: float
    min_ns: int
    median_ns: int
    mean_ns: float
    max_ns: int
    outliers: int
    slowest: int


class Answer(Struct, frozen=True):
    """A prompt and what followed.  ttft_ns: from the first work for it to the end of its last
    prefill chunk; None when the first work is not in the window.  token_ns: mean time per
    further token; tokens_per_s: of those."""

    number: int
    start_ns: int
    prompt_tokens: int | None
    new_tokens: int
    ttft_ns: int | None
    token_ns: float | None
    tokens_per_s: float | None


class Speed(Struct, frozen=True):
    """Over all answers.  token_*: time per token.  per byte figures are of decode steps."""

    ttft_ns: int | None
    token_min_ns: int | None
    token_median_ns: int | None
    token_mean_ns: float | None
    token_max_ns: int | None
    tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    bytes_per_token: float | None
    dram_bytes_per_token: float | None
