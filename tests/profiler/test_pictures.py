"""Pictures of traces: well-formed, with the rows, slices and arrows that were asked for."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dielet.program.types import Queue
from tests.profiler.make import linear, program, serial
from tests.profiler.test_writer import written
from tools import draw_trace

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    queues = [Queue(0, "neural"), Queue(1, "neural"), Queue(0, "task_dma")]
    commands = [linear(n % 3, f"model.op<{n}>", [n - 1] if n else []) for n in range(9)]
    done, _ = written(tmp_path, [serial(program(queues, commands))])
    return done.files[0]


def drawn(trace: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> ET.Element:
    out = trace.with_suffix(".svg")
    monkeypatch.setattr(sys, "argv", ["draw_trace", str(trace), str(out), *options])
    draw_trace.main()
    return ET.fromstring(out.read_text())


def texts(svg: ET.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def test_rows_and_slices(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svg = drawn(trace, monkeypatch, "--title", "a & b")
    words = texts(svg)
    for row in ("Device Workload", "Chiplet 0", "Chiplet 1", "Neural Engine Clusters", "Task DMA"):
        assert row in words
    assert words[0] == "a & b"
    tips = [element.text or "" for element in svg.iter(f"{SVG}title")]
    assert sum("model.op<" in tip for tip in tips) == 9
    assert "i0_0_W0_model.op<4>_0 (3,000 ns)" in tips


def test_parts_marks_and_arrows(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svg = drawn(
        trace, monkeypatch, "--around", "op<4>", "--mark", "op<4>", "--arrows", "op<4>",
    )  # fmt: skip
    outlined = [r for r in svg.iter(f"{SVG}rect") if r.get("stroke") == "#000"]
    assert len(outlined) == 1
    arrows = [p for p in svg.iter(f"{SVG}path") if p.get("marker-end")]
    assert len(arrows) == 0  # the neighbours are outside of the picture
    svg = drawn(trace, monkeypatch, "--arrows", "op<4>", "--rows", "Chiplet")
    arrows = [p for p in svg.iter(f"{SVG}path") if p.get("marker-end")]
    assert len(arrows) == 2
    assert "Device Workload" not in texts(svg)


def test_many_narrow_slices_become_few_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = program([Queue(0, "neural")], [linear(0, str(n)) for n in range(5000)])
    done, _ = written(tmp_path, [serial(of, gap=0)], single=False)
    svg = drawn(done.files[0], monkeypatch)
    assert len(list(svg.iter(f"{SVG}rect"))) < 50
