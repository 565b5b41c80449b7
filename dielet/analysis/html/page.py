"""The page put together: one file with its style, its script and its data."""

from __future__ import annotations

import html
from importlib.resources import files
from pathlib import Path

import msgspec

from dielet.analysis.api import Analyzed
from dielet.analysis.html.slices import MOST, Drawn, drawn_slices
from dielet.files import write_whole

SCRIPTS = (
    "base.js",
    "table.js",
    "slices.js",
    "chart.js",
    "timeline.js",
    "gantt.js",
    "roofline.js",
    "layers.js",
    "sections.js",
    "main.js",
)


class Report(msgspec.Struct, frozen=True):
    """What the script draws: the analysis, and the slices of its timeline."""

    analysis: msgspec.Raw
    drawn: Drawn


def write_html(done: Analyzed, path: str | Path, most: int = MOST) -> Path:
    """Write the report to `path`, whole or not at all; at most `most` commands one by one.

    Raises CannotWrite, with the reason.
    """
    path = Path(path)
    write_whole(path, page_of(done, most).encode())
    return path


def page_of(done: Analyzed, most: int = MOST) -> str:
    """The report as text."""
    report = Report(msgspec.Raw(msgspec.json.encode(done.found)), drawn_slices(done, most))
    # Within a script element only "</" and "<!--" could end the data early.
    data = msgspec.json.encode(report).decode().replace("<", "\\u003c")
    source = done.found.source
    title = " · ".join(word for word in (source.model, source.device, source.clock) if word)
    parts = {
        "title": html.escape(title or source.path),
        "style": _static("page.css"),
        "data": data,
        "script": "\n".join(_static(name) for name in SCRIPTS),
    }
    text = _static("page.html")
    for name, part in parts.items():
        before, mark, after = text.partition(f"{{{{{name}}}}}")
        assert mark, name
        text = before + part + after
    return text


def _static(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text("utf-8")
