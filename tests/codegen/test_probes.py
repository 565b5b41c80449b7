"""Probes give figures that can be true; a model's kernels compile in the time that is promised."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from dielet.codegen import KernelKey, compile_kernels
from dielet.codegen.probes import DOTS, Probes

from .harness import HOST


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Probes:
    return Probes(HOST, tmp_path_factory.mktemp("probes"))


@pytest.mark.parametrize("threads", [1, 2])
def test_reading(probes: Probes, threads: int) -> None:
    data = np.ones(1 << 24, np.uint8)
    rate = probes.read(data.ctypes.data, data.nbytes, threads)
    assert 1e8 < rate < 1e13


@pytest.mark.parametrize("kind", DOTS)
def test_multiplying(probes: Probes, kind: str) -> None:
    assert 1e8 < probes.rate(kind, threads=2, seconds=0.002) < 1e14


def model_kernels(format: str, group: int) -> list[KernelKey]:
    """What a Qwen3-1.7B needs: decode, a batch, and chunks of 128."""
    out = "bf16" if format == "bf16" else "int8"
    weights = {"format": format, "group": group, "minimum": False}
    head = {"D": 128, "norm": True, "eps": 1e-6}
    keys = [
        KernelKey.of("rmsnorm", K=2048, eps=1e-6, out=out, group=group),
        KernelKey.of("quantize", group=32) if group else KernelKey.of("convert"),
        KernelKey.of("silu_mul", out=out, group=group),
        KernelKey.of("rotary", scale=0.1275, **head),
        KernelKey.of("kv_append", **head),
        KernelKey.of("select"),
        KernelKey.of("embed", K=2048, **weights),
    ]
    for T in (1, 8, 128):
        keys.append(KernelKey.of("attention", D=128, G=2, T=T, out="f32"))
        for K, residual in [(2048, False), (2048, True), (6144, True)]:
            key = KernelKey.of("linear", K=K, T=T, residual=residual, bias=False, **weights)
            keys.append(key)
    return keys


@pytest.mark.parametrize("format, group", [("bf16", 0), ("int8", 64), ("int4", 32)])
def test_a_model_compiles_in_three_seconds(tmp_path: Path, format: str, group: int) -> None:
    keys = model_kernels(format, group)
    begin = time.process_time()
    compile_kernels(keys, HOST, tmp_path)
    assert time.process_time() - begin < 3
    begin = time.process_time()
    assert compile_kernels(keys, HOST, tmp_path).compiled == 0
    assert time.process_time() - begin < 0.05
