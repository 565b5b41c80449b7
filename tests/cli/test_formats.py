"""`dielet formats` lists what the readers themselves know."""

from __future__ import annotations

from dielet.checkpoint.gguf_families import FAMILIES
from dielet.checkpoint.spec import SUPPORTED_MODEL_TYPES
from dielet.formats.ggml import READABLE


def test_everything_that_is_read_is_listed(dielet):
    listed = dielet("formats").out
    for name in (*SUPPORTED_MODEL_TYPES, *FAMILIES, *READABLE, "BF16", "gptq", "awq", "fp8"):
        assert name in listed
    facts = dielet("formats", "--json").json
    assert facts["gguf_weights"] == list(READABLE)
    assert facts["quantised_safetensors"] == ["awq", "fp8", "gptq"]
