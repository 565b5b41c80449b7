"""What changed between two compiled models, without running either."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from dielet.analysis.diff import Amount, Key, align, total
from dielet.analysis.rules import read_rules
from dielet.analysis.schema import Diff
from dielet.image import Manifest, read_manifest
from dielet.image.file import open_image
from dielet.image.names import DECODER, HEAD
from dielet.program.commands import ENTRIES


def compare_programs(before: str | Path, after: str | Path) -> Diff:
    """The commands and bytes of two model directories, by program and operation.

    Raises MissingFile or DamagedFile for what is no model directory.
    """
    old, new = _load(Path(before)), _load(Path(after))
    changes = align(old[1], new[1], {}, read_rules().limits, {})
    programs = [_sums(side[1]) for side in (old, new)]
    notes = [
        f"another {name}: {a} before, {b} now" for name, a, b in _facts(old[0], new[0]) if a != b
    ]
    return Diff(
        other=str(before),
        notes=tuple(notes),
        totals=tuple(
            total(name, programs[0].get(name), programs[1].get(name))
            for name in dict.fromkeys([*programs[0], *programs[1]])
        ),
        changes=changes,
        counts=dict(Counter(change.change for change in changes)),
        findings_new=(),
        findings_gone=(),
    )


def _load(directory: Path) -> tuple[Manifest, dict[Key, Amount]]:
    manifest = read_manifest(directory)
    found: dict[Key, Amount] = defaultdict(lambda: Amount(None))
    for described in manifest.programs:
        image = open_image(directory / (HEAD if described.phase == "head" else DECODER))
        program = image.program(described.name)
        for command in program.commands:
            cost = ENTRIES[command.kind].cost(command)
            amount = found[program.phase, program.name, command.layer, command.kind]
            amount.nbytes += sum(cost.reads.values()) + sum(cost.writes.values())
            amount.commands += 1
    return manifest, dict(found)


def _sums(amounts: dict[Key, Amount]) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    for (_, program, _, _), amount in amounts.items():
        mine = found.setdefault(program, Amount(None))
        mine.nbytes += amount.nbytes
        mine.commands += amount.commands
    return found


def _facts(old: Manifest, new: Manifest) -> list[tuple[str, object, object]]:
    names = {"device": "device", "number of chiplets": "chiplets", "weight format": "weights"}
    return [(what, getattr(old, name), getattr(new, name)) for what, name in names.items()]
