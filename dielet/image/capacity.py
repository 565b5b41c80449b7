"""Whether a compiled model fits the memories of the device, chiplet by chiplet, and what would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
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

Candidates = list[dict[str, Any]]
"""One changed option each, the best first: those after one that fits are not looked at."""

TRIES = 3  # of one option, with as many values that fit DRAM
EVERY_KIND = 8  # layers: none of the supported families repeats after more


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
    tokens = next(n for owner, n in owners.items() if owner.startswith("kv "))
    shorter = (limit - need + tokens) * plan.kv.positions // max(tokens, 1) // 32 * 32
    candidates: list[Candidates] = [
        [{"weights": kind} for kind in ("int8", "int4") if kind != plan.weights],
        [{"kv": "int8"}] if plan.kv.format != "int8" else [],
        [{"max_seq_len": shorter}] if shorter >= 32 else [],
        [{"batch_sizes": (n,)} for n in _halves(max(plan.batch_sizes), 1)],
    ]
    raise CapacityError(
        f"{plan.spec.name or plan.spec.model_type} does not fit {plan.device.name}: chiplet "
        f"{worst} needs {show(need, SIZE)} of {show(limit, SIZE)} DRAM ({table}); "
        f"{_what_would_fit(plan, candidates, replan)}"
    )


def check_shared(plan: Planner, programs: Iterable[Program], replan: Replan) -> None:
    """Raise CapacityError unless the activations of every program fit the shared memories."""
    for program in programs:
        if not (space := _beyond_shared(plan.device, program)):
            continue
        size, limit = program.sizes[space], plan.device.memory["shared"].size
        fewer = [n for n in _halves(program.tokens, 1) if n * size <= program.tokens * limit]
        candidates: list[Candidates] = [
            [{"prefill_chunk": n} for n in fewer if n % 16 == 0]
            if program.phase == "prefill"
            else [{"batch_sizes": (n,)} for n in fewer]
        ]
        raise CapacityError(
            f"{program.name} needs {show(size, SIZE)} of chiplet {space.split('.')[1]}'s "
            f"{show(limit, SIZE)} shared memory; {_what_would_fit(plan, candidates, replan)}"
        )


def fullest(plan: Planner) -> int:
    """The chiplet that needs the most DRAM."""
    if not plan.device.local_memory:
        return 0
    needs = [sum(owners.values()) for owners in memory_by_chiplet(plan)]
    return needs.index(max(needs))


def _halves(number: int, least: int) -> list[int]:
    """Half of it, a quarter, and so on."""
    found = []
    while (number := number // 2) >= least:
        found.append(number)
    return found


def _beyond_shared(device: Device, program: Program) -> str:
    """The shared memory that a program has too much for, or nothing."""
    limit = device.memory["shared"].size if device.local_memory else 0
    over = (s for s, n in program.sizes.items() if s.startswith("shared.") and n > limit > 0)
    return next(over, "")


def _what_would_fit(plan: Planner, candidates: list[Candidates], replan: Replan) -> str:
    """Changed options with which the model fits every memory, each tried."""
    more = range(2, 17)
    candidates = [
        *candidates,
        [{"chiplets": plan.device.chiplets * n} for n in more],
        [{"num_devices": plan.device.devices * n} for n in more],
    ]
    found = []
    for options in candidates:
        roomy = ((changes, size) for changes in options if (size := _in_dram(changes, replan)))
        for changes, size in itertools.islice(roomy, TRIES):
            if _in_shared(plan, changes, replan):
                ((name, value),) = changes.items()
                shown = value[0] if isinstance(value, tuple) else value
                found.append(f"{name}={shown} ({show(size, SIZE)})")
                break
    return f"what would fit: {'; '.join(found) or 'a smaller model'}"


def _in_dram(changes: dict[str, Any], replan: Replan) -> int:
    """Bytes that the fullest chiplet needs with changed options, or 0 when it does not fit."""
    try:
        other = replan(**changes)
    except DieletError:
        return 0  # the device cannot be had in that number, say
    size = sum(memory_by_chiplet(other)[fullest(other)].values())
    limit = other.device.memory["dram"].size
    return size if size <= limit or not limit else 0


def _in_shared(plan: Planner, changes: dict[str, Any], replan: Replan) -> bool:
    """Whether activations fit too; that takes programs, of which the first layers are enough."""
    try:
        other = replan(**changes, layers=min(plan.spec.layers, EVERY_KIND))
        return not any(_beyond_shared(other.device, program) for program in other.programs())
    except DieletError:
        return False  # a piece of weights that the scratchpad is too small for
