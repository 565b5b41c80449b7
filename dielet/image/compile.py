"""Compile a checkpoint into a model directory, a few panels at a time, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

import dielet
from dielet.checkpoint.base import Checkpoint
from dielet.checkpoint.config import first_layers
from dielet.checkpoint.names import EMBEDDING
from dielet.checkpoint.open import open_checkpoint, open_random
from dielet.checkpoint.roles import read_roles
from dielet.checkpoint.source import Source
from dielet.errors import DamagedFile
from dielet.formats.packed import PANEL, WeightFormat, pack
from dielet.formats.quantize import quantize_rows
from dielet.image.accuracy import Calibration
from dielet.image.appear import appearing
from dielet.image.file import HashingWriter, write_image
from dielet.image.manifest import NAME, SCHEMA, FileEntry, Manifest, ProgramSummary, remember_files
from dielet.image.merges import with_short_merges
from dielet.image.names import (
    ACCURACY,
    COS,
    DECODER,
    DEVICE,
    HEAD,
    MODEL_CONFIG,
    SIN,
    TABLE,
    TOKENIZER,
)
from dielet.image.options import CompileOptions
from dielet.image.plan import HEAD_PARAMETER, ModelPlan, plan_model
from dielet.image.replace import check_replaceable
from dielet.models.rotary import rotary_tables
from dielet.program import Program, WeightPlan
from dielet.program.memory import Share

_BLOCK_WEIGHTS = 1 << 23  # weights converted at a time: 32 MB as f32


Progress = Callable[[int, int, str], None]
"""Called with bytes written, bytes in all, and the name of the tensor that follows."""


def open_source(src: str | Path, options: CompileOptions) -> Checkpoint:
    """The checkpoint that `src` names, or random weights for its configuration."""
    if options.random_weights is not None:
        return open_random(src, options.random_weights)
    roles = read_roles(Path(options.roles)) if options.roles is not None else None
    return open_checkpoint(src, roles)


def compile_model(
    src: str | Path,
    out: str | Path,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Compile an HF directory, hub id or .gguf file into the model directory `out`."""
    options = options or CompileOptions()
    return compile_checkpoint(open_source(src, options), out, options, progress)


def compile_checkpoint(
    checkpoint: Checkpoint,
    out: str | Path,
    options: CompileOptions,
    progress: Progress | None = None,
    calibration: Calibration | None = None,
) -> Path:
    """Write the model directory `out`; it appears when it is complete, never before.

    `calibration`: what `options.calibrate` came to; the text itself is not read here.

    Raises UsageError when `out` exists and is not a directory that dielet compiled, or has files
    of somebody else in it.
    """
    target = Path(out)
    calibration = calibration or Calibration()
    plan = plan_checkpoint(checkpoint, options, calibration.int8)
    check_replaceable(target)
    with appearing(target) as directory:
        report = progress or (lambda done, total, name: None)
        writer = _Writer(checkpoint, plan, directory, report, calibration)
        writer.write()
        check_replaceable(target)  # which took a while
        remember_files(directory, target, writer.files)
    return target


def plan_checkpoint(
    checkpoint: Checkpoint, options: CompileOptions, int8: frozenset[str] = frozenset()
) -> ModelPlan:
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    return plan_model(checkpoint.spec, tensors, options, int8)


