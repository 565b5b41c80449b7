"""Whether a compiled model fits the memories of the device, chiplet by chiplet, and what would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dielet.devices import Device
from dielet.devices.units import SIZE, show
from dielet.errors import CapacityError, DieletError
from dielet.program import Program
from dielet.program.memory import Share

if TYPE_CHECKING:
    from dielet.image.plan import Planner

Replan = Callable[..., "Planner"]
"""The layout of the same model with some compile options changed."""


def memory_by_chiplet(plan: Planner) -> list[dict[str, int]]:
    """Bytes of DRAM by owner, for every chiplet that has its own; nothing on a host.

    `kv` is for as many sequences as are decoded together.
    """
    if not plan.device.local_memory:
        return []
    decoder, head = (_by_chiplet(plan, p.shares) for p in (plan.decoder, plan.head))
    table = _by_chiplet(plan, plan.table.shares if plan.table is not None else ())
    sequences = max(plan.batch_sizes)
    per_head = plan.kv.nbytes // plan.kv.kv_heads * sequences
    slots = [b - a for a, b in zip(plan.kv_slots, plan.kv_slots[1:], strict=False)]
    return [
        {
            "decoder weights": decoder[chiplet],
            "head weights": head[chiplet] + table[chiplet],
            f"kv of {plan.kv.positions * sequences} tokens": slots[chiplet] * per_head,
            "rotary tables": plan.kv.positions * plan.spec.head_dim * 4 * len(plan.spec.rotations),
        }
        for chiplet in range(plan.chiplets)
    ]


def _by_chiplet(plan: Planner, shares: Iterable[Share]) -> list[int]:
    sizes = [0] * plan.chiplets
    for share in shares:
        sizes[share.chiplet] += share.nbytes
    return sizes


def check_capacity(plan: Planner, replan: Replan) -> None:
    """Raise CapacityError unless the DRAM of every chiplet is enough: the owners, and what fits."""
    worst = fullest(plan)
    limit = plan.device.memory["dram"].size if plan.device.local_memory else 0
    owners = memory_by_chiplet(plan)[worst] if limit else {}
    need = sum(owners.values())
    if need <= limit:
        return  # or there is no limit: what a host has is known when the model is loaded
    table = ", ".join(f"{owner} {show(n, SIZE)}" for owner, n in owners.items() if n)
    remedies = "; ".join(_remedies(plan, owners, limit, replan)) or "a smaller model"
    raise CapacityError(
        f"{plan.spec.name or plan.spec.model_type} does not fit {plan.device.name}: chiplet "
        f"{worst} needs {show(need, SIZE)} of {show(limit, SIZE)} DRAM ({table}); "
        f"what would fit: {remedies}"
    )


def fullest(plan: Planner) -> int:
    """The chiplet that needs the most DRAM."""
    if not plan.device.local_memory:
        return 0
    needs = [sum(owners.values()) for owners in memory_by_chiplet(plan)]
    return needs.index(max(needs))


def _remedies(plan: Planner, owners: dict[str, int], limit: int, replan: Replan) -> list[str]:
    """Changed options with which the model fits, each tried."""
    tokens = next(n for owner, n in owners.items() if owner.startswith("kv "))
    room = limit - sum(owners.values()) + tokens
    shorter = room * plan.kv.positions // max(tokens, 1) // 32 * 32
    candidates: list[Sequence[dict[str, Any]]] = [
        [{"weights": kind} for kind in ("int8", "int4") if kind != plan.weights],
        [{"kv": "int8"}] if plan.kv.format != "int8" else [],
        [{"max_seq_len": shorter, "kv_ladder": None}] if shorter >= 32 else [],
        [{"num_devices": plan.device.devices * n} for n in range(2, 17)],
    ]
    found = []
    for options in candidates:
        for changes in options:
            size = _fitting(changes, limit, replan)
            if size:
                name, value = next(iter(changes.items()))
                found.append(f"{name}={value} ({show(size, SIZE)})")
                break
    return found


def _fitting(changes: dict[str, Any], limit: int, replan: Replan) -> int:
    """Bytes that the fullest chiplet needs with changed options, or 0 when it does not fit."""
    try:
        other = replan(**changes)
    except DieletError:
        return 0  # the device cannot be had in that number, say
    size = sum(memory_by_chiplet(other)[fullest(other)].values())
    return size if size <= limit else 0


def check_shared(device: Device, programs: Iterable[Program]) -> None:
    """Raise CapacityError unless the activations of every program fit the shared memories."""
    limit = device.memory["shared"].size if device.local_memory else 0
    for program in programs:
        for space, size in program.sizes.items():
            if limit and space.startswith("shared.") and size > limit:
                chiplet = space.split(".")[1]
                fewer = program.tokens * limit // size // 16 * 16
                hint = "prefill_chunk" if program.phase == "prefill" else "batch_sizes"
                raise CapacityError(
                    f"{program.name} needs {show(size, SIZE)} of chiplet {chiplet}'s "
                    f"{show(limit, SIZE)} shared memory; use {hint} of at most {max(fewer, 1)}"
                )
