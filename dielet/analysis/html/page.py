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
    write_whole(path, _page(done, most))
    return path


def page_of(done: Analyzed, most: int = MOST) -> str:
    """The report as text."""
    return _page(done, most).decode()


def _page(done: Analyzed, most: int) -> bytes:
    """The report in UTF-8: as Python's text it would be two or four times as large."""
    report = Report(msgspec.Raw(msgspec.json.encode(done.found)), drawn_slices(done, most))
    source = done.found.source
    title = " · ".join(word for word in (source.model, source.device, source.clock) if word)
    parts = {
        "title": html.escape(title or source.path).encode(),
        "style": _static("page.css"),
        # Within a script element only "</" and "<!--" could end the data early.
        "data": msgspec.json.encode(report).replace(b"<", b"\\u003c"),
        "script": b"\n".join(_static(name) for name in SCRIPTS),
    }
    rest, pieces = _static("page.html"), []
    for name, part in parts.items():
        before, mark, rest = rest.partition(b"{{%s}}" % name.encode())
        assert mark, name
        pieces += [before, part]
    return b"".join([*pieces, rest])


def _static(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()
