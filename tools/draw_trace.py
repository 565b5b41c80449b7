"""Draw a part of a trace as SVG, from the trace alone: rows of slices, and arrows if asked for.

    python -m tools.draw_trace TRACE.pb OUT.svg [--from NS] [--to NS] [--rows TEXT,...]
        [--around NAME] [--mark TEXT] [--arrows NAME] [--title TEXT]

Times are nanoseconds since the session began.  --around shows the time around slices whose names
contain NAME; --mark outlines those that contain TEXT and fades the others; --arrows draws the
arrows into and out of slices that contain NAME.  --rows leaves out rows whose path contains none
of the texts.  Slices too narrow to draw are drawn together.
"""

from __future__ import annotations

import argparse
import colorsys
import hashlib
from html import escape
from pathlib import Path

import numpy as np

from dielet.profiler.names import parse
from dielet.profiler.reader import Trace, read_trace

WIDTH, LEFT, ROW, BAR, TOP = 1200, 250, 22, 18, 46  # pixels
NARROW = 1.2  # pixels below which slices are drawn together
LETTER = 5.6  # pixels of a letter in a bar
FADED = "#e4e4e4"


class Picture:
    """Collects shapes; `x` turns a time into a place."""

    def __init__(self, begin: int, end: int, title: str) -> None:
        self.begin, self.end = begin, max(end, begin + 1)
        self._shapes: list[str] = []
        self._title = title

    def x(self, time: float) -> float:
        return LEFT + (time - self.begin) / (self.end - self.begin) * (WIDTH - LEFT - 10)

    def rect(
        self, x0: float, x1: float, y: float, colour: str, tip: str = "", line: str = ""
    ) -> None:
        stroke = f' stroke="{line}"' if line else ""
        title = f"<title>{escape(tip)}</title>" if tip else ""
        end = f">{title}</rect>" if title else "/>"
        self._shapes.append(
            f'<rect x="{x0:.1f}" y="{y:g}" width="{max(x1 - x0, 0.4):.1f}" height="{BAR}" '
            f'fill="{colour}"{stroke}{end}'
        )

    def text(
        self, x: float, y: float, words: str, size: int = 11, colour: str = "#222",
        anchor: str = "start",
    ) -> None:  # fmt: skip
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str, width: float) -> None:
        self._shapes.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"/>'
        )

    def arrow(self, x0: float, y0: float, x1: float, y1: float) -> None:
        bend = max(abs(x1 - x0) / 2, 14)
        self._shapes.append(
            f'<path d="M{x0:.1f},{y0:.1f} C{x0 + bend:.1f},{y0:.1f} {x1 - bend:.1f},{y1:.1f} '
            f'{x1:.1f},{y1:.1f}" fill="none" stroke="#c0171d" stroke-width="1.3" '
            'marker-end="url(#tip)"/>'
        )

    def svg(self, rows: int) -> str:
        height = TOP + rows * ROW + 12
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" font-family="sans-serif">',
                '<defs><marker id="tip" viewBox="0 0 6 6" refX="5.5" refY="3" markerWidth="6" '
                'markerHeight="6" orient="auto"><path d="M0,0 L6,3 L0,6 z" fill="#c0171d"/>'
                "</marker></defs>",
                f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
                f'<text x="8" y="16" font-size="13" font-weight="bold" fill="#111">'
                f"{escape(self._title)}</text>",
                *self._shapes,
                "</svg>",
                "",
            ]
        )


def draw(trace: Trace, picture: Picture, rows: list[tuple[int, int]], options: Options) -> str:
    """The picture of the rows (track, depth), with time in `picture`'s range."""
    ruler(picture, len(rows))
    names = [trace.texts[n] if n >= 0 else "" for n in trace.name.tolist()]
    places: dict[int, float] = {}
    for place, (uuid, depth) in enumerate(rows):
        y = TOP + place * ROW
        label = trace.tracks[uuid].name
        picture.text(8 + 12 * depth, y + 13, label, 11, "#111")
        picture.line(0, y + ROW - 2, WIDTH, y + ROW - 2, "#f0f0f0", 1)
        mine = np.flatnonzero(
            (trace.track == uuid)
            & (trace.start < picture.end)
            & (trace.start + trace.duration > picture.begin)
        )
        places.update(dict.fromkeys(mine.tolist(), y + BAR / 2))
        bars(trace, picture, mine, names, y, options.mark)
    for source, target in trace.flows.tolist() if options.arrows else ():
        wanted = options.arrows in names[source] or options.arrows in names[target]
        if wanted and source in places and target in places:
            end = int(trace.start[source] + trace.duration[source])
            x0, x1 = picture.x(end), picture.x(int(trace.start[target]))
            picture.arrow(x0, places[source], x1, places[target])
    return picture.svg(len(rows))