class _Writer:
    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: ModelPlan,
        directory: Path,
        progress: Progress,
        calibration: Calibration,
    ) -> None:
        self.checkpoint, self.plan, self.directory = checkpoint, plan, directory
        self.calibration = calibration
        self.files: dict[str, FileEntry] = {}
        self.done = 0
        self.total = plan.decoder.nbytes + plan.head.nbytes + plan.embedding_bytes
        self.progress = progress

    def write(self) -> None:
        programs = self.plan.programs
        self._image(DECODER, self.plan.decoder, tuple(p for p in programs if p.phase != "head"))
        self._image(HEAD, self.plan.head, tuple(p for p in programs if p.phase == "head"))
        self._table()
        for name, table in zip(
            (COS, SIN), rotary_tables(self.plan.spec, self.plan.kv.positions), strict=True
        ):
            with self._file(name) as out:
                out.write(_npy_header(table.dtype, table.shape))
                out.write(np.ascontiguousarray(table).reshape(-1).view(np.uint8))
        others = {DEVICE: self.plan.device.text.encode(), **self.checkpoint.tokenizer_files()}
        if MODEL_CONFIG in others:
            others[MODEL_CONFIG] = first_layers(others[MODEL_CONFIG], self.plan.spec.layers)
        if TOKENIZER in others:
            others[TOKENIZER] = with_short_merges(others[TOKENIZER])
        if self.calibration.accuracy is not None:
            others[ACCURACY] = msgspec.json.format(
                msgspec.json.encode(self.calibration.accuracy), indent=1
            )
        for name, data in others.items():
            with self._file(name) as out:
                out.write(data)
        manifest = msgspec.json.format(msgspec.json.encode(self._manifest()), indent=1)
        (self.directory / NAME).write_bytes(manifest)
        self.progress(self.total, self.total, "")

    @contextmanager
    def _file(self, name: str) -> Iterator[HashingWriter]:
        with (self.directory / name).open("wb") as file:
            writer = HashingWriter(file)
            yield writer
        self.files[name] = FileEntry(writer.position, writer.sha256())

    def _image(self, name: str, plan: WeightPlan, programs: tuple[Program, ...]) -> None:
        with self._file(name) as out:
            write_image(out, plan, programs, ((s, self._share(s)) for s in plan.shares))

    def _share(self, share: Share) -> Iterator[NDArray[np.uint8]]:
        source = self.checkpoint.tensor(share.parameter)
        self.progress(self.done, self.total, share.parameter)
        if share.K:
            fmt = WeightFormat.parse(share.format)
            inputs = None if share.K == source.K else (share.k_lo, share.k_lo + share.K)
            outputs = source.N // share.experts
            importance = self.calibration.importance.get(share.parameter)
            for expert in range(share.experts):
                lo, hi = (expert * outputs + edge for edge in (share.lo, share.hi))
                yield from self._counted(packed_bytes(source, fmt, lo, hi, inputs, importance))
        else:
            yield from self._counted(
                iter([_vector(source, source.where or self.checkpoint.source)])
            )

    def _table(self) -> None:
        """The embedding, packed like a linear so that a tied head can stream through it."""
        spec, fmt = self.plan.spec, self.plan.embedding
        with self._file(TABLE) as out:
            shape = fmt.packed_shape(spec.vocab, spec.hidden)
            out.write(_npy_header(fmt.record(spec.hidden), shape))
            self.progress(self.done, self.total, EMBEDDING)
            source = self.checkpoint.tensor(EMBEDDING)
            for chunk in self._counted(packed_bytes(source, fmt, 0, spec.vocab)):
                out.write(chunk)

    def _counted(self, chunks: Iterator[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
        for chunk in chunks:
            yield chunk
            self.done += chunk.nbytes

    def _manifest(self) -> Manifest:
        plan = self.plan
        linears = [n for n in plan.formats if n not in (EMBEDDING, HEAD_PARAMETER)]
        names = [plan.formats[n].name for n in linears]
        return Manifest(
            schema=SCHEMA,
            dielet_version=dielet.__version__,
            source=self.checkpoint.source.encode(errors="replace").decode(),
            spec=plan.spec,
            device=plan.device.name,
            chiplets=plan.chiplets,
            weights=plan.weights,
            formats={name: names.count(name) for name in sorted(set(names))},
            embedding_format=plan.embedding.name,
            head_format=plan.formats[HEAD_PARAMETER].name,
            kv_format=plan.kv.format,
            max_seq_len=plan.max_seq_len,
            prefill_chunk=plan.prefill_chunk,
            kv_ladder=plan.ladder,
            batch_sizes=plan.batch_sizes,
            tied=plan.spec.tied,
            eos_ids=self.checkpoint.eos_ids,
            programs=tuple(_summary(p) for p in plan.programs),
            memory=plan.memory_by_owner(),
            files=self.files,
            devices=plan.device.devices,
            kv_heads=plan.kv.kv_heads,
        )


def packed_bytes(
    source: Source,
    fmt: WeightFormat,
    lo: int,
    hi: int,
    inputs: tuple[int, int] | None = None,
    importance: NDArray[np.float32] | None = None,
) -> Iterator[NDArray[np.uint8]]:
    """Rows [lo, hi) of a tensor in `fmt`, as packed bytes, a block of panels at a time.

    `inputs`: only these columns, in whole groups.  `importance` [K]: of every column, for what
    has to be quantised.
    """
    first, last = inputs or (0, source.K)
    columns = None if importance is None else importance[first:last]
    step = max(1, _BLOCK_WEIGHTS // (source.K * PANEL)) * PANEL
    for start in range(lo, hi, step):
        end = min(hi, start + step)
        if fmt in source.exact_formats:
            codes = source.blocks(start, end, fmt)
            values, groups = codes.values[:, first:last], slice(None)
            if fmt.group:
                groups = slice(first // fmt.group, last // fmt.group)
            scale, minimum = (
                None if part is None else part[:, groups] for part in (codes.scale, codes.minimum)
            )
            packed = pack(fmt, values, scale, minimum)
        else:
            rows = _part(source, start, first, last)
            packed = quantize_rows(
                fmt, rows, end - start, last - first, name=source.name, importance=columns
            )
        yield packed.reshape(-1).view(np.uint8)


def _part(
    source: Source, start: int, first: int, last: int
) -> Callable[[int, int], NDArray[np.float32]]:
    """Rows counted from `start`, and of them the columns [first, last)."""
    return lambda lo, hi: source.rows(start + lo, start + hi)[:, first:last]


def _vector(source: Source, where: str) -> NDArray[np.uint8]:
    values = np.ascontiguousarray(source.array(), np.float32).reshape(-1)
    if not np.isfinite(values).all():
        raise DamagedFile(
            f"{where}: {source.name} holds NaN or infinity; fetch or save the checkpoint again"
        )
    return values.view(np.uint8)


def _npy_header(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    """A version 1 .npy header, padded so that the data begin on a cache line."""
    out = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue()


def _summary(program: Program) -> ProgramSummary:
    cache = ("k_cache", "v_cache") if program.capacity else ()
    inputs = ("hidden_in", "past", "valid", "cos", "sin", *cache) if cache else ("hidden_in",)
    outputs = ("hidden_out", *cache) if cache else ("logits",)
    return ProgramSummary(
        program.name,
        program.phase,
        program.tokens,
        program.capacity,
        len(program.commands),
        inputs,
        outputs,
        program.sizes,
    )
