"""The report: one file that holds everything, drawn in a real browser, names escaped."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dielet.analysis.api import Analyzed, examine
from dielet.analysis.html import page_of, write_html
from dielet.analysis.schema import Evidence
from dielet.cli.main import main
from dielet.files import CannotWrite
from tests.analysis.make import NEURAL, Maker, engine, toy
from tests.analysis.test_large import written

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=20000",
)  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Analyzed:
    return examine(toy().write(tmp_path_factory.mktemp("toy") / "toy.pb"))


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def numbers(text: str) -> list[int]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").tolist()


def test_nothing_outside_the_file_is_asked_for(done: Analyzed) -> None:
    page = page_of(done)
    assert "{{" not in page
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|fetch\(|XMLHttp|import\(", page)
    assert re.findall(r'(?:src|href)="([^#"]*)"', page) == ["data:,"]
    assert "default-src 'none'" in page


def test_the_slices_are_those_of_the_trace(done: Analyzed) -> None:
    drawn = data_of(page_of(done))["drawn"]
    starts, durations = numbers(drawn["starts"]), numbers(drawn["durations"])
    found = {
        (drawn["operations"][kind["operation"][n]], run[2] + starts[run[4] + n],
         durations[run[4] + n], *drawn["lanes"][kind["lane"][n]][1:])
        for run in drawn["runs"]
        for kind in [drawn["kinds"][run[0]]]
        for n in range(len(kind["lane"]))
    }  # fmt: skip
    table = done.table
    expected = {
        (table.text(int(kind.pieces.operation[n])), int(kind.start[row, n]),
         int(kind.duration[row, n]), table.lanes[lane].chiplet, table.lanes[lane].name)
        for kind in table.kinds
        for row in range(len(kind.runs))
        for n, lane in enumerate(kind.pieces.lane.tolist())
    }  # fmt: skip
    assert found == expected and drawn["drawn"] == drawn["commands"] == len(starts)
    assert data_of(page_of(done))["analysis"] == json.loads(_encoded(done))


def test_runs_of_many_seconds_are_drawn_in_coarser_units(tmp_path: Path) -> None:
    t = Maker()
    t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 9_000_000_000)
    t.slice(engine(0, NEURAL), "i0_0_W0_b_0", 9_000_000_000, 10_000_000_000)
    drawn = data_of(page_of(examine(t.write(tmp_path / "a.pb"))))["drawn"]
    unit = drawn["unit_ns"]
    assert unit == 3
    assert [n * unit for n in numbers(drawn["starts"])] == [0, 9_000_000_000]
    assert numbers(drawn["durations"])[0] * unit == 9_000_000_000


def _encoded(done: Analyzed) -> bytes:
    import msgspec

    return msgspec.json.encode(done.found)


def test_names_cannot_leave_the_data(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--"
    trace = Maker(model=evil, device="<b>", device_clock="modelled")
    trace.slice(engine(0, NEURAL), f"i0_0_W0_{evil}_0", 0, 100, kind="linear", bytes=1)
    page = page_of(examine(trace.write(tmp_path / "evil.pb")))
    assert "<script>alert" not in page and "<!--" not in page
    assert "<title>&lt;/script&gt;" in page
    assert evil in json.dumps(data_of(page)["drawn"]["operations"])


def test_more_commands_than_can_be_drawn_are_counted(tmp_path: Path) -> None:
    done = examine(written(tmp_path, 40, compress=False))
    every, some = (data_of(page_of(done, most))["drawn"] for most in (10**6, 3000))
    assert every["commands"] == every["drawn"] == some["commands"] == 40 * 280
    assert 3000 <= some["drawn"] <= 3000 + 280 * (len(done.found.gantts) + 1)
    assert some["drawn"] == len(numbers(some["starts"]))
    kept = {run[1] for run in some["runs"]}
    assert {gantt.step for gantt in done.found.gantts} <= kept and {0, 39} <= kept


def test_the_command_writes_it_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = toy().write(tmp_path / "toy.pb")
    assert main(["analyze", str(trace), "--html", str(tmp_path / "out.html"), "-q"]) == 0
    assert (tmp_path / "out.html").read_text("utf-8").startswith("<!doctype html>")
    capsys.readouterr()
    assert main(["analyze", str(trace), "--html", str(tmp_path / "no" / "out.html")]) == 1
    out, err = capsys.readouterr()
    assert "out.html cannot be written: No such file" in err
    assert "Critical path" in out  # what was found is told all the same
    with pytest.raises(CannotWrite):
        write_html(examine(trace), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.html", "toy.pb"]


def test_it_replaces_nothing_but_files(tmp_path: Path, done: Analyzed) -> None:
    pipe, link, behind = (tmp_path / name for name in ("pipe", "link", "behind"))
    os.mkfifo(pipe)
    with pytest.raises(CannotWrite, match="pipe is a pipe, not a file; choose another place"):
        write_html(done, pipe)
    with pytest.raises(CannotWrite, match="is a directory, not a file"):
        write_html(done, tmp_path)
    assert pipe.is_fifo() and sorted(tmp_path.iterdir()) == [pipe]
    behind.write_text("old")
    link.symlink_to(behind.name)
    write_html(done, link)
    assert link.is_symlink() and behind.read_text().startswith("<!doctype html>")
    assert sorted(tmp_path.iterdir()) == sorted([pipe, link, behind])


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="needs Debian's package chromium")
@pytest.mark.parametrize("which", ["toy", "long", "lone"])
def test_a_browser_draws_it(tmp_path: Path, which: str) -> None:
    if which == "toy":
        trace = toy().write(tmp_path / "toy.pb")
    elif which == "long":
        trace = written(tmp_path, 40, compress=False)
    else:
        lone = Maker()
        lone.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 100, kind="linear")
        trace = lone.write(tmp_path / "lone.pb")
    done = examine(trace)
    if which == "toy":
        read = Evidence("achieved", 340_706_071_908.3, "bytes/s")
        told = replace(done.found.findings[0], evidence=(read,))
        done = dataclasses.replace(done, found=replace(done.found, findings=(told,)))
    page = write_html(done, tmp_path / "page.html", 3000)
    assert BROWSER is not None
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    ran = subprocess.run(
        [BROWSER, *QUIET, profile, "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in ran.stderr, ran.stderr
    dom = ran.stdout
    assert 'data-ready="yes"' in dom
    sections = re.findall(r'<section id="(\w+)"', dom)
    assert sections[:2] == ["summary", "timeline"] and "operations" in sections
    assert dom.count("<canvas") >= 1
    for finding in done.found.findings:
        assert f"<h3>{finding.title}</h3>" in dom
    if which == "toy":
        assert "<dd>achieved: 341 GB/s</dd>" in dom
        assert "<b>1,666,667</b>" in dom  # a token in 600 ns
        assert "hollow: bytes of scratchpad or shared memory" in dom
        assert "without operations, so without a place here: weight_copy, copy" in dom
