"""Every reader of what others wrote."""

from __future__ import annotations

from dielet.codegen.flat import NotFlat
from tests.fuzz import checkpoints, directories, texts
from tests.fuzz.reader import Reader

READERS: dict[str, Reader] = {
    "safetensors": Reader(
        checkpoints.make_safetensors, (b'"F64"', b'"BF16"', b'"shape":[', b'"data_offsets":[0,')
    ),
    "weights": Reader(checkpoints.make_weights, checkpoints.WEIGHT_WORDS, usual=30_000),
    "config": Reader(checkpoints.make_config, checkpoints.QUOTED),
    "tokenizer.json": Reader(
        checkpoints.make_tokenizer_json, (b'"Regex"', b'"type"', b'"Unigram"', b'"WordPiece"')
    ),
    "tokenizer_config": Reader(
        lambda: checkpoints.make_beside_config(
            "tokenizer_config.json", [checkpoints.TOKENIZER_CONFIG]
        ),
        (b'"added_tokens_decoder"', b'"name"', b'"content"'),
        usual=50_000,
    ),
    "generation_config": Reader(
        lambda: checkpoints.make_beside_config("generation_config.json", [checkpoints.GENERATION]),
        usual=50_000,
    ),
    "template": Reader(checkpoints.make_template, checkpoints.TEMPLATE_WORDS, usual=25_000),
    "hub": Reader(checkpoints.make_hub, (b'"../x"', b'"rfilename"', b'"sha":', b'"a\\u0000"')),
    "gguf": Reader(checkpoints.make_gguf, checkpoints.GGUF_WORDS, usual=30_000),
    "manifest": Reader(directories.make_manifest, directories.MANIFEST_WORDS),
    "image": Reader(directories.make_image, (b'"shares":[', b'"offset":', b"DIELETIM")),
    "program": Reader(
        directories.make_program,
        (b"linear", b"\xcf" + b"\xff" * 8, b"\xdb\xff\xff\xff\xff", b"\xc0"),
    ),
    "npy": Reader(directories.make_npy, directories.NPY_WORDS, usual=50_000),
    "accuracy": Reader(directories.make_accuracy, (b'"linears":[', b'"format":', b"NaN")),
    "kernels": Reader(
        directories.make_kernels, (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"), usual=50_000
    ),
    "objects": Reader(directories.make_objects, errors=(NotFlat,), usual=50_000),
    "verified": Reader(directories.make_verified, usual=20_000),
    "prompt_cache": Reader(
        directories.make_prompt_cache,
        (b'"panel_bytes":', b'"tokens":[', b'"sha256":['),
        usual=50_000,
    ),
    "device": Reader(texts.make_device, texts.DEVICE_WORDS),
    "calibrated": Reader(directories.make_calibrated, texts.DEVICE_WORDS, usual=20_000),
    "overrides": Reader(texts.make_overrides, texts.OVERRIDE_WORDS),
    "roles": Reader(texts.make_roles, texts.TOML_WORDS),
    "budget": Reader(texts.make_budget, texts.TOML_WORDS),
    "rbln_config": Reader(
        texts.make_rbln, (b'"phases"', b'"sliding_window"', b'"quantization"', b'"npu"')
    ),
    "trace": Reader(texts.make_trace, texts.TRACE_WORDS, usual=30_000),
    "trace-packed": Reader(texts.make_packed_trace, texts.TRACE_WORDS, usual=20_000),
    "trace-zipped": Reader(texts.make_zipped_trace, texts.TRACE_WORDS, usual=50_000),
    "table": Reader(texts.make_table, texts.TRACE_WORDS, usual=10_000),
}
