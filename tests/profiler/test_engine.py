"""The real engine loads our files without a complaint.  Needs `trace_processor_shell` on PATH."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from dielet.profiler.host import HostSlice
from tests.profiler.make import program, serial
from tests.profiler.test_writer import FOUR, linear, written

SHELL = shutil.which("trace_processor_shell")
HARMLESS_INFO = (
    "track_hierarchy_missing_uuid", "track_event_parser_errors", "track_event_tokenizer_errors",
    "interned_data_tokenizer_errors", "flow_step_without_start", "flow_end_without_start",
)  # fmt: skip

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(SHELL is None, reason="no trace_processor_shell on PATH"),
]


def query(trace: Path, sql: str) -> list[dict[str, str]]:
    assert SHELL is not None
    found = subprocess.run(
        [SHELL, "-Q", sql, str(trace)], capture_output=True, text=True, check=True, timeout=300
    )
    return list(csv.DictReader(io.StringIO(found.stdout)))


@pytest.mark.parametrize("compress", [False, True])
def test_the_engine_agrees(tmp_path: Path, compress: bool) -> None:
    of = program(FOUR, [linear(n % 28, f"op.{n}", {*range(max(n - 3, 0), n)}) for n in range(400)])
    runs = [serial(of, n % 2, n // 2, 0, n * 10**10) for n in range(6)]
    host = [HostSlice("sample", n * 10**10 + 5 * 10**9, n * 10**10 + 6 * 10**9, n % 2, n // 2)
            for n in range(6)]  # fmt: skip
    done, traces = written(tmp_path, runs, host, compress=compress)
    for path, trace in zip(done.files, traces, strict=True):
        bad = query(path, "SELECT name, severity, value FROM stats WHERE value > 0")
        assert not [
            row for row in bad
            if row["severity"] in ("error", "data_loss", "notice") or row["name"] in HARMLESS_INFO
        ]  # fmt: skip
        (counts,) = query(
            path,
            "SELECT (SELECT count(*) FROM slice) AS slices, (SELECT count(*) FROM flow) AS flows,"
            " (SELECT count(*) FROM slice WHERE dur < 0) AS unclosed,"
            " (SELECT count(*) FROM flow WHERE slice_out = slice_in) AS selfish,"
            " (SELECT count(*) FROM counter) AS samples",
        )
        samples = sum(len(track.samples) for track in trace.tracks.values())
        assert {key: int(value) for key, value in counts.items()} == {
            "slices": len(trace.slices), "flows": len(trace.edges()), "unclosed": 0, "selfish": 0,
            "samples": samples,
        }  # fmt: skip
