"""GPTQ's and AWQ's 4-bit linears: values by the formats' formulas, codes taken over as they are."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file
from safetensors.torch import save as save_torch

from dielet.checkpoint import open_checkpoint, pack_rows
from dielet.checkpoint.grouped import Grouped, in_order
from dielet.checkpoint.quantization import Quantization
from dielet.checkpoint.weight_files import WeightFiles
from dielet.codegen import compile_kernels, host_target
from dielet.errors import DamagedFile, DieletError, NumericError, Unsupported
from dielet.formats.packed import WeightFormat, unpack
from dielet.host import load_runtime
from dielet.host.tables import kernel_key
from dielet.image import CompileOptions, compile_model, open_directory
from dielet.program.commands import Run
from dielet.program.interpret import execute
from tests.models import Bench, options
from tests.numbers import measure
from tests.program.test_conformance import compare, run_kernel

from . import greedy, quantised
from .quantised import Array, Parts, pair

GROUPS = (32, 64, 128, -1)


def random_parts(method: str, N: int, K: int, groups: int, seed: int = 0) -> Parts:
    """Any words are codes, and any are zero points; scales are of a usual size, and negative."""
    rng = np.random.default_rng(seed)
    words = lambda *shape: rng.integers(0, 1 << 32, shape, np.uint32).view(np.int32)  # noqa: E731
    qweight = words(K // 8, N) if method == "gptq" else words(K, N // 8)
    scales = (rng.standard_normal((groups, N)) * 0.02).astype(np.float16)
    return {"qweight": qweight, "qzeros": words(groups, N // 8), "scales": scales}


def opened(folder: Path, parts: Parts, how: Quantization) -> Grouped:
    save_file({f"x.{last}": array for last, array in parts.items()}, folder / "model.safetensors")
    files = WeightFiles(folder, how)
    (name,) = files.shapes
    assert name == "x.weight"
    linear = files.tensor(name)
    assert isinstance(linear, Grouped) and linear.shape == files.shapes[name]
    return linear


def holds(linear: Grouped, name: str) -> Array:
    """What a packed weight in this format is worth."""
    fmt = WeightFormat.parse(name)
    return unpack(fmt, pack_rows(linear, fmt), *linear.shape)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("less_one", [True, False])
def test_gptq_is_what_its_formula_says(tmp_path, group, less_one):
    N, K = 72, 256
    group_of = np.arange(K) // (K if group == -1 else group)
    parts = random_parts("gptq", N, K, int(group_of.max()) + 1)
    expected = quantised.gptq_values(parts, group_of, less_one)
    linear = opened(tmp_path, parts, Quantization("gptq", group, less_one))
    assert linear.shape == (N, K) and linear.kind == "gptq"
    assert np.array_equal(linear.rows(0, N), expected)
    for lo, hi in ((0, 8), (5, 41), (71, 72), (64, 72), (3, 3)):
        assert np.array_equal(linear.rows(lo, hi), expected[lo:hi])


@pytest.mark.parametrize("group", GROUPS)
def test_awq_is_what_its_formula_says(tmp_path, group):
    N, K = 72, 256
    run = K if group == -1 else group
    parts = random_parts("awq", N, K, K // run)
    expected = quantised.awq_values(parts, run)
    linear = opened(tmp_path, parts, Quantization("awq", group))
    assert linear.shape == (N, K) and linear.kind == "awq"
    assert np.array_equal(linear.rows(0, N), expected)
    for lo, hi in ((0, 8), (5, 41), (71, 72), (64, 72), (3, 3)):
        assert np.array_equal(linear.rows(lo, hi), expected[lo:hi])


def test_words_of_zero_points_borrow_as_their_writer_did(tmp_path):
    """A zero point of 0 is stored as 15, and takes one from its neighbour."""
    zeros = np.array([[0, 8, 0, 0, 15, 1, 0, 3]])
    whole = quantised.packed(zeros)
    stored = (whole.view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
    parts = {
        "qweight": np.zeros((4, 8), np.int32),
        "qzeros": stored,
        "scales": np.ones((1, 8), np.float16),
    }
    linear = opened(tmp_path, parts, Quantization("gptq", -1, less_one=True))
    assert np.array_equal(linear.rows(0, 8), np.repeat(-zeros.T, 32, axis=1))


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_zero_point_of_8_is_our_int4_exactly(tmp_path, method):
    parts = random_parts(method, 72, 256, 2)
    parts["qzeros"] = np.full((2, 9), 0x88888888, np.uint32).view(np.int32)
    linear = opened(tmp_path, parts, Quantization(method, 128))
    names = [fmt.name for fmt in linear.exact_formats]
    assert names == ["int4g128", "int4g64", "int4g32", "int8g128", "int8g64", "int8g32"]
    for name in names:
        assert np.array_equal(holds(linear, name), linear.array()), name


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_other_zero_points_are_int4_and_int8_exactly(tmp_path, method, group):
    """Against the formula in float64, and the codes are the file's own."""
    N, K, group_of = 72, 256, np.arange(256) // group
    parts = random_parts(method, N, K, K // group)

    def formula(parts: Parts) -> Array:
        if method == "awq":
            return quantised.awq_values(parts, group)
        return quantised.gptq_values(parts, group_of, less_one=False)

    linear = opened(tmp_path, parts, Quantization(method, group))
    groups = [g for g in (128, 64, 32) if g <= group]
    names = [*(f"int4g{g}z" for g in groups), *(f"int8g{g}" for g in groups)]
    assert [fmt.name for fmt in linear.exact_formats] == names
    expected = formula(parts)
    for name in names:
        assert np.array_equal(holds(linear, name).astype(np.float64), expected), name
    nothing = {"qzeros": np.zeros_like(parts["qzeros"]), "scales": np.ones_like(parts["scales"])}
    codes = linear.blocks(0, N, WeightFormat.parse(names[0])).values
    assert np.array_equal(codes, formula({**parts, **nothing}))


def test_groups_in_the_order_of_importance_are_dequantised(tmp_path):
    """desc_act: neighbouring inputs are in different groups, which none of our formats holds."""
    rng = np.random.default_rng(5)
    N, K = 40, 128
    group_of = rng.permutation(np.arange(K) // 32)
    parts = {**random_parts("gptq", N, K, 4), "g_idx": group_of.astype(np.int32)}
    linear = opened(tmp_path, parts, Quantization("gptq", 32, less_one=True, ordered=False))
    expected = quantised.gptq_values(parts, group_of, less_one=True)
    assert np.array_equal(linear.rows(0, N), expected)
    assert linear.exact_formats == ()


def test_groups_that_are_runs_in_another_order_are_taken_over(tmp_path):
    group_of = np.repeat([2, 0, 3, 1], 32)
    parts = {**random_parts("gptq", 40, 128, 4), "g_idx": group_of.astype(np.int32)}
    linear = opened(tmp_path, parts, Quantization("gptq", 32, less_one=True, ordered=False))
    assert np.array_equal(linear.array(), quantised.gptq_values(parts, group_of, less_one=True))
    assert [fmt.name for fmt in linear.exact_formats] == ["int4g32z", "int8g32"]
    for fmt in linear.exact_formats:
        assert np.array_equal(holds(linear, fmt.name), linear.array())


def test_a_last_group_that_is_shorter(tmp_path):
    """K = 160 in groups of 128 is one of 128 and one of 32: runs of 32 hold it."""
    parts = random_parts("awq", 40, 160, 2)
    linear = opened(tmp_path, parts, Quantization("awq", 128))
    assert np.array_equal(linear.array(), quantised.awq_values(parts, 128))
    assert [fmt.name for fmt in linear.exact_formats] == ["int4g32z", "int8g32"]
    assert np.array_equal(holds(linear, "int8g32"), linear.array())


def test_small_groups_have_no_format_but_are_read(tmp_path):
    parts = random_parts("awq", 40, 64, 4)
    linear = opened(tmp_path, parts, Quantization("awq", 16))
    assert np.array_equal(linear.array(), quantised.awq_values(parts, 16))
    assert linear.exact_formats == ()


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_scales_that_are_no_numbers_name_the_linear(tmp_path, scale):
    parts = random_parts("awq", 40, 64, 1)
    parts["scales"][0, 5] = scale
    linear = opened(tmp_path, parts, Quantization("awq", 64))
    for name in ("int4g64z", "int8g64", "bf16"):
        with pytest.raises(NumericError, match=r"x\.weight rows 0\.\.39: .* NaN or inf"):
            pack_rows(linear, WeightFormat.parse(name))


@pytest.mark.parametrize(
    ("changes", "how", "message"),
    [
        ({"qzeros": None}, Quantization("gptq", 32), "x is quantised, but has no x.qzeros"),
        ({"scales": None}, Quantization("awq", 32), "x is quantised, but has no x.scales"),
        (
            {"scales": np.ones((2, 40), np.float16)},
            Quantization("gptq", 32),
            r"x\.scales is \[2, 40\], expected \[4, 40\]",
        ),
        ({}, Quantization("gptq", 64), r"x\.qzeros is \[4, 5\], expected \[2, 5\]"),
        ({}, Quantization("gptq", 32, ordered=False), "x has no g_idx, which desc_act"),
        (
            {"g_idx": np.zeros(128, np.int32)},
            Quantization("gptq", 32),
            "x.g_idx is not one group after another, yet desc_act",
        ),
        (
            {"g_idx": np.full(128, 4, np.int32)},
            Quantization("gptq", 32, ordered=False),
            "x.g_idx is from 4 to 4 of 4 groups",
        ),
        (
            {"g_idx": np.full(128, -1, np.int32)},
            Quantization("gptq", 32, ordered=False),
            "x.g_idx is from -1 to -1 of 4 groups",
        ),
        ({"qweight": np.zeros(16, np.int32)}, Quantization("gptq", 32), "two sizes are needed"),
        ({"qweight": np.zeros((0, 40), np.int32)}, Quantization("gptq", 32), "two sizes are"),
    ],
)
def test_parts_that_do_not_fit_are_named(tmp_path, changes, how, message):
    parts: dict[str, Any] = {**random_parts("gptq", 40, 128, 4), **changes}
    if how.method == "awq":
        parts["qweight"] = np.zeros((128, 5), np.int32)
    with pytest.raises(DamagedFile, match=message) as error:
        opened(tmp_path, {n: a for n, a in parts.items() if a is not None}, how)
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


def test_a_weight_that_is_there_twice_is_refused(tmp_path):
    parts = {**random_parts("awq", 40, 128, 4), "weight": np.ones((40, 128), np.float16)}
    with pytest.raises(DamagedFile, match=r"x\.weight is there both quantised and as it was"):
        opened(tmp_path, parts, Quantization("awq", 32))


def bare_file(how: str) -> bytes:
    """A small file of each method, whose header is then altered."""
    parts = random_parts("awq" if how == "awq" else "gptq", 16, 64, 2)
    if how == "gptq":
        parts["g_idx"] = (np.arange(64) // 32).astype(np.int32)
    parts["bias"] = np.zeros(16, np.float16)
    if how != "fp8":
        return save({f"x.{last}": array for last, array in parts.items()})
    weight = torch.zeros(16, 64).to(torch.float8_e4m3fn)
    return save_torch({"x.weight": weight, "x.weight_scale_inv": torch.ones(1, 2)})


HOW = {
    "gptq": Quantization("gptq", 32, less_one=True, ordered=False),
    "awq": Quantization("awq", 32),
    "fp8": Quantization("fp8", block=(32, 32)),
}
FILES = {how: bare_file(how) for how in HOW}


@given(
    how=st.sampled_from(list(HOW)),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(max_examples=300, deadline=None)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_changed_bytes_give_linears_or_one_line(tmp_path_factory, how, changes):
    folder = tmp_path_factory.getbasetemp()
    data = bytearray(FILES[how])
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    (folder / "model.safetensors").write_bytes(data)
    try:
        files = WeightFiles(folder, HOW[how])
        for name, shape in files.shapes.items():
            files.is_unused(name)
            if name.endswith("weight") and len(shape) == 2:
                linear = files.tensor(name)
                linear.rows(0, min(linear.N, 20))
                if linear.exact_formats:
                    linear.blocks(0, min(linear.N, 20))
    except DieletError as error:
        message = str(error)
        assert "\n" not in message and (str(folder) in message or "x.weight" in message)


def test_words_of_another_width_are_refused(tmp_path):
    parts = random_parts("gptq", 40, 128, 4)
    with pytest.raises(Unsupported, match=r"tensor x\.qweight is I64; supported: I32"):
        opened(
            tmp_path, {**parts, "qweight": np.zeros((16, 40), np.int64)}, Quantization("gptq", 32)
        )


SETTINGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False},
    "gptq-asymmetric": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False,
                        "checkpoint_format": "gptq_v2"},
    "gptq-by-importance": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True,
            "version": "GEMM"},
}  # fmt: skip


