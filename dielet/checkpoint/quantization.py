"""What config.json says of how a directory's weights are quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dielet.checkpoint.families import Config
from dielet.checkpoint.names import shown
from dielet.errors import DamagedFile, Unsupported

METHODS = ("awq", "fp8", "gptq")
INSTEAD = "use the bf16, fp16 or fp32 checkpoint that it was made of, or a .gguf file"
_FORMATS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Quantization:
    """method: one of METHODS.

    group: inputs that share a scale and a zero point, all of them (-1), in GPTQ and AWQ.
    less_one: whether zero points are stored as one less.  ordered: whether groups are runs of
    inputs, not of inputs in the order of their importance.
    block: outputs and inputs that share a scale in fp8; None: the shape of the scales says.
    """

    method: str
    group: int = 0
    less_one: bool = False
    ordered: bool = True
    block: tuple[int, int] | None = None


def read_quantization(config: Config) -> Quantization | None:
    """The entry `quantization_config` of a config.json, if it has one.

    Raises Unsupported for a method, or a kind of it, whose weights are not read.
    """
    given = config.get("quantization_config", dict, None)
    return None if given is None else quantization(config.within("quantization_config", given))


def quantization(entries: Config, default: str = "") -> Quantization:
    """The entries of a `quantization_config`, of the `default` method where they name none."""
    method: str = entries.get("quant_method", str, default)
    if method not in METHODS:
        raise Unsupported(
            f"{entries.where}: the weights are quantised with {shown(repr(method))}, which is not "
            f"supported; supported: {', '.join(METHODS)}; {INSTEAD}"
        )
    if method == "fp8":
        _only(entries, "fp8", "expert_dtype", str, ("fp8",))
        return Quantization(method, block=_block(entries))
    _only(entries, method, "bits", int, (4,))
    kept_as = {"gptq": ("checkpoint_format", "format"), "awq": ("version", "format")}[method]
    for key in kept_as:
        _only(entries, method, key, str, _FORMATS[method])
    if method == "awq":
        _only(entries, method, "zero_point", bool, (True,))
        return Quantization(method, _group(entries))
    _only(entries, method, "is_marlin_format", bool, (False,))
    second = any(entries.get(key, str, "").lower() == "gptq_v2" for key in kept_as)
    in_order = not entries.get("desc_act", bool, False)
    return Quantization(method, _group(entries), less_one=not second, ordered=in_order)


def _only(entries: Config, method: str, key: str, kind: type, values: tuple[Any, ...]) -> None:
    value = entries.get(key, kind, values[0])
    value = value.lower() if kind is str else value
    if value not in values:
        raise Unsupported(
            f"{entries.where}: {method} weights whose {key} is {shown(repr(value))} are "
            f"not supported; only {', '.join(map(str, values))}; {INSTEAD}"
        )


def _group(entries: Config) -> int:
    group: int = entries.get("group_size", int, 128)
    if group != -1 and not 1 <= group <= _LARGEST:
        raise DamagedFile(f"{entries.where}: group_size is {group}; it must be above 0, or -1")
    return group


def _block(entries: Config) -> tuple[int, int] | None:
    sizes = entries.get("weight_block_size", list, None)
    if sizes is None:
        return None
    if len(sizes) != 2 or not all(type(n) is int and 1 <= n <= _LARGEST for n in sizes):
        raise DamagedFile(
            f"{entries.where}: weight_block_size is {shown(repr(sizes))}; two sizes "
            "above 0 are needed"
        )
    return sizes[0], sizes[1]
