"""Achieved rates against peaks, and what bounds each kind of command."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dielet.analysis.limits import Limits, operation_format
from dielet.analysis.operations import UNKNOWN, Sums
from dielet.analysis.schema import Layer, Operation, Roof, Verdict
from dielet.analysis.table import Table
from dielet.analysis.traffic import Bytes

NEAR = 0.25
"""Share of a peak below which neither computation nor memory is said to bound."""


def roof(
    level: str,
    phase: str,
    name: str,
    kind: str,
    seconds: float,
    ops: float,
    nbytes: float,
    peak_ops: float | None,
    peak_bytes: float | None,
    verdict: str = "",
    share: float | None = None,
) -> Roof:
    """A point; without a verdict or share of its own, those of the nearest peak."""
    ops_rate, byte_rate = (x / seconds if seconds else 0.0 for x in (ops, nbytes))
    shares = {
        "compute": ops_rate / peak_ops if peak_ops else None,
        "memory": byte_rate / peak_bytes if peak_bytes else None,
    }
    known = {side: share for side, share in shares.items() if share is not None}
    nearest = max(known, key=lambda side: known[side], default="")
    if not verdict:
        verdict = UNKNOWN if not known else nearest if known[nearest] >= NEAR else "setup"
    return Roof(
        level=level,
        phase=phase,
        name=name,
        kind=kind,
        seconds=seconds,
        ops=ops,
        bytes=nbytes,
        intensity=ops / nbytes if nbytes else None,
        ops_per_s=ops_rate,
        bytes_per_s=byte_rate,
        peak_ops_per_s=peak_ops,
        peak_bytes_per_s=peak_bytes,
        share=known[nearest] if known and share is None else share,
        verdict=verdict,
    )


def find_roofline(
    table: Table,
    limits: Limits,
    moved: Bytes,
    layers: Sequence[Layer],
    operations: Sequence[Operation],
) -> tuple[Roof, ...]:
    ops = np.zeros(len(table.runs))
    forms: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kind in table.kinds:
        pieces = kind.pieces
        by_piece = np.zeros(len(pieces))
        for rows in kind.blocks():
            known = np.maximum(kind.ops[rows], 0)
            ops[kind.runs[rows]] = known.sum(axis=1)
            by_piece += known.sum(axis=0)
        for n, total in enumerate(by_piece.tolist()):
            words = table.text(int(pieces.kind[n])), table.text(int(pieces.format[n]))
            forms[kind.phase][operation_format(*words)] += float(total)
    all_forms: dict[str, float] = defaultdict(float)
    for by_form in forms.values():
        for form, total in by_form.items():
            all_forms[form] += total
    dram = limits.dram * limits.count if limits.dram else None
    spans = (table.runs.end - table.runs.start) * 1e-9
    phases = np.array(table.runs.phase)
    whole = (table.finish - table.begin) * 1e-9
    found = [
        roof("run", "", "the whole window", "", whole, float(ops.sum()), float(moved.dram.sum()),
             _peak(limits, all_forms), dram)
    ]  # fmt: skip
    for phase in table.phases():
        mine = phases == phase
        found.append(
            roof("phase", phase, phase, "", float(spans[mine].sum()), float(ops[mine].sum()),
                 float(moved.dram[mine].sum()), _peak(limits, forms[phase]), dram)
        )  # fmt: skip
    for layer in layers:
        name = f"layer {layer.layer}" if layer.layer >= 0 else "no layer"
        found.append(
            roof("layer", layer.phase, name, "", layer.wall_ns * 1e-9, layer.ops, layer.bytes,
                 _peak(limits, forms[layer.phase]), dram)
        )  # fmt: skip
    for row in operations:
        verdict = max(row.bound, key=lambda b: row.bound[b], default=UNKNOWN)
        form = operation_format(row.kind, row.format)
        found.append(
            roof("operation", row.phase, row.operation, row.kind, row.time_ns * 1e-9, row.ops,
                 row.bytes, limits.ops(form) if row.ops else None,
                 limits.dram if "dram" in row.route else None,
                 "" if verdict == UNKNOWN else verdict, row.share)
        )  # fmt: skip
    return tuple(found)


def _peak(limits: Limits, forms: dict[str, float]) -> float | None:
    """The device's peak for the number format that most operations are counted in."""
    most = max(forms, key=lambda form: forms[form], default="")
    peak = limits.ops(most)
    return None if peak is None else peak * limits.count


def find_verdicts(table: Table, sums: Sequence[Sums]) -> tuple[Verdict, ...]:
    times: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in sums:
        pieces = each.kind.pieces
        for n in range(len(pieces)):
            name = table.text(int(pieces.kind[n])) or table.lanes[int(pieces.lane[n])].engine
            mine = times[each.kind.phase, name]
            for bound, ns in zip((*table.bounds, UNKNOWN), each.bound[:, n].tolist(), strict=True):
                mine[bound] += ns
    found = []
    for (phase, name), by_bound in times.items():
        whole = sum(by_bound.values())
        shares = {b: ns / whole for b, ns in by_bound.items() if ns} if whole else {}
        verdict = max(shares, key=lambda b: shares[b], default=UNKNOWN)
        found.append(Verdict(phase, name, round(whole), verdict, shares))
    order = table.phases()
    return tuple(sorted(found, key=lambda v: (order.index(v.phase), -v.time_ns)))
