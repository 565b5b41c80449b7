"""What must be visible for Qwen3-1.7B on four chiplets, statement by statement, on its shape.

The programs are those of the real configuration; the times are the simulator's.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from dielet.checkpoint.spec import ModelSpec
from dielet.profiler.modelled import write_modelled
from dielet.profiler.names import Name, parse
from dielet.simulator import simulate
from tests.profiler.arrows import check_arrows
from tests.profiler.oracle import Slice, Trace, read

QWEN3_1_7B = ModelSpec(
    model_type="qwen3", hidden=2048, layers=28, heads=16, kv_heads=8, head_dim=128,
    intermediate=6144, vocab=151936, norm_eps=1e-6, rope_theta=1e6, max_position=40960,
    tied=True, qk_norm=True, name="Qwen3-1.7B",
)  # fmt: skip
DEVICE = "Device 0 (rebel100, modelled)"
TRACKS = (
    "Neural Engine Clusters", "Neural DMA", "Task DMA", "External HDMA", "Device HDMA",
    "Device Sync", "General Compute Engine",
)  # fmt: skip


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """The script of the seed: a short prompt, max_new_tokens=4, max_seq_len 8192, batch 1."""
    answer = simulate(QWEN3_1_7B, "rebel100", 20, 4, weights="bf16", max_seq_len=8192)
    written = write_modelled([*answer.executions()], answer.device,
                             tmp_path_factory.mktemp("trace"), model=answer.model)  # fmt: skip
    assert [path.name.count("_") for path in written.files] == [2, 3, 3, 3, 3]
    return [read(path) for path in written.files]


@pytest.fixture(scope="module")
def merged(traces: list[Trace]) -> Trace:
    return traces[0]


@pytest.fixture(scope="module")
def prefill(traces: list[Trace]) -> Trace:
    return traces[1]


def name_of(piece: Slice) -> Name:
    name = parse(piece.name)
    assert name is not None
    return name


def chiplet(trace: Trace, piece: Slice) -> str:
    return trace.path(piece.track).split("/")[1]


def test_one_device_with_workload_host_and_four_chiplets(merged: Trace) -> None:
    tree = merged.tree()
    assert tree[0] == DEVICE
    assert [line for line in tree if line.startswith("  ") and not line.startswith("   ")] == [
        "  Device Workload", "  Host", "  Chiplet 0", "  Chiplet 1", "  Chiplet 2", "  Chiplet 3",
    ]  # fmt: skip
    assert merged.attributes["device_clock"] == "modelled"


def test_groups_have_only_the_tracks_that_carry_commands(merged: Trace) -> None:
    for number in range(4):
        group = next(t for t in merged.tracks.values() if t.name == f"Chiplet {number}")
        names = [t.name for t in sorted(group.children, key=lambda t: t.rank) if not t.unit]
        assert names == [name for name in TRACKS if name in names]
        assert {"Neural Engine Clusters", "Neural DMA", "Task DMA"} <= set(names)


def test_commands_carry_the_prefix_of_their_workload(merged: Trace) -> None:
    spans = {}
    for piece in merged.slices:
        if piece.category == "Device Workload":
            name = name_of(piece)
            assert piece.name == (
                f"i{name.instance}_{name.sequence}_Device Workload_{name.workload}"
            )
            spans[f"i{name.instance}_{name.sequence}_W{name.workload}"] = piece
    assert len(spans) == 8  # one prefill, three decode steps, each with its head
    counts: Counter[str] = Counter()
    for piece in merged.commands():
        prefix = "_".join(piece.name.split("_")[:3])
        counts[prefix] += 1
        assert spans[prefix].start <= piece.start and piece.end <= spans[prefix].end
    assert counts.keys() == spans.keys()


def test_single_files_are_the_merged_one_cut_up(traces: list[Trace]) -> None:
    merged, *singles = traces
    assert len(merged.commands()) == sum(len(single.commands()) for single in singles)
    whole = [(s.name.split("_", 1)[1], s.start, s.end, s.args) for s in merged.commands()]
    parts = [(s.name, s.start, s.end, s.args) for single in singles for s in single.commands()]
    assert whole == parts


def test_the_weights_of_q_proj_come_once_to_each_chiplet(prefill: Trace) -> None:
    found = [s for s in prefill.commands() if "layers.0.self_attn.q_proj.weight" in s.name]
    assert [s.category for s in found] == ["Neural DMA"] * 4
    assert sorted(chiplet(prefill, s) for s in found) == [f"Chiplet {n}" for n in range(4)]
    for piece in found:
        assert name_of(piece).layer == "model.model.layers.0.self_attn.q_proj.weight"
        assert piece.args["bytes"] == 2048 * 2048 * 2 // 4  # a quarter of them each
        assert piece.args["memory"] == "dram -> scratchpad"


def test_each_chiplet_multiplies_with_its_share(prefill: Trace) -> None:
    layer = "model.model.layers.0.self_attn.q_proj"
    found = [s for s in prefill.commands() if name_of(s).layer == layer]
    assert [s.category for s in found] == ["Neural Engine Clusters"] * 4
    assert sorted(chiplet(prefill, s) for s in found) == [f"Chiplet {n}" for n in range(4)]
    for piece in found:
        assert piece.args["kind"] == "linear"
        assert piece.args["shape"] == "128x2048 . 2048x512"
        here = [s for s in prefill.commands() if chiplet(prefill, s) == chiplet(prefill, piece)]
        weights = next(s for s in here if name_of(s).layer == f"{layer}.weight")
        assert weights.end <= piece.start
        assert "q_proj.weight" in piece.args["waited for"]


def test_the_norm_before_attention_is_only_on_task_dma_of_chiplet_0(prefill: Trace) -> None:
    found = [s for s in prefill.commands() if "layers.0.pre_attention_layernorm" in s.name]
    assert {(chiplet(prefill, s), s.category) for s in found} == {("Chiplet 0", "Task DMA")}
    assert any(s.name.rsplit("_", 1)[0].endswith("pre_attention_layernorm.weight") for s in found)


def test_the_command_index_differs_between_chiplets(prefill: Trace) -> None:
    found: dict[tuple[str, str], list[int | None]] = {}
    for piece in prefill.commands():
        name = name_of(piece)
        key = chiplet(prefill, piece), f"{name.workload} {name.layer}"
        found.setdefault(key, []).append(name.command)
    for indices in found.values():
        assert sorted(indices, key=str) == sorted(range(len(indices)), key=str)
    both = {layer for _, layer in found}
    last = [{layer: len(found.get((f"Chiplet {n}", layer), ())) for layer in both} for n in (0, 1)]
    assert any(last[0][layer] != last[1][layer] > 0 for layer in both)


def test_input_and_output_are_on_chiplet_0_alone(prefill: Trace) -> None:
    found = [s for s in prefill.commands() if s.category == "External HDMA"]
    assert {chiplet(prefill, s) for s in found} == {"Chiplet 0"}
    into = [b for a, b in prefill.edges() if a.category == "External HDMA"
            and "embed_tokens" in b.name]  # fmt: skip
    assert [(s.category, chiplet(prefill, s)) for s in into] == [("Task DMA", "Chiplet 0")]


def test_several_task_dmas_feed_the_one_transfer_at_the_end(traces: list[Trace]) -> None:
    for trace in traces[1:]:
        last = max(trace.commands(), key=lambda s: s.end)
        assert (last.category, chiplet(trace, last)) == ("External HDMA", "Chiplet 0")
        sources = [a for a, b in trace.edges() if b is last]
        assert len(sources) > 1
        assert {(a.category, chiplet(trace, a)) for a in sources} == {("Task DMA", "Chiplet 0")}
        for number in (1, 2, 3):
            mine = [s.end for s in trace.commands() if chiplet(trace, s) == f"Chiplet {number}"]
            assert max(mine) < last.start


def test_arrows_are_the_dependencies_but_for_those_of_neural_dma(traces: list[Trace]) -> None:
    answer = simulate(QWEN3_1_7B, "rebel100", 20, 4, weights="bf16", max_seq_len=8192)
    programs = {run.program.name: run.program for run in answer.executions()}
    merged, *singles = traces
    assert check_arrows(merged, programs) == sum(check_arrows(s, programs) for s in singles) > 20000


def test_arrows_leave_neural_dma_alone(merged: Trace) -> None:
    assert not any(s.flows for s in merged.commands() if s.category == "Neural DMA")
    for a, b in merged.edges():
        assert a.end <= b.start
        assert name_of(a).sequence == name_of(b).sequence


def test_counters_and_bounds(merged: Trace) -> None:
    seen = {s.args["bound by"] for s in merged.commands()}
    assert seen <= {"compute", "memory", "link", "wait", "setup"} and len(seen) >= 3
    peak = 1200.0  # GB/s of one chiplet's stack
    for number in range(4):
        rates = merged.track(f"{DEVICE}/Chiplet {number}/DRAM GB/s").samples
        assert 0.3 * peak < max(value for _, value in rates) <= 1.01 * peak
        in_use = merged.track(f"{DEVICE}/Chiplet {number}/DRAM bytes in use").samples
        assert 0.8e9 < in_use[0][1] < 1.1e9  # a quarter of 3.4 GB, and what the head has
        grown = [b - a for (_, a), (_, b) in pairwise(in_use)]
        assert grown[1:] == [28 * 2 * 2 * 128 * 2] * 2  # two of eight heads per chiplet
    links = merged.track(f"{DEVICE}/Chiplet 1/link GB/s").samples
    assert 0 < max(value for _, value in links) <= 1000


def test_a_host_that_only_launches(merged: Trace) -> None:
    host = merged.track(f"{DEVICE}/Host").slices
    assert [s.name for s in host][:3] == ["i0_0_launch_0", "i0_0_launch_1", "i1_0_launch_0"]
    assert len(host) == 8


def test_the_folder_is_named_in_errors(tmp_path: Path) -> None:
    from dielet.errors import DieletError, UsageError

    answer = simulate(QWEN3_1_7B, "rebel100", 2, 1, weights="bf16", layers=1)
    with pytest.raises(UsageError, match="no executions"):
        write_modelled([], answer.device, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DieletError, match="cannot be made"):
        write_modelled([*answer.executions()], answer.device, tmp_path / "file" / "x")
