"""Predictions over a grid of changed figures, as a table, as CSV, and as a picture."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from dielet.errors import CapacityError, UsageError
from dielet.simulator.predict import Prediction

COLUMNS = ("ttft_s", "tpot_s", "decode_tok_s", "bound_by")
NO_ROOM = "does not fit"
COLOURS = ("#1b6ca8", "#d1495b", "#3d8b37", "#8d5a97", "#c77d0a", "#4a4a4a")


@dataclass(frozen=True)
class Point:
    """One combination of values, in the order of the settings, and what it gives.

    prediction: None when the model does not fit then, which `problem` says in words.
    """

    values: tuple[str, ...]
    prediction: Prediction | None
    problem: str = ""


@dataclass(frozen=True)
class Sweep:
    """All combinations of the values of some settings."""

    names: tuple[str, ...]
    points: tuple[Point, ...]

    def rows(self) -> list[dict[str, str | float]]:
        """One row per point: the settings, then the figures; `bound_by` is the largest share."""
        found: list[dict[str, str | float]] = []
        for point in self.points:
            p = point.prediction
            values: dict[str, str | float] = dict(zip(self.names, point.values, strict=True))
            if p is None:
                found.append({**values, **dict.fromkeys(COLUMNS, ""), "bound_by": NO_ROOM})
                continue
            name, share = max(p.bound_by.items(), key=lambda item: item[1])
            found.append(
                {
                    **values,
                    "ttft_s": p.ttft_s,
                    "tpot_s": p.tpot_s,
                    "decode_tok_s": p.decode_tok_s,
                    "bound_by": f"{name} {share:.0%}",
                }
            )
        return found

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, [*self.names, *COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return out.getvalue()

    def table(self) -> str:
        """For a terminal: figures aligned, a bar for the tokens per second."""
        rows = self.rows()
        most = max((float(row["decode_tok_s"] or 0) for row in rows), default=0) or 1.0
        cells = [[*self.names, "first token", "per token", "tok/s", "bound by", ""]]
        for row in rows:
            cells.append(
                [
                    *(str(row[name]) for name in self.names),
                    *(_time(float(row[n])) if row[n] != "" else "-" for n in ("ttft_s", "tpot_s")),
                    f"{row['decode_tok_s']:.1f}" if row["decode_tok_s"] != "" else "-",
                    str(row["bound_by"]),
                    "#" * round(24 * float(row["decode_tok_s"] or 0) / most),
                ]
            )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells)
        return "\n".join(line.rstrip() for line in lines)

    def svg(self) -> str:
        """Tokens per second over the first setting, a line for each combination of the others."""
        lines: dict[tuple[str, ...], list[tuple[str, float]]] = {}
        for point in self.points:
            if point.prediction is not None:
                lines.setdefault(point.values[1:], []).append(
                    (point.values[0], point.prediction.decode_tok_s)
                )
        return _picture(self.names, lines)


def parse_settings(texts: Sequence[str]) -> dict[str, list[str]]:
    """`--set name=a,b,c` as name -> values."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not all(v.strip() for v in values.split(",")):
            raise UsageError(
                f"--set {text}: give a name and values, such as chiplets=1,2,4 or "
                '"memory.dram.bandwidth=0.6 TB/s,1.2 TB/s"'
            )
        found[name.strip()] = [value.strip() for value in values.split(",")]
    return found


def sweep(settings: dict[str, list[str]], run: Callable[[dict[str, str]], Prediction]) -> Sweep:
    """`run` with every combination, the last setting changing fastest.

    Raises CapacityError when the model fits with none of them.
    """
    names = tuple(settings)
    points: list[Point] = []
    problem: CapacityError | None = None
    for values in itertools.product(*settings.values()):
        try:
            prediction = run(dict(zip(names, values, strict=True)))
            _ = prediction.ttft_s, prediction.tpot_s  # lowers the programs, which may not fit
        except CapacityError as error:
            problem = problem or error
            points.append(Point(values, None, str(error)))
        else:
            points.append(Point(values, prediction))
    if problem is not None and all(point.prediction is None for point in points):
        raise problem
    return Sweep(names, tuple(points))


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 70, 60, 30, 190


def _picture(names: tuple[str, ...], lines: dict[tuple[str, ...], list[tuple[str, float]]]) -> str:
    ticks = list(dict.fromkeys(value for points in lines.values() for value, _ in points))
    most = max((y for points in lines.values() for _, y in points), default=0) or 1.0
    inner, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: str) -> float:
        return LEFT + inner * (ticks.index(value) + 0.5) / len(ticks)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - tall * rate / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for part in range(5):
        rate = most * part / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + inner}" y1="{y(rate):.1f}" y2="{y(rate):.1f}" '
            f'stroke="#ddd"/><text x="{LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">'
            f"{rate:.4g}</text>"
        )
    for value in ticks:
        parts.append(
            f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{escape(value)}</text>"
        )
    parts.append(
        f'<text x="{LEFT + inner / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(names[0])}'
        f'</text><text x="{LEFT - 50}" y="{TOP - 12}">tokens per second</text>'
    )
    for number, (others, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(value):.1f},{y(rate):.1f}" for value, rate in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(v):.1f}" cy="{y(r):.1f}" r="3.5" fill="{colour}"/>' for v, r in points
        ]
        if others:
            label = ", ".join(
                f"{name.rpartition('.')[2]} {value}"
                for name, value in zip(names[1:], others, strict=True)
            )
            at = TOP + 10 + 18 * number
            parts.append(
                f'<text x="{LEFT + inner + 14}" y="{at}" fill="{colour}">{escape(label)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])
