"""Quantised checkpoints of tiny models, written by the formats' public descriptions, slowly.

Each comes with the same model unquantised: its dequantised weights, in bfloat16.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.tiny import CLASSES, make

Array = NDArray[Any]
Parts = dict[str, Array]  # by what follows the linear's name
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output of eight that is the i-th from below in a word


class Pair(NamedTuple):
    """Directories of one model, and transformers' model with the dequantised weights in f32."""

    quantised: Path
    plain: Path
    model: Any


def gptq_values(parts: Parts, group_of: Array, less_one: bool) -> Array:
    """float64 [N, K]: scale[g] * (code - zero[g]), where words of zeros may be one less in each."""
    qweight = parts["qweight"].view(np.uint32)
    qzeros = parts["qzeros"].view(np.uint32)
    K, N = 8 * qweight.shape[0], qweight.shape[1]
    if less_one:
        qzeros = ((qzeros.astype(np.uint64) + 0x11111111) % (1 << 32)).astype(np.uint32)
    k, n = np.meshgrid(np.arange(K), np.arange(N))
    codes = (qweight[k // 8, n] >> (4 * (k % 8)).astype(np.uint32)) & 15
    zeros = (qzeros[group_of[k], n // 8] >> (4 * (n % 8)).astype(np.uint32)) & 15
    scales = parts["scales"][group_of[k], n].astype(np.float64)
    return scales * (codes.astype(np.float64) - zeros)


def awq_values(parts: Parts, group: int) -> Array:
    """float64 [N, K]: scale[g] * (code - zero[g])."""
    qweight, qzeros = parts["qweight"].view(np.uint32), parts["qzeros"].view(np.uint32)
    K, N = qweight.shape[0], 8 * qweight.shape[1]
    k, n = np.meshgrid(np.arange(K), np.arange(N))
    place = np.array([AWQ_ORDER.index(i) for i in range(8)])[n % 8]
    codes = (qweight[k, n // 8] >> (4 * place).astype(np.uint32)) & 15
    zeros = (qzeros[k // group, n // 8] >> (4 * place).astype(np.uint32)) & 15
    return parts["scales"][k // group, n].astype(np.float64) * (codes.astype(np.float64) - zeros)


def nearest(weight: Array, group_of: Array, symmetric: bool) -> tuple[Array, Array, Array]:
    """Codes [N, K], and of each group zero points [N, groups] and float16 scales [N, groups]."""
    groups = int(group_of.max()) + 1
    zeros = np.full((len(weight), groups), 8)
    scales = np.empty((len(weight), groups), np.float16)
    codes = np.empty(weight.shape, np.int64)
    for g in range(groups):
        mine = group_of == g
        x = weight[:, mine]
        if symmetric:
            scales[:, g] = np.maximum(np.abs(x).max(1) / 7.5, 1e-4)
        else:
            low, high = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
            scales[:, g] = np.maximum((high - low) / 15, 1e-4)
            zeros[:, g] = np.clip(np.rint(-low / scales[:, g].astype(np.float64)), 0, 15)
        steps = np.rint(x / scales[:, g, None].astype(np.float64))
        codes[:, mine] = np.clip(steps + zeros[:, g, None], 0, 15)
    return codes, zeros, scales


def packed(values: Array, order: tuple[int, ...] = tuple(range(8))) -> Array:
    """Four-bit numbers [n, 8 * words] -> words [n, words]; the order[i]-th is at bit 4 * i."""
    words = np.zeros((len(values), values.shape[1] // 8), np.uint32)
    for i, place in enumerate(order):
        words |= values[:, place::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def gptq(weight: Array, group_of: Array, symmetric: bool, less_one: bool) -> tuple[Parts, Array]:
    codes, zeros, scales = nearest(weight, group_of, symmetric)
    qzeros = packed(zeros.T)
    if less_one:
        qzeros = (qzeros.view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
    parts = {
        "qweight": np.ascontiguousarray(packed(codes).T),
        "qzeros": qzeros,
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": group_of.astype(np.int32),
    }
    return parts, gptq_values(parts, group_of, less_one)


def awq(weight: Array, group: int) -> tuple[Parts, Array]:
    group_of = np.arange(weight.shape[1]) // group
    codes, zeros, scales = nearest(weight, group_of, symmetric=False)
    parts = {
        "qweight": packed(codes.T, AWQ_ORDER),
        "qzeros": packed(zeros.T, AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T),
    }
    return parts, awq_values(parts, group)


def fp8(weight: Array, block: tuple[int, int] | None, scale: str) -> tuple[Parts, Array]:
    """In blocks, or with one scale (None)."""
    height, width = block or weight.shape
    N, K = weight.shape
    grid = np.empty((-(-N // height), -(-K // width)), np.float32)
    whole = np.empty(weight.shape, np.float32)
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            part = np.s_[i * height : (i + 1) * height, j * width : (j + 1) * width]
            grid[i, j] = np.abs(weight[part]).max() / 448
            whole[part] = grid[i, j]
    codes = (weight / whole).astype(ml_dtypes.float8_e4m3fn)
    parts = {"weight": codes, scale: grid if block else grid.reshape(-1)}
    return parts, codes.astype(np.float32) * whole


def pair(
    folder: Path,
    model_type: str,
    config: dict[str, Any],
    quantise: Callable[[str, Array], tuple[Parts, Array]],
    extra: dict[str, Array] | None = None,
    **sizes: Any,
) -> Pair:
    """A tiny random model whose layers' linears, but for routers, are quantised by `quantise`."""
    source = folder / "source"
    make(source, model_type, spread=4.0, **sizes)
    found = load_file(source / "model.safetensors")
    stored: dict[str, torch.Tensor] = {n: torch.from_numpy(a) for n, a in (extra or {}).items()}
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in found.items():
        linear = ".layers." in name and tensor.ndim == 2 and not name.endswith("mlp.gate.weight")
        if not linear:
            stored[name] = plain[name] = tensor
            continue
        stem = name.removesuffix("weight")
        parts, values = quantise(stem, tensor.float().numpy().astype(np.float64))
        plain[name] = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)
        stored |= {f"{stem}{last}": as_tensor(array) for last, array in parts.items()}
    result = Pair(folder / "quantised", folder / "plain", None)
    for path, tensors, entry in (
        (result.quantised, stored, {"quantization_config": config}),
        (result.plain, plain, {}),
    ):
        path.mkdir()
        shutil.copy(source / "generation_config.json", path)
        settings = json.loads((source / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**settings, **entry}))
        save_file(tensors, path / "model.safetensors")
    model = CLASSES[model_type][1].from_pretrained(result.plain, dtype=torch.float32).eval()
    return result._replace(model=model)


def as_tensor(array: Array) -> torch.Tensor:
    if array.dtype == ml_dtypes.float8_e4m3fn:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(array)
