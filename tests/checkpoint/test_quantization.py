"""What config.json says of quantised weights: read, or refused with what to use instead."""

from __future__ import annotations

import pytest

from dielet.checkpoint import open_config
from dielet.checkpoint.config import Entries
from dielet.checkpoint.quantization import Quantization, read_quantization
from dielet.errors import DamagedFile, DieletError, Unsupported

from .make import hugging_face, spec, weights


def read(**entries: object) -> Quantization | None:
    return read_quantization(Entries("config.json", {"quantization_config": entries}))


def test_what_is_read():
    assert read_quantization(Entries("config.json", {})) is None
    assert read(quant_method="gptq", bits=4, group_size=32) == Quantization("gptq", 32, True)
    assert read(quant_method="gptq", bits=4, checkpoint_format="gptq") == Quantization(
        "gptq", 128, True
    )
    for key in ("checkpoint_format", "format"):
        assert read(quant_method="gptq", bits=4, desc_act=True, **{key: "GPTQ_v2"}) == Quantization(
            "gptq", 128, less_one=False, ordered=False
        )
    assert read(quant_method="awq", bits=4, group_size=-1, version="GEMM") == Quantization(
        "awq", -1
    )
    assert read(quant_method="fp8") == Quantization("fp8")
    assert read(quant_method="fp8", weight_block_size=[128, 64]) == Quantization(
        "fp8", block=(128, 64)
    )


OTHERS = ("bitsandbytes", "compressed-tensors", "hqq", "aqlm", "mxfp4", "fbgemm_fp8", "quanto", "")


@pytest.mark.parametrize("method", OTHERS)
def test_other_methods_are_refused_with_what_to_use_instead(tmp_path, method):
    one = spec()
    entry = {"quant_method": method} if method else {"load_in_4bit": True}
    folder = hugging_face(tmp_path, one, weights(one), quantization_config=entry)
    with pytest.raises(Unsupported) as error:
        open_config(folder)
    assert str(error.value) == (
        f"{folder / 'config.json'}: quantization_config: the weights are quantised with "
        f"{method!r}, which is not supported; supported: awq, fp8, gptq; use the bf16, fp16 or "
        "fp32 checkpoint that it was made of, or a .gguf file"
    )


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"quant_method": "gptq", "bits": 8}, "gptq weights whose bits is 8 are not .*; only 4;"),
        ({"quant_method": "gptq", "bits": 3}, "gptq weights whose bits is 3"),
        ({"quant_method": "awq", "bits": 8}, "awq weights whose bits is 8"),
        (
            {"quant_method": "gptq", "checkpoint_format": "marlin"},
            "whose checkpoint_format is 'marlin' are not supported; only gptq, gptq_v2;",
        ),
        ({"quant_method": "gptq", "is_marlin_format": True}, "whose is_marlin_format is True"),
        ({"quant_method": "awq", "version": "GEMV"}, "version is 'gemv' are not .*; only gemm;"),
        ({"quant_method": "awq", "zero_point": False}, "zero_point is False"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype is 'fp4'"),
    ],
)
def test_kinds_of_a_method_that_are_not_read(entries, message):
    with pytest.raises(Unsupported, match=message) as error:
        read(**entries)
    assert str(error.value).endswith("that it was made of, or a .gguf file")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"quant_method": 5}, "quant_method is '5', not str"),
        ({"quant_method": "gptq", "bits": "4"}, "bits is '4', not int"),
        ({"quant_method": "gptq", "group_size": 0}, "group_size is 0; it must be above 0, or -1"),
        ({"quant_method": "awq", "group_size": 1 << 40}, "group_size is 1099511627776"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "two sizes above 0 are needed"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "two sizes above 0"),
        ({"quant_method": "fp8", "weight_block_size": [True, 1]}, "two sizes above 0"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size is '128', not list"),
    ],
)
def test_entries_that_make_no_sense_are_named(entries, message):
    with pytest.raises(DamagedFile, match=message) as error:
        read(**entries)
    assert isinstance(error.value, DieletError) and "\n" not in str(error.value)
