"""Which assumed figure of a device moves the answer most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dielet.devices import Device
from dielet.simulator.predict import Prediction


def sensitivity(
    device: Device, changes: dict[str, str], predict: Callable[[dict[str, str]], Prediction]
) -> list[dict[str, Any]]:
    """Every assumed figure, halved and doubled: ratios of the times, the largest effect first."""
    base = predict(changes)
    found = []
    for figure in device.figures:
        if not figure.assumed or figure.path in changes:
            continue
        row: dict[str, Any] = {"figure": figure.path, "value": str(figure)}
        for name, factor in (("half", "x0.5"), ("double", "x2")):
            p = predict({**changes, figure.path: factor})
            row[f"tpot_{name}"] = p.tpot_s / base.tpot_s if base.tpot_s else 1.0
            row[f"ttft_{name}"] = p.ttft_s / base.ttft_s
        found.append(row)
    return sorted(found, key=_effect, reverse=True)


def _effect(row: dict[str, Any]) -> float:
    return max(abs(value - 1) for name, value in row.items() if name.startswith(("tpot", "ttft")))
