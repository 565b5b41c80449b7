"""Perfetto's own engine loads our files without a complaint, and finds in them what we wrote."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import numpy as np
import pytest

import dielet
from dielet.profiler import Session, read_trace
from dielet.profiler import perfetto as p
from dielet.profiler.host import HostSlice
from dielet.profiler.modelled import write_modelled
from dielet.profiler.wire import double, number, text
from dielet.simulator import simulate
from tests.profiler.engine import ask
from tests.profiler.make import program, serial
from tests.profiler.talking import talking
from tests.profiler.test_seed import QWEN3_1_7B
from tests.profiler.test_writer import FOUR, linear, written

HARMLESS_INFO = (
    "track_hierarchy_missing_uuid", "track_event_parser_errors", "track_event_tokenizer_errors",
    "interned_data_tokenizer_errors", "flow_step_without_start", "flow_end_without_start",
)  # fmt: skip
STATS = "SELECT name, severity, value FROM stats WHERE value > 0"
COUNTS = """SELECT (SELECT count(*) FROM slice) AS slices,
    (SELECT count(*) FROM flow) AS flows,
    (SELECT count(*) FROM slice WHERE dur < 0) AS unclosed,
    (SELECT count(*) FROM flow WHERE slice_out = slice_in) AS selfish,
    (SELECT count(*) FROM slice WHERE depth > 0) AS nested,
    (SELECT count(*) FROM counter) AS samples"""
SLICES = """SELECT s.ts, s.dur, s.name, s.category, t.name AS track,
    extract_arg(s.arg_set_id, 'debug.bytes') AS bytes,
    extract_arg(s.arg_set_id, 'debug.waited for') AS waited
    FROM slice s JOIN track t ON t.id = s.track_id ORDER BY s.ts, s.id"""
FLOWS = """SELECT a.name AS source, b.name AS destination FROM flow
    JOIN slice a ON a.id = slice_out JOIN slice b ON b.id = slice_in"""
METADATA = "SELECT name, coalesce(str_value, int_value) AS value FROM metadata"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.skipif(which("node") is None, reason="no node on PATH to run the engine with"),
]


def agree(path: Path) -> None:
    """The engine has nothing to complain of, and sees what our own reader sees."""
    stats, (counts,), slices, flows, metadata = ask(path, [STATS, COUNTS, SLICES, FLOWS, METADATA])
    assert not [
        row for row in stats
        if row["severity"] in ("error", "data_loss", "notice") or row["name"] in HARMLESS_INFO
    ]  # fmt: skip
    ours = read_trace(path)
    assert counts == {
        "slices": len(ours), "flows": len(ours.flows), "unclosed": 0, "selfish": 0, "nested": 0,
        "samples": sum(len(times) for times, _ in ours.counters.values()),
    }  # fmt: skip
    texts = ours.texts
    names = [texts[n] for n in ours.name.tolist()]
    theirs = [(r["ts"], r["dur"], r["name"], r["category"], r["track"]) for r in slices]
    tracks = [ours.tracks[uuid].name for uuid in ours.track.tolist()]
    categories = [texts[n] for n in ours.category.tolist()]
    columns = ours.start.tolist(), ours.duration.tolist(), names, categories, tracks
    assert sorted(theirs) == sorted(zip(*columns, strict=True))
    assert total(slices, "bytes") == int(np.sum(ours.arguments["bytes"].values))
    waited = ours.arguments.get("waited for")
    assert sum(r["waited"] is not None for r in slices) == (len(waited.slices) if waited else 0)
    edges = sorted((names[a], names[b]) for a, b in ours.flows.tolist())
    assert sorted((r["source"], r["destination"]) for r in flows) == edges
    said = {r["name"].removeprefix("trace_attribute."): r["value"] for r in metadata}
    assert {key: said.get(key) for key in ours.attributes} == ours.attributes


def total(slices: list[dict[str, object]], key: str) -> int:
    return sum(int(str(row[key])) for row in slices if row[key] is not None)


@pytest.mark.parametrize("compress", [False, True])
def test_made_up_executions(tmp_path: Path, compress: bool) -> None:
    of = program(FOUR, [linear(n % 28, f"op.{n}", {*range(max(n - 3, 0), n)}) for n in range(400)])
    runs = [serial(of, n % 2, n // 2, 0, n * 10**10) for n in range(24)]
    host = [HostSlice("sample", n * 10**10 + 5 * 10**9, n * 10**10 + 6 * 10**9, n % 2, n // 2)
            for n in range(24)]  # fmt: skip
    done, _ = written(tmp_path, runs, host, compress=compress)
    for path in done.files[:3]:
        agree(path)


@pytest.mark.parametrize("compress", [False, True])
def test_measured_here(tmp_path: Path, compress: bool) -> None:
    folder = talking(tmp_path / "m", chiplets=2, weights="int8", batch_sizes=(1, 3))
    with dielet.load(folder, threads=2) as model:
        with Session(tmp_path / "out", compress=compress) as session:
            model.generate("hi", max_new_tokens=12, temperature=0)
        for path in (*session.files[:2], session.files[-1]):
            agree(path)


@pytest.mark.parametrize("device", ["rebel100", "atom-x4"])
def test_modelled(tmp_path: Path, device: str) -> None:
    """The seed's example, and several devices in one file."""
    answer = simulate(QWEN3_1_7B, device, 20, 4, weights="bf16", max_seq_len=8192)
    done = write_modelled([*answer.executions()], answer.device, tmp_path, model=answer.model)
    for path in done.files[:3]:
        agree(path)


def test_the_engine_does_complain(tmp_path: Path) -> None:
    """What the tests above rely on: that a fault would be found."""
    of = program(FOUR, [linear(0, "a"), linear(1, "b", [0])])
    done, _ = written(tmp_path, [serial(of)])
    nowhere = number(p.TYPE, p.COUNTER) + number(p.TRACK, 9999) + double(p.COUNTER_DOUBLE, 1)
    body = number(p.TIMESTAMP, 5) + number(p.SEQUENCE_ID, p.SEQUENCE)
    with done.files[0].open("ab") as file:
        file.write(p.packet(body + text(p.TRACK_EVENT, nowhere)))
    (stats,) = ask(done.files[0], [STATS])
    assert [row["name"] for row in stats if row["severity"] in ("error", "data_loss")]
