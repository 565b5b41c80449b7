"""The grammar of slice names: what a name says, and how it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass

_N = r"\d{1,18}"  # longer ones count nothing, and would not fit where numbers are kept
_NAME = re.compile(
    rf"(?:i(?P<instance>{_N})_)?(?P<sequence>{_N})_"
    rf"(?:Device Workload_(?P<run>{_N})"
    rf"|(?:W(?P<workload>{_N})_)?(?P<layer>.+)_(?P<command>{_N}))",
    re.DOTALL,
)
_PATH = re.compile(r"fused\((?P<parts>.*)\)")
WORKER = "worker"
"""The argument of a command that says which worker did it, and what lanes of workers begin with."""
_WORKER = re.compile(WORKER + r" (\d{1,9})")


@dataclass(frozen=True)
class Name:
    """A parsed slice name.

    instance: None in the file of one execution.  workload: None for work of the host.  layer:
    None for a Device Workload slice.  command: tells apart slices that would else be named alike.
    """

    sequence: int
    instance: int | None = None
    workload: int | None = None
    layer: str | None = None
    command: int | None = None

    def __str__(self) -> str:
        prefix = "" if self.instance is None else f"i{self.instance}_"
        if self.layer is None:
            return f"{prefix}{self.sequence}_Device Workload_{self.workload}"
        run = "" if self.workload is None else f"W{self.workload}_"
        return f"{prefix}{self.sequence}_{run}{self.layer}_{self.command}"

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations of a fused layer, or the one."""
        found = _PATH.fullmatch(self.layer or "")
        return tuple(found["parts"].split("+")) if found else (self.layer or "",)


def worker_of(lane: str) -> int | None:
    """The worker that a lane, or the track of its own that it has, is called after."""
    found = _WORKER.fullmatch(lane)
    return int(found[1]) if found else None


def parse(name: str) -> Name | None:
    """What `name` says; None when it is not a name of this grammar."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    part = {key: None if value is None else int(value) for key, value in found.groupdict().items()
            if key != "layer"}  # fmt: skip
    sequence = part["sequence"]
    assert sequence is not None
    if part["run"] is not None:
        return Name(sequence, part["instance"], part["run"])
    return Name(sequence, part["instance"], part["workload"], found["layer"], part["command"])
