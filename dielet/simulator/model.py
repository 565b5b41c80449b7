"""What is simulated: the programs of a model, compiled before or lowered for it now, no weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from dielet.checkpoint.names import EMBEDDING, HEAD
from dielet.checkpoint.open import open_checkpoint, open_config
from dielet.checkpoint.random import RandomCheckpoint
from dielet.checkpoint.spec import ModelSpec
from dielet.devices import Device, overridden, read_device
from dielet.errors import MissingFile, Unsupported, UsageError
from dielet.formats.packed import WeightFormat
from dielet.image import CompileOptions, ModelFiles, open_directory
from dielet.image.capacity import check_capacity, check_shared
from dielet.image.formats import Stored, default_weights
from dielet.image.manifest import NAME
from dielet.image.options import HEAD_ROWS
from dielet.image.plan import Planner
from dielet.program import Program, Shape

OF_DEVICE = {"chiplets": "chiplets", "devices": "num_devices", "partition": "partition"}
OPTIONS = tuple(
    field.name for field in fields(CompileOptions) if field.name not in ("device", *OF_DEVICE)
)
SIZES = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
"""Compile options and sizes of the model that `--set` may change; the rest is the device's."""


@dataclass(frozen=True)
class _Known:
    """A tensor of which only the format is known: it is stored as it was before."""

    K: int
    exact_formats: tuple[WeightFormat, ...]


@dataclass(frozen=True)
class Source:
    """A model by its spec, its tensors' formats, and the options that it is compiled with."""

    spec: ModelSpec
    tensors: Mapping[str, Stored]
    options: CompileOptions
    int8: frozenset[str] = frozenset()  # linears of an int4 model that were kept in int8
    files: ModelFiles | None = None  # of a compiled model, whose programs are walked as they are
    settled: CompileOptions | None = None  # those that `files` were compiled with

    @property
    def name(self) -> str:
        return self.spec.name or self.spec.model_type


def open_source(src: str | Path, options: CompileOptions) -> Source:
    """A model directory, a checkpoint, or a bare config.json; weights are not read.

    Options that a model directory settled are taken from it unless `options` says otherwise.
    """
    path = Path(os.path.expanduser(src))
    if (path / NAME).is_file():
        return _compiled(open_directory(path), options)
    try:
        checkpoint = open_checkpoint(src, fetch=False)
        tensors: dict[str, Stored] = {n: checkpoint.tensor(n) for n in checkpoint.names()}
        return Source(checkpoint.spec, tensors, options)
    except (MissingFile, Unsupported):
        spec = open_config(src)  # no weights: the sizes are enough
        if path.suffix == ".json" and path.name != "config.json":
            spec = msgspec.structs.replace(spec, name=path.stem)
        return spec_source(spec, options)


def spec_source(spec: ModelSpec, options: CompileOptions) -> Source:
    random = RandomCheckpoint(spec)
    return Source(spec, {n: random.tensor(n) for n in random.names()}, options)


def _compiled(files: ModelFiles, options: CompileOptions) -> Source:
    m = files.manifest
    tensors: dict[str, Stored] = {}
    for share in (*files.decoder.table.shares, *files.head.table.shares):
        if share.K:  # the last share of a linear that is cut along its inputs has the last of them
            fmt = WeightFormat.parse(share.format)
            tensors[share.parameter] = _Known(share.k_lo + share.K, (fmt,))
    embedding = _Known(m.spec.hidden, (WeightFormat.parse(m.embedding_format),))
    tensors[EMBEDDING] = embedding
    tensors.setdefault(HEAD, embedding)
    default = CompileOptions()
    shares = (*files.decoder.table.shares, *files.head.table.shares)
    of_device: dict[str, Any] = {
        "chiplets": m.chiplets // m.devices,
        "num_devices": m.devices,
        # A sum that is split leaves shares which begin further on in a linear's inputs.
        "partition": "column_row" if any(share.k_lo for share in shares) else "column",
    }
    settled: dict[str, Any] = {
        "weights": m.weights,
        "max_seq_len": m.max_seq_len,
        "prefill_chunk": m.prefill_chunk,
        "kv_ladder": m.kv_ladder,
        "kv": m.kv_format,
        "batch_sizes": m.batch_sizes,
    }
    open_ = {n: v for n, v in settled.items() if getattr(options, n) == getattr(default, n)}
    if set(options.batch_sizes) <= set(m.batch_sizes):
        open_["batch_sizes"] = m.batch_sizes
    if options.max_seq_len is not None:
        open_.pop("kv_ladder", None)
    kept = {name for name, known in tensors.items() if known.exact_formats[0].kind == "int8"}
    int8 = frozenset(kept if m.weights == "int4" else ())
    return Source(
        m.spec, tensors, replace(options, **open_), int8, files,
        replace(default, **settled, **of_device),
    )  # fmt: skip


