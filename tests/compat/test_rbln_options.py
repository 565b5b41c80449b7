"""Every option of optimum-rbln 0.12.0: its default, its rule, its errors; nothing is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from dielet.compat import said
from dielet.compat.rbln_checks import BOOLS, parse_budget
from dielet.compat.rbln_errors import NotPossible
from dielet.compat.rbln_options import (
    OPTIONS,
    QUANTIZATION,
    RBLNDecoderOnlyModelForCausalLMConfig,
    model_names,
)
from dielet.compat.rbln_windows import Windows
from dielet.errors import UsageError

QWEN3_POSITIONS = 40960


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_said", set())


def settled(positions: int = QWEN3_POSITIONS, **options: Any):
    config = RBLNDecoderOnlyModelForCausalLMConfig(**options)
    config.settle(positions)
    return config


def test_defaults_of_the_documentation() -> None:
    config = settled(8192)
    assert config.npu.startswith("RBLN-CR") and config.num_devices == 1
    assert config.batch_size == 1 and config.decoder_batch_sizes == [1]
    assert config.max_seq_len == 8192, "the model's max_position_embeddings"
    assert config.attn_impl == "eager" and config.kvcache_partition_len is None
    assert config.kvcache_block_size == 8192 and config.kvcache_num_blocks == 1
    assert config.prefill_chunk_size == 512 and config.cache_impl == "static"
    assert config.phases == ["prefill", "decode"] and config.logits_to_keep == 1
    assert config.quantization == {} and config.lora_config is None
    assert config.dtype is None, "the checkpoint's: set when it is compiled"
    for name in ("create_runtimes", "device", "device_map", "activate_profiler", "timeout"):
        assert getattr(config, name) is None
    for name in ("use_inputs_embeds", "use_attention_mask", "use_position_ids"):
        assert getattr(config, name) is False
    assert settled(8192, npu="RBLN-CA25").prefill_chunk_size == 128


def test_names_with_and_without_the_prefix() -> None:
    config = settled(rbln_batch_size=2, max_seq_len=8192)
    assert (config.batch_size, config.max_seq_len) == (2, 8192)
    assert config.given == {"batch_size", "max_seq_len"}
    assert repr(config).endswith("(batch_size=2, max_seq_len=8192)")


def test_all_options_are_tested_here() -> None:
    with open(__file__) as file:
        text = file.read() + " ".join(BOOLS)
    missing = [
        name for name in (*OPTIONS, *QUANTIZATION, "tensor_parallel_size") if name not in text
    ]
    assert not missing


ALLOWED: dict[str, dict[str, Any]] = {
    "eager at the limit of REBEL": {"max_seq_len": 16384},
    "eager at the limit of ATOM": {"max_seq_len": 32768, "npu": "RBLN-CA22"},
    "flash, default partition": {"attn_impl": "flash_attn", "max_seq_len": 16384},
    "flash, smallest partition": {"kvcache_partition_len": 1024, "max_seq_len": 2048},
    "flash, largest partition": {"kvcache_partition_len": 16384, "max_seq_len": 32768},
    "its own block size": {"max_seq_len": 4096, "kvcache_block_size": 4096},
    "position ids with a mask": {"max_seq_len": 64, "use_attention_mask": True,
                                 "use_position_ids": True},
    "devices": {"max_seq_len": 64, "num_devices": 2, "device": [4, 5]},
    "a device": {"max_seq_len": 64, "device": 3},
    "a device map": {"max_seq_len": 64, "device_map": {"prefill": 0, "decoder_batch_1": 1}},
    "any device without runtimes": {"max_seq_len": 64, "device": 99, "create_runtimes": False},
    "a described device": {"max_seq_len": 64, "npu": "atom"},
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    settled(**ALLOWED[name])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"bach_size": 1}, "unexpected arguments: bach_size; did you mean batch_size"),
    "npu": ({"npu": "RBLN-XY01"}, "known are RBLN-CR.. "),
    "npu of nobody": ({"npu": "foo"}, "rbln_npu is 'foo'; known are RBLN-CR.. "),
    "large batch": ({"batch_size": 65}, "batch_size is 65; .* at most 64"),
    "large chunk": ({"max_seq_len": 8192, "prefill_chunk_size": 8192},
                    "prefill_chunk_size is 8192; .* at most 4096"),
    "no length": ({"max_seq_len": 0}, "max_seq_len is 0"),
    "no devices": ({"num_devices": 0}, "num_devices is 0"),
    "three devices": ({"max_seq_len": 64, "num_devices": 3}, "num_devices is 3; .* 1, 2, 4, 8, 16"),
    "timeout": ({"max_seq_len": 64, "timeout": "x"}, "timeout is 'x'; it must be a number"),
    "no time": ({"max_seq_len": 64, "timeout": 0}, "timeout is 0; it must be .* above 0"),
    "budget": ({"max_seq_len": 64, "memory_budget": "abc"}, "memory_budget is 'abc'"),
    "a window of none": ({"max_seq_len": 64, "sliding_window": 128},
                         "sliding_window is 128, and the model's config.json makes it None"),
    "a dtype of numbers": ({"max_seq_len": 64, "dtype": 3}, "dtype is 3; it must be one of torch"),
    "no dtype": ({"max_seq_len": 64, "dtype": "Tensor"}, "dtype is 'Tensor'; it must be one of t"),
    "windows of none": ({"max_seq_len": 64, "cache_impl": "hybrid"},
                        "cache_impl is 'hybrid', .* makes it 'static'; leave it out"),
    "device twice": ({"max_seq_len": 64, "num_devices": 2, "device": [1, 1]}, "names a device tw"),
    "device beyond": ({"max_seq_len": 64, "device": 99}, "device is 99; .* from 0 to 31"),
    "devices beyond": ({"max_seq_len": 64, "num_devices": 2, "device": [31, 32]}, "from 0 to 31"),
    "negative device": ({"max_seq_len": 64, "device": [-1]}, "from 0 to 31"),
    "fewer devices": ({"max_seq_len": 64, "num_devices": 4, "device": [0, 1]},
                      "names 2 devices and num_devices is 4"),
    "one device of four": ({"max_seq_len": 64, "num_devices": 4, "device": 0},
                           "names 1 devices and num_devices is 4"),
    "device map of a word": ({"max_seq_len": 64, "device_map": {"prefill": "a"}},
                             r"device_map\['prefill'\] is 'a'; it is a number"),
    "device map of -1": ({"max_seq_len": 64, "device_map": {"prefill": -1}}, "is -1; it is a num"),
    "batch": ({"batch_size": 0}, "batch_size is 0; it must be a positive"),
    "batch type": ({"batch_size": "2"}, "batch_size is '2'"),
    "devices": ({"num_devices": -1}, "num_devices is -1"),
    "length": ({"max_seq_len": -1}, "max_seq_len is -1"),
    "decoders": ({"decoder_batch_sizes": [2]}, "each is at most batch_size 1"),
    "no decoders": ({"decoder_batch_sizes": []}, "give a list of batch sizes"),
    "attention": ({"attn_impl": "sdpa"}, "use eager or flash_attn"),
    "position ids": ({"use_position_ids": True}, "needs use_attention_mask"),
    "eager too long": ({"max_seq_len": 16416}, "eager REBEL takes at most 16384"),
    "eager too long by default": ({}, "max_seq_len is 40960; .* at most 16384"),
    "eager too long on ATOM": ({"max_seq_len": 32800, "npu": "RBLN-CA12"}, "ATOM .* 32768"),
    "partition of eager": ({"attn_impl": "eager", "kvcache_partition_len": 1024}, "not eager"),
    "partition too short": ({"kvcache_partition_len": 512}, "on REBEL it is from 1024 to 16384"),
    "partition too long": ({"kvcache_partition_len": 32768}, "from 1024 to 16384"),
    "no multiple": ({"kvcache_partition_len": 1024, "max_seq_len": 2560}, "multiple of the part"),
    "one partition": ({"kvcache_partition_len": 1024, "max_seq_len": 1024}, "at least 2048"),
    "eager block": ({"kvcache_block_size": 512, "max_seq_len": 1024}, "must equal max_seq_len"),
    "flash block": ({"kvcache_partition_len": 1024, "kvcache_block_size": 512,
                     "max_seq_len": 2048}, "must equal kvcache_partition_len, 1024"),
    "too few blocks": ({"kvcache_partition_len": 1024, "max_seq_len": 4096,
                        "kvcache_num_blocks": 3}, "alone needs 4"),
    "too many blocks": ({"max_seq_len": 1024, "kvcache_num_blocks": 2}, "from 0 .* to 1"),
    "blocks and budget": ({"kvcache_partition_len": 1024, "max_seq_len": 4096,
                           "kvcache_num_blocks": 4, "memory_budget": 0.5}, "exclude each other"),
    "eager blocks and budget": ({"max_seq_len": 1024, "kvcache_num_blocks": 1,
                                 "memory_budget": "80%"}, "exclude each other"),
    "two names": ({"rbln_num_devices": 1, "rbln_tensor_parallel_size": 4},
                  "rbln_num_devices is 1 and rbln_tensor_parallel_size, its old name, is 4"),
    "two names, the other way": ({"tensor_parallel_size": 4, "num_devices": 2},
                                 "num_devices is 2 and rbln_tensor_parallel_size, .* is 4"),
    "chunk": ({"max_seq_len": 64, "prefill_chunk_size": 96}, "on REBEL it is a positive multiple"),
    "no chunk": ({"max_seq_len": 64, "prefill_chunk_size": 0, "npu": "RBLN-CA25"}, "on ATOM"),
    "cache": ({"max_seq_len": 64, "cache_impl": "paged"}, "use static, sliding_window or hybrid"),
    "phases": ({"max_seq_len": 64, "phases": ["prefill"]}, "a causal LM has"),
    "device list": ({"max_seq_len": 64, "num_devices": 2, "device": [0]}, "must agree"),
    "device": ({"max_seq_len": 64, "device": "npu:0"}, "it is a number from 0"),
    "device map": ({"max_seq_len": 64, "device_map": {"decoder": 0}}, "decoder_batch_1"),
    "quantization key": ({"max_seq_len": 64, "quantization": {"weight": "int4"}}, "it takes"),
    "quantization value": ({"max_seq_len": 64, "quantization": {"weights": "int2"}}, "int4, int8"),
    "nothing quantised": ({"max_seq_len": 64, "quantization": {
        "weights": "fp16", "activations": "fp16"}}, "both fp16"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as found:
        settled(**options)
    assert isinstance(found.value, UsageError) and "\n" not in str(found.value)


@pytest.mark.parametrize("name", BOOLS)
def test_yes_or_no_is_a_bool(name: str) -> None:
    for value in (0, 1, "no", "x"):
        with pytest.raises(UsageError, match=rf"{name} is {value!r}; it must be True or False"):
            settled(max_seq_len=64, **{name: value})


def test_attributes_are_options_too(capsys) -> None:
    config = RBLNDecoderOnlyModelForCausalLMConfig(max_seq_len=512)
    config.batch_size = 2
    config.tensor_parallel_size = 4
    assert config.tensor_parallel_size == 4
    assert config.given == {"max_seq_len", "batch_size", "num_devices"}
    config.settle(QWEN3_POSITIONS)
    assert (config.batch_size, config.num_devices) == (2, 4)
    assert config.given == {"max_seq_len", "batch_size", "num_devices"}, "not what was filled in"
    with pytest.raises(UsageError, match=r"unexpected arguments: batchsize; did you mean batch_si"):
        config.batchsize = 3
    assert settled(max_seq_len=64, batch_size=None).batch_size == 1


HALF = Windows(512, (0, 2), 4)


@pytest.mark.parametrize(
    ("windows", "kind", "size", "layers"),
    [
        (Windows(of=4), "static", None, []),
        (HALF, "hybrid", 512, [0, 2]),
        (Windows(64, (0, 1), 2), "sliding_window", 64, [0, 1]),
    ],
)
def test_windows_are_the_models(windows: Windows, kind: str, size: Any, layers: Any) -> None:
    found = {"cache_impl": kind, "sliding_window": size, "sliding_window_layers": layers}
    for given in ({}, found):
        config = RBLNDecoderOnlyModelForCausalLMConfig(max_seq_len=64, **given)
        config.settle(QWEN3_POSITIONS, windows)
        assert {name: getattr(config, name) for name in found} == found


LONG = {"max_seq_len": 65536, "kvcache_partition_len": 16384}


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (262144, {"max_seq_len": 8192}),  # of Phi-3
        (32768, {"max_seq_len": 32768, "kvcache_partition_len": 16384}),  # of Mistral
        (32256, {**LONG, "prefill_chunk_size": 448}),
        (32640, {**LONG, "npu": "RBLN-CA25"}),
    ],
)
def test_wide_windows(size: int, options: dict[str, Any]) -> None:
    """One that is as wide as the context never acts; what a device has room for is taken."""
    config = RBLNDecoderOnlyModelForCausalLMConfig(**options)
    config.settle(QWEN3_POSITIONS, Windows(size, (0,), 1))
    assert (config.cache_impl, config.sliding_window) == ("sliding_window", size)


def test_windows_that_are_refused() -> None:
    every = Windows(64, (0, 1), 2)
    for windows, given, message in (
        (HALF, {"sliding_window": 256}, "sliding_window is 256, and .* makes it 512"),
        (HALF, {"cache_impl": "sliding_window"}, "makes it 'hybrid'"),
        (HALF, {"sliding_window_layers": [1]}, r"layers is \[1\], and .* makes it \[0, 2\]"),
        (every, {"use_attention_mask": True}, "takes no use_attention_mask"),
        (every, {"cache_impl": "static"}, "cache_impl is 'static', .* makes it 'sliding_window'"),
        (HALF, {"cache_impl": "static"}, "cache_impl is 'static', .* makes it 'hybrid'"),
        (Windows(32256, (0,), 1), LONG, "is 32256; .* at most 32255: use an "
         "rbln_prefill_chunk_size of at most 448, or an rbln_max_seq_len of at most 32256"),
        (Windows(32704, (0,), 1), LONG, "most 32255: use an rbln_max_seq_len of at most 32704"),
        (Windows(32640, (0,), 1), {**LONG, "npu": "RBLN-CA25", "prefill_chunk_size": 192},
         "32640; on ATOM .* at most 32576: use an rbln_prefill_chunk_size of at most 128"),
    ):  # fmt: skip
        config = RBLNDecoderOnlyModelForCausalLMConfig(**{"max_seq_len": 64, **given})
        with pytest.raises(UsageError, match=message):
            config.settle(QWEN3_POSITIONS, windows)


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "logits_to_keep": {"logits_to_keep": 2},
    "output_hidden_states": {"output_hidden_states": True},
    "use_inputs_embeds": {"use_inputs_embeds": True},
    "lora_config": {"lora_config": {"adapters": []}},
    "fp8": {"quantization": {"weights": "fp8"}},
    "kv_caches": {"quantization": {"kv_caches": "fp8"}},
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_not_possible_here(name: str) -> None:
    with pytest.raises(NotImplementedError, match=name) as found:
        settled(max_seq_len=64, **IMPOSSIBLE[name])
    assert isinstance(found.value, NotPossible)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [(None, [4]), ([2], [2]), ([1, 2], [4, 2, 1]), ((4, 1), [4, 1])],
)
def test_decoder_batch_sizes(given: Any, sizes: list[int]) -> None:
    config = settled(max_seq_len=64, batch_size=4, decoder_batch_sizes=given)
    assert config.decoder_batch_sizes == sizes
    assert model_names(config) == ["prefill", *(f"decoder_batch_{n}" for n in sizes)]
    assert config.compile_options().batch_sizes == tuple(sorted({1, *sizes}))


def test_flash_attention_when_a_partition_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    config = settled(kvcache_partition_len=2048, max_seq_len=8192, batch_size=2)
    assert config.attn_impl == "flash_attn" and config.kvcache_block_size == 2048
    assert "attn_impl is flash_attn" in capsys.readouterr().err
    assert settled(attn_impl="flash_attn", max_seq_len=32768).kvcache_partition_len == 8192
    atom = settled(attn_impl="flash_attn", max_seq_len=32768, npu="RBLN-CA25")
    assert atom.kvcache_partition_len == 16384


def test_the_old_name_of_num_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert settled(max_seq_len=64, tensor_parallel_size=2).num_devices == 2
    both = {"tensor_parallel_size": 2, "rbln_num_devices": 2}
    assert settled(max_seq_len=64, **both).num_devices == 2, "the same said twice"
    assert "rbln_num_devices" in capsys.readouterr().err


def test_no_effect_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        settled(max_seq_len=64, timeout=60, optimize_host_memory=True, use_attention_mask=True)
    said_lines = capsys.readouterr().err.splitlines()
    assert len(said_lines) == 3 and all("has no effect here" in line for line in said_lines)


def test_what_our_compiler_is_told() -> None:
    options = settled(max_seq_len=4096, npu="RBLN-CR13").compile_options()
    assert (options.device, options.num_devices, options.weights) == ("rebel100", None, "bf16")
    assert (options.max_seq_len, options.prefill_chunk) == (4096, 512)
    options = settled(max_seq_len=4096, npu="RBLN-CA25", num_devices=4).compile_options()
    assert (options.device, options.num_devices, options.prefill_chunk) == ("atom-x4", 4, 128)
    options = settled(max_seq_len=64, npu="atom").compile_options()
    assert options.device == "atom"
    for weights in ("int8", "int4"):
        quantization = {"format": "rbln", "weights": weights, "activations": "fp16",
                        "dynamic": True}  # fmt: skip
        assert (
            settled(max_seq_len=64, quantization=quantization).compile_options().weights == weights
        )


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [(0.8, 800), ("80%", 800), (10, 10), ("10GB", 10**10), ("1.5 KiB", 1536), (1.0, 1000)],
)
def test_memory_budgets(budget: Any, nbytes: int) -> None:
    assert parse_budget(budget, 1000) == nbytes


@pytest.mark.parametrize("budget", [0.0, 1.5, "120%", "much", "10", -5, True])
def test_no_memory_budgets(budget: Any) -> None:
    with pytest.raises(UsageError, match="memory_budget is"):
        parse_budget(budget, 1000)
