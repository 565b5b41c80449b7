"""The report of a calibration, for people: what it was worth, and what each layer does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dielet.image.accuracy import Accuracy, LinearAccuracy

_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.weight$")


def summary(found: Accuracy) -> str:
    return (
        f"{found.same_best_token:.1%} of bf16's best tokens, KL {found.mean_kl:.4f}; "
        f"not calibrated {found.plain_same_best_token:.1%}, {found.plain_mean_kl:.4f} "
        f"({found.held_out_tokens} tokens that chose nothing)"
    )


def totals(found: Accuracy) -> dict[str, Any]:
    """All of the report but its linears, as JSON types."""
    return {name: getattr(found, name) for name in found.__struct_fields__ if name != "linears"}


def layer_lines(found: Accuracy) -> Iterator[str]:
    """A heading, and a line for each layer: its formats, the linear that loses most by itself,
    and how near the outputs of its last linear still are."""
    yield "layer  formats               worst by itself                 accumulated"
    layers: dict[int, list[tuple[str, LinearAccuracy]]] = {}
    for linear in found.linears:
        if match := _LAYER.search(linear.name):
            layers.setdefault(int(match[1]), []).append((match[2], linear))
    for number, linears in sorted(layers.items()):
        names = [linear.format for _, linear in linears]
        formats = ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
        part, worst = min(linears, key=lambda pair: pair[1].single)
        last = linears[-1][1]
        yield (f"{number:>5}  {formats:<20}  {worst.single:.5f} {part:<22}  {last.accumulated:.5f}")
