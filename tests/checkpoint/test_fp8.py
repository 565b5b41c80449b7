"""Linears of eight-bit floats: the values of ml_dtypes, times the scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dielet.checkpoint import open_checkpoint, pack_rows
from dielet.checkpoint.quantization import Quantization
from dielet.checkpoint.source import Source
from dielet.checkpoint.weight_files import WeightFiles
from dielet.errors import DamagedFile, NumericError, Unsupported
from dielet.formats.packed import WeightFormat, unpack
from dielet.image import CompileOptions, compile_model, open_directory

from . import greedy, quantised

DTYPES = {
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}
RNG = np.random.default_rng(0)


def codes(N: int, K: int, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    """Random finite numbers of every size."""
    raw = RNG.integers(0, 256, (N, K), np.uint8)
    finite = np.isfinite(raw.view(DTYPES[dtype]).astype(np.float32))
    return torch.from_numpy(np.where(finite, raw, 1).astype(np.uint8)).view(dtype)


def numbers(weight: torch.Tensor) -> np.ndarray:
    return weight.view(torch.uint8).numpy().view(DTYPES[weight.dtype]).astype(np.float32)


def opened(
    folder: Path, tensors: dict[str, torch.Tensor], block: tuple[int, int] | None = None
) -> Source:
    save_file(tensors, folder / "model.safetensors")
    files = WeightFiles(folder, Quantization("fp8", block=block))
    assert list(files.shapes) == ["x.weight"]
    return files.tensor("x.weight")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("N", "K"), [(256, 384), (200, 160), (64, 32)])
def test_blocks_are_multiplied_by_their_scales(tmp_path, dtype, scale_dtype, N, K):
    weight = codes(N, K, dtype)
    grid = -(-N // 128), -(-K // 128)
    scales = (torch.rand(grid) * 0.01).to(scale_dtype)
    linear = opened(tmp_path, {"x.weight": weight, "x.weight_scale_inv": scales}, (128, 128))
    whole = scales.float().numpy().repeat(128, 0)[:N].repeat(128, 1)[:, :K]
    expected = numbers(weight) * whole
    assert linear.shape == (N, K)
    assert linear.kind == {torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2"}[dtype]
    assert np.array_equal(linear.array(), expected)
    for lo, hi in ((0, 32), (5, 41), (N - 1, N), (N // 2 - 3, N), (4, 4)):
        assert np.array_equal(linear.rows(lo, hi), expected[lo:hi])
    fmt = WeightFormat("bf16")
    assert np.array_equal(
        unpack(fmt, pack_rows(linear, fmt), N, K),
        expected.astype(ml_dtypes.bfloat16).astype(np.float32),
    )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (72,), (72, 1)])
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_one_scale_or_one_for_each_row(tmp_path, shape, name):
    weight, scales = codes(72, 64), torch.rand(shape)
    linear = opened(tmp_path, {"x.weight": weight, f"x.{name}": scales})
    expected = numbers(weight) * scales.numpy().reshape(-1, 1)
    assert np.array_equal(linear.array(), expected)
    assert np.array_equal(linear.rows(30, 41), expected[30:41])


def test_scales_may_be_powers_of_two(tmp_path):
    weight = codes(64, 64)
    raw = torch.tensor([[120, 130], [127, 1]], dtype=torch.uint8)
    scales = raw.view(torch.float8_e8m0fnu)
    linear = opened(tmp_path, {"x.weight": weight, "x.weight_scale_inv": scales}, (32, 32))
    whole = np.exp2(raw.numpy().astype(np.float32) - 127).repeat(32, 0).repeat(32, 1)
    assert np.array_equal(linear.array(), numbers(weight) * whole)


@pytest.mark.parametrize(
    ("tensors", "block", "error", "message"),
    [
        ({}, (32, 32), DamagedFile, "x.weight is F8_E4M3, but has no weight_scale_inv"),
        (
            {"x.weight_scale_inv": torch.ones(3, 2)},
            (32, 32),
            DamagedFile,
            r"x\.weight_scale_inv is \[3, 2\], expected \[2, 2\]: one for each 32 by 32",
        ),
        (
            {"x.weight_scale_inv": torch.ones(2, 2)},
            None,
            Unsupported,
            r"is \[2, 2\], for a weight of \[64, 64\] and without a weight_block_size",
        ),
        (
            {"x.weight_scale_inv": torch.ones(2, 2, dtype=torch.int32)},
            (32, 32),
            Unsupported,
            r"x\.weight_scale_inv is I32; supported",
        ),
    ],
)
def test_scales_that_do_not_fit_are_named(tmp_path, tensors, block, error, message):
    with pytest.raises(error, match=message) as caught:
        opened(tmp_path, {"x.weight": codes(64, 64), **tensors}, block)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_weight_that_is_no_number_names_the_linear(tmp_path):
    weight = codes(64, 64)
    weight.view(torch.uint8)[40, 3] = 0x7F
    linear = opened(tmp_path, {"x.weight": weight, "x.weight_scale": torch.ones(1)})
    with pytest.raises(NumericError, match=r"x\.weight rows 0\.\.63: 1 of 4096 weights are NaN"):
        pack_rows(linear, WeightFormat("bf16"))


BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
          "weight_block_size": [32, 64]}  # fmt: skip
WHOLE = {"quant_method": "fp8", "activation_scheme": "static"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("qwen3", BLOCKS, {}),
    ("qwen3_moe", BLOCKS, {"num_experts": 4, "num_experts_per_tok": 2,
                           "moe_intermediate_size": 96, "norm_topk_prob": True}),
    ("llama", WHOLE, {"tie_word_embeddings": False}),
    ("phi3", BLOCKS, {"head_dim": 32, "hidden_size": 128, "pad_token_id": 0, "eos_token_id": 2}),
]  # fmt: skip


def tiny(folder: Path, model_type: str, settings: dict[str, Any], **sizes: Any) -> quantised.Pair:
    block = settings.get("weight_block_size")
    scale = "weight_scale_inv" if block else "weight_scale"
    extra = {} if block else {"model.layers.0.self_attn.q_proj.input_scale": np.ones(1, np.float32)}
    return quantised.pair(
        folder,
        model_type,
        settings,
        lambda stem, weight: quantised.fp8(weight, block and (block[0], block[1]), scale),
        extra,
        **sizes,
    )


@pytest.mark.parametrize(("model_type", "settings", "sizes"), CASES)
def test_a_model_gives_the_tokens_of_transformers(tmp_path, model_type, settings, sizes):
    made = tiny(tmp_path, model_type, settings, **sizes)
    greedy.check(made.quantised, tmp_path / "out", made.model)
    assert open_directory(tmp_path / "out").manifest.weights == "bf16"
    compile_model(made.plain, tmp_path / "other", CompileOptions(max_seq_len=128))
    assert greedy.shares(tmp_path / "out") == greedy.shares(tmp_path / "other")


@pytest.mark.parametrize("block", [(32, 32), (64, 16), (64, 128)])
def test_transformers_dequantises_a_weight_to_the_same_numbers(tmp_path, block):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight = codes(128, 128)
    scales = torch.rand(128 // block[0], 128 // block[1]) * 0.01
    linear = opened(tmp_path, {"x.weight": weight, "x.weight_scale_inv": scales}, block)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    assert np.array_equal(linear.array(), theirs.numpy())


def test_without_its_entry_in_the_configuration_it_is_refused(tmp_path):
    made = tiny(tmp_path, "qwen3", BLOCKS)
    path = made.quantised / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match=r"14 unexpected: .*weight_scale_inv"):
        open_checkpoint(made.quantised)
    tensors = load_file(made.quantised / "model.safetensors")
    bare = {n: t for n, t in tensors.items() if not n.endswith("_inv")}
    save_file(bare, made.quantised / "model.safetensors")
    with pytest.raises(Unsupported, match=r"_proj\.weight is F8_E4M3; supported: BF16"):
        open_checkpoint(made.quantised)