def bars(
    trace: Trace, picture: Picture, mine: np.ndarray, names: list[str], y: float, mark: str
) -> None:
    """The slices of one row; those too narrow to tell apart as one pale bar."""
    pale: list[float] = []
    for at in mine.tolist():
        x0 = picture.x(max(int(trace.start[at]), picture.begin))
        x1 = picture.x(min(int(trace.start[at] + trace.duration[at]), picture.end))
        marked = bool(mark) and mark in names[at]
        if x1 - x0 < NARROW and not marked:
            if pale and x0 - pale[1] < NARROW:
                pale[1] = max(x1, pale[1])
                continue
            flush(picture, pale, y, mark)
            pale[:] = [x0, x1]
            continue
        flush(picture, pale, y, mark)
        colour = FADED if mark and not marked else colour_of(names[at])
        tip = f"{names[at]} ({int(trace.duration[at]):,} ns)" if x1 - x0 > 4 else ""
        picture.rect(x0, x1, y, colour, tip, "#000" if marked else "")
        letters = int((x1 - x0 - 4) / LETTER)
        if letters > 3 and not (mark and not marked):
            words = short(names[at])
            picture.text(x0 + 3, y + 12, words if len(words) <= letters else words[: letters - 1]
                         + "…", 10, "#111")  # fmt: skip
    flush(picture, pale, y, mark)


def flush(picture: Picture, pale: list[float], y: float, mark: str) -> None:
    if pale:
        picture.rect(pale[0], pale[1], y, FADED if mark else "#9aa7b8")
        pale.clear()


def ruler(picture: Picture, rows: int) -> None:
    span = picture.end - picture.begin
    step = 10 ** int(np.floor(np.log10(span)))
    step = next(s for s in (step // 5, step // 2, step, 2 * step) if s and span / s <= 10)
    first = -(-picture.begin // step) * step
    for time in range(first, picture.end, step):
        x = picture.x(time)
        picture.line(x, TOP - 8, x, TOP + rows * ROW, "#e8e8e8", 1)
        picture.text(x, TOP - 12, shown(time, step), 10, "#666", "middle")


def shown(ns: int, step: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 1000)):
        if step >= size / 20 and ns >= size / 20:
            return f"{ns / size:.6g} {unit}"
    return f"{ns} ns"


def short(name: str) -> str:
    """What a bar says: the last part of the layer's path."""
    found = parse(name)
    if found is None or found.layer is None:
        return name
    paths = [operation.split(".") for operation in found.operations]
    parts = [".".join(path[-2:] if path[-1] == "weight" else path[-1:]) for path in paths]
    return "+".join(parts) + (f" {found.command}" if found.command else "")


def colour_of(name: str) -> str:
    """The same for an operation in all layers and steps."""
    found = parse(name)
    key = "".join(c for c in short(name) if not c.isdigit()) if found else name
    hue = hashlib.sha256(key.encode()).digest()[0] / 255
    r, g, b = (round(255 * part) for part in colorsys.hls_to_rgb(hue, 0.72, 0.55))
    return f"#{r:02x}{g:02x}{b:02x}"


def rows_of(trace: Trace, wanted: list[str]) -> list[tuple[int, int]]:
    """Tracks that have slices, and the groups above them, from top to bottom with their depths."""
    busy = {int(uuid) for uuid in np.unique(trace.track)}
    if wanted:
        busy = {u for u in busy if any(w in "/".join(trace.path(u)) for w in wanted)}
    shown_tracks = set(busy)
    for uuid in busy:
        while (parent := trace.tracks[uuid].parent) in trace.tracks:
            shown_tracks.add(parent)
            uuid = parent
    rows: list[tuple[int, int]] = []

    def add(parent: int, depth: int) -> None:
        children = [t for t in trace.tracks.values() if t.parent == parent]
        for track in sorted(children, key=lambda t: t.rank):
            if track.uuid in shown_tracks:
                rows.append((track.uuid, depth))
                add(track.uuid, depth + 1)

    add(0, 0)
    return rows


class Options(argparse.Namespace):
    trace: str
    out: str
    begin: int | None
    end: int | None
    rows: str
    around: str
    mark: str
    arrows: str
    title: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("out")
    parser.add_argument("--from", dest="begin", type=int)
    parser.add_argument("--to", dest="end", type=int)
    for name in ("rows", "around", "mark", "arrows", "title"):
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args(namespace=Options())
    trace = read_trace(options.trace)
    begin, end = int(trace.start.min()), int((trace.start + trace.duration).max())
    if options.around:
        number = np.array([options.around in text for text in trace.texts])
        found = np.flatnonzero(number[trace.name])
        begin = int(trace.start[found].min())
        end = int((trace.start + trace.duration)[found].max())
        begin, end = begin - (end - begin) // 8, end + (end - begin) // 8
    begin = begin if options.begin is None else options.begin
    end = end if options.end is None else options.end
    wanted = [word for word in options.rows.split(",") if word]
    title = options.title or Path(options.trace).name
    svg = draw(trace, Picture(begin, end, title), rows_of(trace, wanted), options)
    Path(options.out).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
