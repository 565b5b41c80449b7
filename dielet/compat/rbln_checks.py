"""Rules of single options of optimum-rbln: kinds of values, numbers of devices, memory budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from dielet.errors import UsageError

GROUPS = (1, 2, 4, 8, 16, 32)  # devices that work on one model, as the vendor's software has them
BOOLS = (
    "create_runtimes", "activate_profiler", "use_inputs_embeds", "use_attention_mask",
    "use_position_ids", "output_hidden_states", "optimize_host_memory",
)  # fmt: skip
_KINDS: dict[str, tuple[Any, str]] = {
    **{name: (bool, "True or False") for name in BOOLS},
    "npu": (str, "the name of a device"),
    "phases": (list | tuple, "a list of names"),
    "quantization": (Mapping, "a dict of options"),
    "device_map": (Mapping, "a dict of devices by the names of models"),
    "sliding_window_layers": (list | tuple, "a list of layers"),
}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20,
          "GIB": 2**30}  # fmt: skip


def check_kinds(options: Any) -> None:
    """UsageError for a value of a kind that none of its option's values is of."""
    for name, (kind, what) in _KINDS.items():
        value = getattr(options, name)
        if value is not None and not isinstance(value, kind):
            raise UsageError(f"{name} is {value!r:.80}; it must be {what}")
    for name in ("kvcache_partition_len", "sliding_window"):
        if getattr(options, name) is not None:
            positive(name, getattr(options, name))
    seconds = options.timeout
    if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
        raise UsageError(f"timeout is {seconds!r:.80}; it must be a number of seconds above 0")
    if options.memory_budget is not None:
        parse_budget(options.memory_budget, 1)


def positive(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise UsageError(f"{name} is {value!r}; it must be a positive whole number")
    return value


def dtype_name(dtype: Any) -> str | None:
    """bfloat16, of torch.bfloat16 or its name; None of None.  UsageError for anything else."""
    name = str(dtype).removeprefix("torch.")
    if dtype is not None and not isinstance(getattr(torch, name, None), torch.dtype):
        raise UsageError(f"dtype is {dtype!r:.80}; it must be one of torch, such as 'bfloat16'")
    return None if dtype is None else name


def group(num_devices: Any) -> int:
    """So many devices, which is a number of them that can work together."""
    if type(num_devices) is not int or num_devices not in GROUPS:
        sizes = ", ".join(map(str, GROUPS))
        raise UsageError(f"num_devices is {num_devices!r}; so many work together: {sizes}")
    return num_devices


def check_devices(name: str, devices: Any, num_devices: int) -> None:
    """UsageError unless `devices` is None, or the numbers of `num_devices`: one, or a list."""
    if devices is None:
        return
    numbers = list(devices) if isinstance(devices, list | tuple) else [devices]
    for number in numbers:
        if type(number) is not int or not 0 <= number < GROUPS[-1]:
            raise UsageError(
                f"{name} is {devices!r:.80}; it is a number from 0 to {GROUPS[-1] - 1}, or a list "
                "of them"
            )
    if len(numbers) != num_devices:
        raise UsageError(
            f"{name} {numbers} names {len(numbers)} devices and num_devices is {num_devices}; "
            "they must agree"
        )
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"{name} {numbers} names a device twice; each does one part of the model")


def parse_budget(budget: Any, whole: int) -> int:
    """Bytes: of 0.8 or "80%" of the whole, of a number of bytes, or of "10GB"."""
    if isinstance(budget, float) and 0 < budget <= 1:
        return int(budget * whole)
    if type(budget) is int and budget > 1:
        return budget
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)\s*", str(budget))
    if isinstance(budget, str) and found:
        number, unit = float(found[1]), found[2].upper()
        if unit == "%" and 0 < number <= 100:
            return int(number * whole / 100)
        if unit in _UNITS and unit:
            return int(number * _UNITS[unit])
    raise UsageError(
        f"memory_budget is {budget!r}; give a share such as 0.8 or '80%', or bytes such as '10GB'"
    )
