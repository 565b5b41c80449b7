"""Small models with random weights, compiled by our own code: for tests of structure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.random import RandomCheckpoint
from dielet.checkpoint.spec import ModelSpec
from dielet.formats.packed import WeightFormat, unpack_rows
from dielet.image import (
    CompileOptions,
    ModelFiles,
    ModelPlan,
    compile_checkpoint,
    open_directory,
    plan_checkpoint,
)
from dielet.program import Program

QWEN = ModelSpec(
    model_type="qwen3",
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    intermediate=160,
    vocab=331,
    norm_eps=1e-6,
    rope_theta=1e4,
    max_position=4096,
    tied=True,
    qk_norm=True,
)
LLAMA = msgspec.structs.replace(
    QWEN, model_type="llama", qk_norm=False, tied=False, heads=6, kv_heads=3
)
SPECS = {"qwen3": QWEN, "llama": LLAMA}


def options(**given: object) -> CompileOptions:
    base = {"max_seq_len": 128, "kv_ladder": (64, 128), "prefill_chunk": 16}
    return CompileOptions(**{**base, **given})  # type: ignore[arg-type]


def plan(spec: ModelSpec = QWEN, **given: object) -> ModelPlan:
    return plan_checkpoint(RandomCheckpoint(spec, 7), options(**given))


def compiled(folder: Path, spec: ModelSpec = QWEN, **given: object) -> ModelFiles:
    return open_directory(compile_checkpoint(RandomCheckpoint(spec, 7), folder, options(**given)))


@dataclass
class Bench:
    """A compiled model with memory of its own, for running programs by their meanings."""

    files: ModelFiles
    kv: NDArray[np.uint8]  # the caches of all sequences, one after the other

    @staticmethod
    def of(files: ModelFiles, sequences: int = 1) -> Bench:
        sizes = files.program("decode_1_kv64").sizes
        return Bench(files, fresh(sequences * sizes["kv"]))

    def memory(self, program: Program) -> dict[str, NDArray[np.uint8]]:
        """All address spaces; activations and unused cache are NaN."""
        own = {s: fresh(size) for s, size in program.sizes.items() if s != "kv"}
        return {**self.files.spaces(), **own, "kv": self.kv}

    def give(self, program: Program, memory: dict[str, NDArray[np.uint8]], ids: NDArray) -> None:
        """Put the embeddings of `ids` where the program takes its hidden states."""
        manifest = self.files.manifest
        fmt = WeightFormat.parse(manifest.embedding_format)
        K = manifest.spec.hidden
        shape = fmt.packed_shape(manifest.spec.vocab, K)
        table = self.files.embedding.view(fmt.record(K)).reshape(shape)
        outside(program, memory, "hidden_in")[: len(ids)] = unpack_rows(fmt, table, ids, K)


def outside(program: Program, memory: dict[str, NDArray[np.uint8]], name: str) -> NDArray:
    region = program.io[name]
    return memory["io"][region.offset : region.end].view(np.float32).reshape(region.rows, -1)


def fresh(nbytes: int) -> NDArray[np.uint8]:
    """Memory in which every f32 and bf16 is NaN, aligned as the host's is."""
    raw = np.full(nbytes + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]
