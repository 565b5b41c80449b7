"""What was computed and moved: operations, layers, roofline, bytes, memory."""

from __future__ import annotations

from msgspec import Struct


class Roof(Struct, frozen=True):
    """A point of the roofline.  level: `run`, `phase`, `layer` or `operation`.

    bytes: of the DRAM for run, phase and layer, and all that the commands move for an operation.
    seconds: wall time, and for an operation the sum over its commands.  share: of the nearest peak.
    """

    level: str
    phase: str
    name: str
    kind: str
    seconds: float
    ops: float
    bytes: float
    intensity: float | None
    ops_per_s: float
    bytes_per_s: float
    peak_ops_per_s: float | None
    peak_bytes_per_s: float | None
    share: float | None
    verdict: str


class Verdict(Struct, frozen=True):
    """A kind of command in a phase, and what bounds it; shares: of its time, by cause."""

    phase: str
    kind: str
    time_ns: int
    verdict: str
    shares: dict[str, float]


class Operation(Struct, frozen=True):
    """An operation of all layers (`*` stands for the layer's number), by phase and kind.

    time_ns: sum over commands, on all chiplets.  share: of the nearest peak, weighted by time.
    wasted_ns: time x unused share.  bound: time by what bounded the commands.  imbalance: the
    slowest chiplet's time over the mean, less one.  path_ns: time on the critical path, per step.
    """

    operation: str
    phase: str
    program: str
    kind: str
    engine: str
    shape: str
    format: str
    route: str
    commands: int
    steps: int
    time_ns: int
    time_share: float
    mean_ns: float
    bytes: int
    ops: int
    bytes_per_s: float
    ops_per_s: float
    share: float | None
    wasted_ns: float | None
    bound: dict[str, float]
    imbalance: float | None
    path_ns: float | None


class Shape(Struct, frozen=True):
    """Commands of one kind, shape and format."""

    kind: str
    shape: str
    format: str
    phase: str
    commands: int
    time_ns: int
    mean_ns: float
    bytes: int
    ops: int
    share: float | None
    wasted_ns: float | None


class Layer(Struct, frozen=True):
    """A layer (-1: what belongs to none), in a phase.  commands: of all runs.  The rest is per run
    of the phase.  wall_ns: the time in which any of its commands ran; time_ns: their sum; busy_ns:
    by engine.  imbalance: mean over the runs that have the layer."""

    phase: str
    layer: int
    commands: int
    wall_ns: float
    time_ns: float
    path_ns: float | None
    bytes: float
    ops: float
    busy_ns: dict[str, float]
    imbalance: float | None


class Heat(Struct, frozen=True):
    """Per phase: mean time per step of operation x layer.  values[row][column] in ns: rows are
    `layers`, columns `operations` (what follows the layer's number); 0 where there is none."""

    phase: str
    layers: tuple[int, ...]
    operations: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


class Route(Struct, frozen=True):
    """Bytes by route, in the words of the trace (`dram -> scratchpad`), per phase."""

    phase: str
    route: str
    kind: str
    link: str
    commands: int
    bytes: int
    bytes_per_s: float
    small: int
    small_ns: int


class Moved(Struct, frozen=True):
    """Bytes of a memory or link in a phase.  share: achieved over peak in the phase's time."""

    phase: str
    place: str
    bytes: int
    per_step: float
    bytes_per_s: float
    peak_bytes_per_s: float | None
    share: float | None
    source: str


class Reread(Struct, frozen=True):
    """Something that was read from the DRAM more than once within a step."""

    phase: str
    what: str
    times: float
    bytes: int
    extra_bytes: int


class Traffic(Struct, frozen=True):
    """small_bytes: below this a transfer counts as small."""

    routes: tuple[Route, ...]
    moved: tuple[Moved, ...]
    rereads: tuple[Reread, ...]
    small_bytes: int


class Series(Struct, frozen=True):
    """A counter over time: values between `times_ns` and the next, the largest of what is drawn
    together."""

    device: str
    chiplet: int | None
    name: str
    unit: str
    times_ns: tuple[int, ...]
    values: tuple[float, ...]


class Owner(Struct, frozen=True):
    """What memory is in use for at the peak."""

    device: str
    chiplet: int | None
    memory: str
    owner: str
    bytes: int


class Memory(Struct, frozen=True):
    """Peak: by memory, over all chiplets; owners at that moment."""

    peaks: dict[str, int]
    peak_ns: dict[str, int]
    owners: tuple[Owner, ...]