def tiny(folder: Path, name: str, model_type: str, **more: Any) -> quantised.Pair:
    settings = SETTINGS[name]
    group = settings["group_size"]

    def quantise(stem: str, weight: Array) -> tuple[Parts, Array]:
        if settings["quant_method"] == "awq":
            return quantised.awq(weight, group)
        group_of = in_order(weight.shape[1], group)
        if settings.get("desc_act"):
            group_of = np.random.default_rng(len(stem)).permutation(group_of)
        v2 = settings.get("checkpoint_format") == "gptq_v2"
        return quantised.gptq(weight, group_of, settings.get("sym", True), less_one=not v2)

    return pair(folder, model_type, settings, quantise, **more)


CASES = [
    ("gptq", "llama", {"tie_word_embeddings": False}),
    ("gptq-asymmetric", "qwen2", {"head_dim": 16}),
    ("gptq-by-importance", "qwen3", {}),
    ("awq", "qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
                          "norm_topk_prob": True}),
    ("awq", "phi3", {"head_dim": 32, "hidden_size": 128, "pad_token_id": 0, "eos_token_id": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "model_type", "sizes"), CASES)
def test_a_model_gives_the_tokens_of_transformers(tmp_path, name, model_type, sizes):
    made = tiny(tmp_path, name, model_type, **sizes)
    greedy.check(made.quantised, tmp_path / "out", made.model, weights="bf16")
    compile_model(made.plain, tmp_path / "other", CompileOptions(max_seq_len=128, weights="bf16"))
    assert greedy.shares(tmp_path / "out") == greedy.shares(tmp_path / "other")


