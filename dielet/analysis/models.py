"""Which devices of a trace are one model's: several models may have run at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from dielet.analysis.table import I64


def find_models(
    used: Iterable[tuple[set[str], I64]], steps: Sequence[tuple[int | None, int]]
) -> dict[str, int]:
    """By device the number of its model: one model's are those that runs of one instance are on.

    used: devices that commands are on, and of which steps (places in `steps`, which are instance,
    if it is known, and sequence) those are.
    """
    owned: dict[tuple[int | None, int], set[str]] = defaultdict(set)
    for devices, places in used:
        for place in set(places.tolist()):
            instance, sequence = steps[place]
            owned[instance, sequence if instance is None else 0] |= devices
    models: list[set[str]] = []
    for together in {frozenset(devices) for devices in owned.values()}:
        joined = set(together).union(*(model for model in models if model & together))
        models = [model for model in models if not model & together] + [joined]
    ordered = sorted(models, key=min)
    return {device: number for number, model in enumerate(ordered) for device in model}
