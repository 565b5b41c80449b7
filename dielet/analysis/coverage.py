"""What a trace does not contain, which is said before anything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dielet.analysis.limits import Limits
from dielet.analysis.paths import Walked
from dielet.analysis.schema import Coverage, Note
from dielet.analysis.steps import DECODE, HEAD, PREFILL, Steps
from dielet.analysis.table import HOST, Table
from dielet.analysis.traffic import Bytes
from dielet.analysis.words import counted

WARNING, NOTE = "warning", "note"
_LACK = "lack"  # told as a note; but what lacks it is not complete
_PHASES = (PREFILL, DECODE, HEAD)
_EXPLAINED = (0.9, 1.1)  # of the counters' bytes: outside it something is missing
_RESOLVED = 0.99
_ABOVE = 0.05  # share of time above a measured peak, from which on the peak is doubted


def find_coverage(
    table: Table, steps: Steps, moved: Bytes, limits: Limits, walked: Sequence[Walked]
) -> Coverage:
    found = table.found
    shown = moved.by_counters
    explained = None
    if shown is not None and shown.sum() > 0:
        explained = float(moved.by_commands.sum() / shown.sum())
    dropped = table.attributes.get("dropped_command_count")
    waits, resolved = (sum(getattr(k, name) for k in table.kinds) for name in ("waits", "resolved"))
    notes = [
        *_window(table),
        *_losses(table, steps),
        *_unknowns(table, steps, explained, waits - resolved, waits),
        *_peaks(table, limits),
        *_samples(table, walked),
    ]
    notes.sort(key=lambda note: note.severity != WARNING)
    lacks = tuple(note.text for note in notes if note.severity != NOTE)
    return Coverage(
        complete=not lacks,
        notes=tuple(Note(NOTE, n.text) if n.severity == _LACK else n for n in notes),
        slices=found.slices,
        commands=found.commands,
        host_slices=len(table.host.start),
        steps=len(steps.steps),
        dependencies=table.dependencies,
        dropped_commands=int(dropped) if dropped is not None else None,
        truncated=found.truncated,
        open_slices=found.open_slices,
        stray_ends=found.stray,
        unnamed_slices=found.unnamed,
        arguments=table.with_bytes / found.commands,
        resolved_waits=resolved / waits if waits else None,
        dram_explained=explained,
        window_ns=(table.begin, table.finish),
        lacks=lacks,
    )


def _window(table: Table) -> Iterator[Note]:
    """What is not of the window, where it is not the whole trace."""
    if table.found.left_out:
        yield Note(
            NOTE,
            f"of {counted(table.found.commands + table.found.left_out, 'command')} in the trace "
            f"{table.found.commands:,} are in the window and in every figure; of the whole file "
            "are only its attributes, its size, and what is said here of commands that were "
            "dropped, slices without an end or a beginning, names that are not understood, and "
            "a cut-off end",
        )


def _losses(table: Table, steps: Steps) -> Iterator[Note]:
    """What was there and is not in the trace: figures are wrong or incomplete."""
    found, said = table.found, table.attributes
    dropped = int(said.get("dropped_command_count", 0))
    if dropped:
        yield Note(
            WARNING,
            f"{counted(dropped, 'command was', 'commands were')} dropped, the oldest: the "
            "beginning is missing; "
            "profile a shorter part or give the session more memory",
        )
    if found.truncated:
        rest = ""
        if found.unfinished:
            what = counted(found.unfinished, "step")
            are = "is" if found.unfinished == 1 else "are"
            rest = f"; {what} at the cut, perhaps not whole, {are} left out"
        elif len(steps.steps) == 1:
            rest = "; its only step is perhaps not whole"
        yield Note(WARNING, f"the file is cut off: what came after the cut is missing{rest}")
    if found.open_slices:
        what = counted(found.open_slices, "slice has no end and is", "slices have no end and are")
        yield Note(WARNING, f"{what} left out")
    if found.stray:
        what = counted(found.stray, "end belongs to a slice", "ends belong to slices")
        yield Note(WARNING, f"{what} whose beginning is missing")
    there = found.commands + found.left_out
    told = int(said.get("command_count", there))
    if told > there + found.open_slices:
        has, are = counted(told, "command"), counted(there, "is", "are")
        yield Note(WARNING, f"the trace says that it has {has}; {are} there")
    if backward := sum(kind.backward for kind in table.kinds):
        what = counted(backward, "dependency points", "dependencies point")
        yield Note(NOTE, f"{what} backwards in time, and so left out")


def _unknowns(
    table: Table, steps: Steps, explained: float | None, missing: int, waits: int
) -> Iterator[Note]:
    """What the trace never said: some figures stay empty."""
    found = table.found
    if "dropped_command_count" not in table.attributes:
        yield Note(_LACK, "it does not say whether commands were dropped")
    if found.old_names:
        yield Note(NOTE, "names do not say the run (`W0`): all commands of a step count as one run")
    if not any(phase in _PHASES for phase in table.runs.phase):
        yield Note(NOTE, "runs do not say their phase: no first token, no time per token")
    elif not any(step.phase == PREFILL for step in steps.steps):
        yield Note(NOTE, "there is no prefill: no time to the first token, no answers")
    if len(models := set(table.models.values())) > 1:
        yield Note(
            NOTE,
            f"{len(models)} models ran: steps and answers are told apart, phases and layers are "
            "those of all together",
        )
    if found.unnamed:
        what = counted(found.unnamed, "slice has a name that is", "slices have names that are")
        yield Note(NOTE, f"{what} not understood")
    if table.with_bytes < found.commands:
        without = found.commands - table.with_bytes
        what = "does not say its" if without == 1 else "do not say their"
        yield Note(_LACK, f"{without:,} of {counted(found.commands, 'command')} {what} bytes")
    if not table.dependencies:
        yield Note(_LACK, "no dependencies: the critical path follows the order of engines alone")
    if missing > (1 - _RESOLVED) * waits:
        what = counted(missing, "cause (`waited for`) names", "causes (`waited for`) name")
        yield Note(_LACK, f"{what} commands that are not there")
    if not table.counters:
        yield Note(
            _LACK, "no counters: bytes are those of the commands, memory in use is not known"
        )
    if explained is not None and not _EXPLAINED[0] <= explained <= _EXPLAINED[1]:
        yield Note(
            NOTE, f"commands account for {explained:.0%} of the bytes that the DRAM's counters show"
        )
    if table.guessed:
        yield Note(
            _LACK,
            "which worker did what is a guess, from which tracks overlap; a profile of this "
            "version says it",
        )
    if absent := _missing_chiplets(table):
        numbers = ", ".join(map(str, absent))
        yield Note(_LACK, f"no commands on chiplet{'s' * (len(absent) > 1)} {numbers}")


def _missing_chiplets(table: Table) -> list[int]:
    seen = {lane.chiplet for lane in table.lanes if lane.kind != HOST and lane.chiplet is not None}
    expected = max(seen, default=-1) + 1
    if table.attributes.get("peaks_of_each") == "chiplet" and seen:
        devices = len({lane.device for lane in table.lanes if lane.kind != HOST})
        expected = max(expected, int(table.attributes.get("peaks_count", 0)) // devices)
    return [chiplet for chiplet in range(expected) if chiplet not in seen]


def _peaks(table: Table, limits: Limits) -> Iterator[Note]:
    if not limits.source:
        yield Note(_LACK, "peaks are not known: no roofline; name the device with --device")
    total = above = 0
    for kind in table.kinds:
        for rows in kind.blocks():
            duration = kind.end[rows] - kind.start[rows]
            total += int(duration.sum())
            above += int((duration * (kind.percent[rows] > 100)).sum())
    if total and above > _ABOVE * total:
        yield Note(
            NOTE,
            f"commands exceed the peaks in {above / total:.0%} of their time: those were measured "
            "when the session ended, perhaps while something else ran; shares count as 1 there",
        )


def _samples(table: Table, walked: Sequence[Walked]) -> Iterator[Note]:
    used = sum(len(each.graph.rows) for each in walked)
    runs = int(np.sum([len(kind.runs) for kind in table.kinds]))
    if used < runs:
        yield Note(NOTE, f"critical paths are those of {used:,} of {runs:,} runs, evenly spaced")