def test_int4_of_a_model_is_the_files_own_codes(tmp_path):
    """By default: no --weights is asked for."""
    made = tiny(tmp_path, "gptq", "llama", tie_word_embeddings=False)
    compile_model(made.quantised, tmp_path / "out", CompileOptions(max_seq_len=128))
    manifest = open_directory(tmp_path / "out").manifest
    assert manifest.weights == "int4" and manifest.formats == {"int4g32": 14}
    checkpoint = open_checkpoint(made.quantised)
    for name in checkpoint.names():
        source = checkpoint.tensor(name)
        if isinstance(source, Grouped):
            assert np.array_equal(holds(source, "int4g32"), source.array())
    made = tiny(tmp_path / "b", "awq", "llama")
    compile_model(made.quantised, tmp_path / "awq", CompileOptions(max_seq_len=128))
    manifest = open_directory(tmp_path / "awq").manifest
    assert manifest.weights == "int4" and manifest.formats == {"int4g64z": 12, "int4g32z": 2}


ZEROS = [("gptq-asymmetric", "qwen2", {"head_dim": 16}), CASES[3]]


@pytest.mark.parametrize(("name", "model_type", "sizes"), ZEROS)
def test_kernels_read_zero_points_as_their_meanings_do(tmp_path, name, model_type, sizes):
    """Command by command, linears and experts; and int8, just as exact, gives the same scores."""
    made = tiny(tmp_path, name, model_type, **sizes)
    scores = {}
    for weights in ("int4", "int8"):
        given = options(weights=weights, chiplets=2, batch_sizes=(2,))
        compile_model(made.quantised, tmp_path / weights, given)
        with closing(load_runtime(tmp_path / weights, threads=2)) as runtime:
            scores[weights] = measure.scores(runtime, measure.fresh(runtime), greedy.PROMPT[:2])
    assert measure.relative_error(scores["int8"], scores["int4"]) < 0.01  # a code that rounds apart
    bench = Bench.of(files := open_directory(tmp_path / "int4"))
    zeros = set()
    for step, run in (("prefill_16_kv64", Run(0, 16)), ("decode_1_kv64", Run(16, 1))):
        program = files.program(step)
        memory = bench.memory(program)
        bench.give(program, memory, greedy.PROMPT[: run.valid])
        keys = [kernel_key(c) for c in program.commands]
        library = compile_kernels(keys, host_target(), tmp_path / "cache")
        for command in program.commands:
            kernel = library.address(kernel_key(command))
            found = run_kernel(kernel, command, memory, run, program.sizes["kv"])
            execute(command, memory, run, program.sizes["kv"])
            compare(command, found, memory, run.valid)
            zeros |= {command.kind} if "zeros" in command.attrs else set()
    assert zeros == {"linear", *(("experts_gated", "experts_sum") if "moe" in model_type else ())}