Lowered = dict[object, tuple[Planner, dict[Shape, Program]]]
"""Planners and programs by everything that they depend on."""


class Programs:
    """The programs of a model for a device, lowered when they are first asked for.

    `lowered` keeps them over devices that differ in rates alone, which programs do not depend on.
    """

    def __init__(self, source: Source, device: Device, lowered: Lowered | None = None) -> None:
        lowered = {} if lowered is None else lowered
        key = (id(source.tensors), repr(source.options), _structure(device))

        def replan(**changes: Any) -> Planner:
            options = replace(source.options, **changes)
            return Planner(source.spec, source.tensors, options, device, source.int8)

        if key not in lowered:
            planner = replan()
            check_capacity(planner, replan)
            lowered[key] = (planner, {})
        self._replan = replan
        self.planner, self._known = lowered[key]
        same = source.options == source.settled and _is_of(source, device)
        self._files = source.files if same else None
        self.device = replace(
            device, devices=self.planner.device.devices, chiplets=self.planner.device.chiplets
        )

    def find(self, shape: Shape) -> Program:
        if shape not in self._known:
            self._known[shape] = self._program(shape)
        return self._known[shape]

    def _program(self, shape: Shape) -> Program:
        """As it was compiled, or lowered now."""
        if self._files is not None:
            return self._files.program(shape.name)
        program = self.planner.program(shape)
        check_shared(self.planner, [program], self._replan)
        return program

    def head(self, rows: int) -> Shape:
        sizes = sorted({*self.planner.batch_sizes, HEAD_ROWS})
        return Shape("head", next(size for size in sizes if size >= rows))


def _structure(device: Device) -> object:
    """What of a device decides the programs for it."""
    engines = [(name, e.commands, e.slots) for name, e in device.engine.items()]
    sizes = [(name, memory.size) for name, memory in device.memory.items()]
    links = sorted(device.link)
    fixed = (device.name, device.devices, device.chiplets, device.partition)
    return repr((fixed, device.shared_memory, engines, sizes, links))


def _is_of(source: Source, device: Device) -> bool:
    """Whether the model was compiled for this device, be its rates and times what they may."""
    if source.files is None:
        return False
    described = read_device(source.files.device().text, source.files.manifest.device)
    return _structure(described) == _structure(device)


def _as_compiled(source: Source, device: Device) -> Source:
    """With the chiplets, devices and partition that a model for this device was compiled with."""
    if source.settled is None or not _is_of(source, device):
        return source
    names = OF_DEVICE.values()
    open_ = {n: getattr(source.settled, n) for n in names if getattr(source.options, n) is None}
    return replace(source, options=replace(source.options, **open_))


def configured(source: Source, device: Device, changes: Mapping[str, str]) -> tuple[Source, Device]:
    """The model and the device with `--set` changes: of sizes, options, or device figures."""
    source = _as_compiled(source, device)
    options: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    figures: dict[str, str] = {}
    for name, text in changes.items():
        if name in SIZES and not (
            name == "layers" and option_value(name, text) <= source.spec.layers
        ):
            sizes[name] = option_value(name, text)
        elif name in OPTIONS:
            options[name] = option_value(name, text)
            if name == "max_seq_len":
                options.setdefault("kv_ladder", None)  # that of another length does not go with it
        else:
            figures[name] = text
            if name in OF_DEVICE:
                options[OF_DEVICE[name]] = None  # it counts, whatever the model was compiled with
    if figures:
        device = overridden(device, figures)
    if sizes:
        source = _resized(source, sizes)
    return replace(source, options=replace(source.options, **options)), device


def _resized(source: Source, sizes: dict[str, int]) -> Source:
    """A model of other sizes, its weights of the same kind."""
    linears = {n: t for n, t in source.tensors.items() if n.endswith("_proj.weight")}
    weights = source.options.weights or default_weights(linears)
    spec = msgspec.structs.replace(source.spec, **sizes)
    return spec_source(spec, replace(source.options, weights=weights))


def option_value(name: str, text: str) -> Any:
    """A compile option or a size as `--set` writes it.  UsageError when it is no whole number."""
    if name in ("weights", "kv"):
        return text
    try:
        if name in ("kv_ladder", "batch_sizes"):
            return tuple(int(part) for part in text.split("+"))
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text}: a whole number is expected") from None
