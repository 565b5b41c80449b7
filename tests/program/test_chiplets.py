"""Programs for chiplets with memories of their own: legal, free of races, and where things go."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dielet.codegen import compile_kernels, host_target
from dielet.errors import CapacityError, InternalError, UsageError
from dielet.host.tables import kernel_key
from dielet.image import ModelPlan
from dielet.program import (
    Command,
    Program,
    check_happens_before,
    verify_program,
)
from dielet.program.chiplet_attention import query_runs
from dielet.program.commands import Run
from dielet.program.explain import explain
from dielet.program.interpret import execute
from dielet.program.places import Ring, missing, united
from tests.models import LLAMA, QWEN, SPECS, Bench, compiled, plan
from tests.program.devices import CASES, cramped, given
from tests.program.test_conformance import compare, run_kernel
from tests.program.test_orders import expect_the_same_bits, without_wait

COPIES = ("copy", "weight_copy", "host_copy", "device_copy")


def sizes(model: ModelPlan) -> dict[str, int]:
    return {
        "weights": model.decoder.nbytes,
        "head": model.head.nbytes,
        "embedding": model.embedding_bytes,
        "cos": model.table_bytes // 2,
        "sin": model.table_bytes // 2,
        "kv": model.kv.nbytes,
    }


def named(model: ModelPlan, name: str) -> Program:
    return next(p for p in model.programs if p.name == name)


def on(program: Program, engine: str, chiplet: int) -> list[Command]:
    queues = [n for n, q in enumerate(program.queues) if (q.engine, q.chiplet) == (engine, chiplet)]
    return [c for c in program.commands if c.queue in queues]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize(("weights", "kv"), [("bf16", "bf16"), ("int4", "int8")])
def test_programs_are_legal_and_free_of_races(
    family: str, weights: str, kv: str, case: tuple
) -> None:
    model = plan(SPECS[family], weights=weights, kv=kv, batch_sizes=(3,), **given(*case))
    for program in model.programs:
        verify_program(program, sizes(model))
        assert check_happens_before(program)


@pytest.mark.parametrize("partition", ["column", "column_row"])
@pytest.mark.parametrize("memory", [("24 kB", "128 kB"), ("14 kB", "1 MB"), ("1 MB", "100 kB")])
def test_cramped_memories_cut_everything(
    tmp_path: Path, memory: tuple[str, str], partition: str
) -> None:
    device = cramped(tmp_path, *memory)
    model = plan(QWEN, weights="bf16", device=device, partition=partition, chiplets=2)
    for program in model.programs:
        verify_program(program, sizes(model))
        check_happens_before(program)
    pieces = [c for c in named(model, "decode_1_kv64").commands if c.kind == "weight_copy"]
    assert (max(c.part for c in pieces) > 0) == (memory[0] != "1 MB")


@pytest.mark.parametrize("case", [*CASES[:5], *CASES[6:], ("cramped", None, 2, None)], ids=str)
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_every_order_gives_the_same_bits(tmp_path: Path, case: tuple, kv: str) -> None:
    device = cramped(tmp_path) if case[0] == "cramped" else case[0]
    spec = LLAMA if case[2] == 3 else QWEN
    files = compiled(tmp_path / "m", spec, weights="int8", kv=kv, **given(device, *case[1:]))
    expect_the_same_bits(files)


def test_a_missing_wait_is_found() -> None:
    program = named(plan(chiplets=2, device="rebel100"), "prefill_16_kv64")
    waiting = [n for n, c in enumerate(program.commands) if c.waits]
    assert len(waiting) > 40
    for number in waiting:
        with pytest.raises(InternalError, match="not ordered"):
            check_happens_before(without_wait(program, number))


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_kernels_agree_with_meanings(tmp_path: Path, case: tuple) -> None:
    files = compiled(tmp_path / "m", weights="int8", batch_sizes=(2,), **given(*case))
    bench = Bench.of(files, sequences=2)
    steps = [
        ("prefill_16_kv64", Run(0, 9)),
        ("decode_1_kv64", Run(9, 1)),
        ("decode_2_kv64", Run(0, 2, (10, 0))),
        ("head_1", Run(0, 1)),
    ]
    programs = {name: files.program(name) for name, _ in steps}
    keys = [kernel_key(c) for p in programs.values() for c in p.commands]
    library = compile_kernels(keys, host_target(), tmp_path / "cache")
    for name, run in steps:
        program = programs[name]
        memory = bench.memory(program)
        bench.give(program, memory, np.arange(run.valid, dtype=np.int32) + 5)
        for command in program.commands:
            kernel = library.address(kernel_key(command))
            found = run_kernel(kernel, command, memory, run, program.sizes["kv"])
            execute(command, memory, run, program.sizes["kv"])
            if command.kind not in COPIES:  # see test_transfer: their padding is as it was
                compare(command, found, memory, run.valid)


# Where things are: the placement of the vendor's traces, on the shape of Qwen3-1.7B.

QWEN3_17B = msgspec.structs.replace(
    QWEN, hidden=2048, layers=2, heads=16, kv_heads=8, head_dim=128, intermediate=6144, vocab=4096
)


@pytest.fixture(scope="module", params=["column", "column_row"])
def large(request: pytest.FixtureRequest) -> ModelPlan:
    given = {"max_seq_len": 1024, "kv_ladder": (512, 1024), "prefill_chunk": 128}
    return plan(QWEN3_17B, device="rebel100", weights="bf16", partition=request.param, **given)


@pytest.mark.parametrize("name", ["prefill_128_kv512", "decode_1_kv1024"])
def test_weights_are_divided_and_norms_are_chiplet_0s(large: ModelPlan, name: str) -> None:
    program = named(large, name)
    for chiplet in range(4):
        brought = [c.layer for c in on(program, "neural_dma", chiplet)]
        computed = [c.layer for c in on(program, "neural", chiplet)]
        for layer in range(2):
            module = f"model.model.layers.{layer}.self_attn.q_proj"
            assert brought.count(f"{module}.weight") == 1
            assert computed.count(module) == 1
    norms = {
        (program.queues[c.queue].engine, program.queues[c.queue].chiplet)
        for c in program.commands
        if "pre_attention_layernorm" in c.layer
    }
    assert norms == {("task_dma", 0)}
    weights = [c for c in program.commands if c.layer.endswith("layernorm.weight")]
    assert [program.queues[c.queue].chiplet for c in weights] == [0] * 4


@pytest.mark.parametrize("name", ["prefill_128_kv512", "decode_1_kv512", "head_1"])
def test_in_and_out_through_chiplet_0(large: ModelPlan, name: str) -> None:
    program = named(large, name)
    outside = [c for c in program.commands if c.kind == "host_copy"]
    assert len(outside) == 2
    assert {program.queues[c.queue].chiplet for c in outside} == {0}
    assert outside[1] is program.commands[-1]
    first = next(c for c in program.commands if 0 in c.deps)
    assert first.kind == "copy" and program.queues[first.queue].chiplet == 0
    assert first.layer == ("hidden_in" if name == "head_1" else "model.model.embed_tokens")
    feeding = [program.commands[n] for n in outside[1].deps]
    engines = {program.queues[c.queue] for c in feeding if c.kind != "host_copy"}
    assert [(q.engine, q.chiplet) for q in engines] == [("task_dma", 0)]
    if name == "head_1":
        assert sum(c.kind == "copy" for c in feeding) >= 4


def test_keys_and_values_stay_with_their_heads(large: ModelPlan) -> None:
    program = named(large, "decode_1_kv512")
    for chiplet in range(4):
        appended = [c for c in on(program, "general", chiplet) if c.kind == "kv_append"]
        regions = [c.operand("k_cache").region for c in appended]
        assert [r.rows for r in regions] == [2, 2]
        brought = [c for c in on(program, "task_dma", chiplet) if c.layer.endswith("k_cache")]
        assert [c.operand("x").region for c in brought] == regions


def test_only_split_sums_are_reduced(large: ModelPlan) -> None:
    program = named(large, "decode_1_kv512")
    reduces = [c for c in program.commands if c.kind == "reduce"]
    if any(c.layer.endswith("o_proj") and c.attrs["K"] == 512 for c in program.commands
           if c.kind == "linear"):  # fmt: skip
        assert len(reduces) == 4 and all(c.attrs["count"] == 4 for c in reduces)
        assert {program.queues[c.queue].chiplet for c in reduces} == {0}
    else:
        assert not reduces


def test_devices_exchange_through_device_hdma_and_sync() -> None:
    model = plan(QWEN, device="rebel100", chiplets=2, num_devices=2, weights="bf16")
    program = named(model, "decode_1_kv64")
    assert (program.chiplets, program.devices) == (4, 2)
    for number, command in enumerate(program.commands):
        homes = {
            int(name[1] or 0) // 2  # staging is chiplet 0's
            for o in command.operands
            if (name := re.fullmatch(r"(?:shared|scratchpad)\.(\d+)|staging", o.region.space))
        }
        assert (len(homes) == 2) == (command.kind == "device_copy")
        if command.kind == "device_copy":
            following = program.commands[number + 1]
            assert following.kind == "device_sync"
            assert following.operand("x").region == command.operand("y").region
            assert number in following.deps


def test_commands_of_one_operation_are_counted_per_chiplet(tmp_path: Path) -> None:
    model = plan(QWEN, weights="bf16", device=cramped(tmp_path, "14 kB"), chiplets=2)
    program = named(model, "decode_1_kv64")
    counted: dict[tuple[int, str], list[int]] = {}
    for command in program.commands:
        chiplet = program.queues[command.queue].chiplet
        counted.setdefault((chiplet, command.layer), []).append(command.part)
    assert all(parts == list(range(len(parts))) for parts in counted.values())
    assert any(len(parts) > 2 for parts in counted.values())


def test_weights_come_early_as_far_as_the_scratchpad_has_room(tmp_path: Path) -> None:
    """A weight copy waits for nothing but the piece that it overwrites."""
    model = plan(QWEN, weights="bf16", device="rebel100")
    program = named(model, "decode_1_kv64")
    assert not any(c.waits for c in program.commands if c.kind == "weight_copy")
    small = plan(QWEN, weights="bf16", device=cramped(tmp_path, "20 kB"), chiplets=1)
    program = named(small, "decode_1_kv64")
    copies = [n for n, c in enumerate(program.commands) if c.kind == "weight_copy"]
    waiting = [n for n in copies if program.commands[n].deps]
    assert waiting and all(
        program.commands[dep].kind in ("linear", "weight_copy")
        for n in waiting
        for dep in program.commands[n].deps
    )


@pytest.mark.parametrize("name", ["decode_1_kv64", "head_1"])
def test_listings(golden: Callable[[str, str], None], name: str) -> None:
    one_layer = msgspec.structs.replace(QWEN, layers=1)
    model = plan(one_layer, device="rebel100", chiplets=2, weights="bf16")
    golden(f"qwen3-bf16-rebel100-2.{name}.txt", "\n".join(explain(named(model, name))) + "\n")


def test_replay(golden: Callable[[str, str], None]) -> None:
    """A refactoring changes no program: the hash of every listing of a corpus."""
    hashes = {}
    for family, weights, case in itertools.product(SPECS, ("bf16", "int8"), CASES):
        digest = hashlib.sha256()
        for program in plan(SPECS[family], weights=weights, **given(*case)).programs:
            digest.update("\n".join(explain(program)).encode())
        hashes[f"{family} {weights} {' '.join(map(str, case))}"] = digest.hexdigest()[:16]
    golden("replay-chiplets.json", json.dumps(hashes, indent=1) + "\n")


# What does not fit.


def test_too_little_dram_is_refused_with_owners_and_remedies(tmp_path: Path) -> None:
    device = Path(cramped(tmp_path, "1 MB", "1 MB"))
    text = device.read_text().replace('size = "35 GiB"', 'size = "190 kB"')
    device.write_text(text)
    given = {"weights": "bf16", "device": str(device), "chiplets": 2, "kv_ladder": None}
    with pytest.raises(CapacityError) as caught:
        plan(QWEN, **given)
    message = str(caught.value)
    assert re.search(r"chiplet \d needs [\d.]+ kB of 190 kB DRAM \(decoder weights", message)
    assert "kv of 128 tokens" in message and "num_devices=" in message and "\n" not in message
    remedies = re.findall(r"(\w+)=(\w+) \(", message)
    assert {"chiplets", "num_devices", "max_seq_len", "weights"} <= {name for name, _ in remedies}
    for name, value in remedies:  # every one of them, alone
        plan(QWEN, **{**given, name: int(value) if value.isdigit() else value})


def test_activations_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"prefill_16_kv64 needs .*; what would fit: a smaller"):
        plan(QWEN, device=cramped(tmp_path, "1 MB", "5 kB"))
    device = cramped(tmp_path, "1 MB", "40 kB")
    with pytest.raises(
        CapacityError, match=r"prefill_64_kv64 needs .* fit: prefill_chunk="
    ) as caught:
        plan(QWEN, device=device, prefill_chunk=64)
    chunk = re.search(r"prefill_chunk=(\d+) ", str(caught.value))
    plan(QWEN, device=device, prefill_chunk=int(chunk[1]))
    with pytest.raises(CapacityError, match=r"piece of weights of \d+ bytes does not fit"):
        plan(QWEN, device=cramped(tmp_path, "1 kB", "1 MB"), weights="bf16")


def test_devices_that_cannot_be_many_are_refused() -> None:
    with pytest.raises(UsageError, match="die_to_die"):
        plan(QWEN, device="atom", chiplets=2)
    with pytest.raises(UsageError, match="only one of it"):
        plan(QWEN, num_devices=2)
    with pytest.raises(UsageError, match="more than 64"):
        plan(QWEN, device="rebel100", num_devices=17)
    with pytest.raises(UsageError, match="use column"):
        plan(QWEN, partition="column_row")


# Small parts.


def test_intervals() -> None:
    assert united([(4, 8), (0, 4), (9, 9), (10, 12)]) == [(0, 8), (10, 12)]
    assert missing([(2, 4), (6, 8)], 0, 10) == [(0, 2), (4, 6), (8, 10)]
    assert missing([(0, 10)], 2, 4) == [] and missing([], 2, 4) == [(2, 4)]
    assert missing([(0, 3), (9, 12)], 2, 5) == [(3, 5)]


def test_a_ring_overwrites_the_oldest() -> None:
    ring = Ring(256, 2)
    assert [ring.take(n) for n in (64, 100, 64, 64)] == [0, 64, 192, 0]
    assert ring.high_water == 256


@pytest.mark.parametrize(
    ("queries", "kv", "expected"),
    [
        ((0, 10), (0, 3), [(0, 8), (8, 10)]),
        ((10, 20), (2, 5), [(10, 12), (12, 20)]),
        ((10, 11), (2, 3), [(10, 11)]),
        ((3, 9), (0, 3), [(3, 4), (4, 8), (8, 9)]),
        ((3, 9), (1, 2), [(4, 8)]),
    ],
)
def test_query_runs_read_whole_heads_or_one(queries, kv, expected) -> None:
    assert query_runs(*queries, *kv, 4) == expected