def test_biases_of_zeros_are_nothing_and_others_are_not_expected(tmp_path):
    made = tiny(tmp_path, "gptq", "llama")
    path = made.quantised / "model.safetensors"
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save
    from torch import zeros

    tensors = load(path)
    bias = "model.layers.0.self_attn.q_proj.bias"
    save({**tensors, bias: zeros(128)}, path)
    assert bias.removesuffix("bias") not in open_checkpoint(made.quantised).names()
    save({**tensors, bias: zeros(128) + 0.5}, path)
    with pytest.raises(DamagedFile, match=r"1 unexpected: model\.layers\.0\.self_attn\.q_proj\.b"):
        open_checkpoint(made.quantised)


def test_settings_in_a_file_of_their_own(tmp_path):
    made = tiny(tmp_path, "gptq", "llama")
    path = made.quantised / "config.json"
    config = json.loads(path.read_text())
    settings = config.pop("quantization_config")
    path.write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match=r"14 missing: model\.layers\.0\.self_attn\.q_proj\.weig"):
        open_checkpoint(made.quantised)
    del settings["quant_method"]
    (made.quantised / "quantize_config.json").write_text(json.dumps(settings))
    source = open_checkpoint(made.quantised).tensor("model.model.layers.0.mlp.up_proj.weight")
    assert source.kind == "gptq" and source.exact_formats


def test_reading_does_not_hold_the_weight_in_memory(tmp_path):
    """A weight of 64 MB as float32 is read by 256 rows with the memory of those rows."""
    import tracemalloc

    parts = random_parts("gptq", 4096, 4096, 32)
    linear = opened(tmp_path, parts, Quantization("gptq", 128))
    del parts
    assert load_file(tmp_path / "model.safetensors")["x.qweight"].nbytes == 8 << 20
    tracemalloc.start()
    try:
        for lo in range(0, 4096, 256):
            linear.rows(lo, lo + 256)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
