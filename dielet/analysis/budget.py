"""Budgets: what a trace must keep to, from a TOML file; for a check in CI."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dielet.analysis.engines import RUN
from dielet.analysis.rules import read_rules
from dielet.analysis.schema import Analysis, Budget, BudgetLine
from dielet.analysis.steps import DECODE, HOST
from dielet.errors import DamagedFile
from dielet.files import require_file, toml_values

Value = Callable[[Analysis], float | None]


def _ms(name: str) -> Value:
    def value(found: Analysis) -> float | None:
        ns = getattr(found.speed, name)
        return None if ns is None else ns * 1e-6

    return value


def _speed(name: str) -> Value:
    def value(found: Analysis) -> float | None:
        known: float | None = getattr(found.speed, name)
        return known

    return value


def _host_share(found: Analysis) -> float | None:
    return next((phase.share for phase in found.phases if phase.name == HOST), 0.0)


def _dram_share(found: Analysis) -> float | None:
    wanted = (DECODE, "DRAM")
    return next((m.share for m in found.traffic.moved if (m.phase, m.place) == wanted), None)


NUMBERS: dict[str, Value] = {
    "ttft_ms_max": _ms("ttft_ns"),
    "tpot_ms_max": _ms("token_median_ns"),
    "tpot_ms_slowest_max": _ms("token_max_ns"),
    "tokens_per_s_min": _speed("tokens_per_s"),
    "prefill_tokens_per_s_min": _speed("prefill_tokens_per_s"),
    "bytes_per_token_max": _speed("bytes_per_token"),
    "dram_bytes_per_token_max": _speed("dram_bytes_per_token"),
    "dram_share_min": _dram_share,
    "host_share_max": _host_share,
}
"""Keys that take one number; what they end in says on which side of it the trace must be."""


def _busy(found: Analysis, engine: str) -> float | None:
    """The mean over chiplets, in the whole window."""
    shares = [e.busy for e in found.engines if (e.scope, e.engine) == (RUN, engine)]
    return sum(shares) / len(shares) if shares else None


def _phase_ms(found: Analysis, phase: str) -> float | None:
    return next((p.median_ns * 1e-6 for p in found.phases if p.name == phase), None)


def _memory(found: Analysis, memory: str) -> float | None:
    return found.memory.peaks.get(memory)


TABLES: dict[str, Callable[[Analysis, str], float | None]] = {
    "busy_min": _busy,
    "busy_max": _busy,
    "phase_ms_max": _phase_ms,
    "memory_bytes_max": _memory,
}
"""Keys that take a table: by engine, phase, or memory."""

FINDINGS, COMPLETE = "forbidden_findings", "complete"
KEYS = (*NUMBERS, *TABLES, FINDINGS, COMPLETE)


def read_budget(path: str | Path) -> Mapping[str, object]:
    """The budget at `path`; DamagedFile names the first thing in it that is wrong."""
    path = Path(path)
    require_file(path, "a budget file, see docs/analysis.md")
    try:
        given = toml_values(path.read_text())
    except ValueError as error:
        raise DamagedFile(f"{path} is no TOML file: {error}; see docs/analysis.md") from None
    for key, value in given.items():
        if key not in KEYS:
            raise DamagedFile(f"{path}: unknown key {key!r}; known are {', '.join(KEYS)}")
        if key in NUMBERS and not _is_number(value):
            raise DamagedFile(f"{path}: {key} is {value!r}; it takes a finite number")
        if key in TABLES and not (isinstance(value, dict) and all(map(_is_number, value.values()))):
            raise DamagedFile(f"{path}: {key} is {value!r}; it takes a table of finite numbers")
        if key == COMPLETE and not isinstance(value, bool):
            raise DamagedFile(f"{path}: {COMPLETE} is {value!r}; it takes true or false")
        if key == FINDINGS:
            _check_findings(path, value)
    return given


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_findings(path: Path, value: object) -> None:
    known = [rule.name for rule in read_rules().rule]
    wrong = [name for name in value if name not in known] if isinstance(value, list) else [value]
    if wrong:
        raise DamagedFile(
            f"{path}: {FINDINGS} has {wrong[0]!r}; it takes a list of {', '.join(known)}"
        )


def check_budget(found: Analysis, path: str | Path) -> Budget:
    lines = tuple(_lines(found, read_budget(path)))
    return Budget(str(path), all(line.passed for line in lines), lines)


def _lines(found: Analysis, budget: Mapping[str, object]) -> Iterator[BudgetLine]:
    for key, limit in budget.items():
        if key in NUMBERS:
            yield _line(key, key, NUMBERS[key](found), float(limit))  # type: ignore[arg-type]
        elif key in TABLES:
            assert isinstance(limit, dict)
            for name, number in limit.items():
                value = TABLES[key](found, name)
                yield _line(key, f"{key}.{name}", value, float(number))
        elif key == FINDINGS:
            assert isinstance(limit, list)
            for name in limit:
                every = (*found.findings, *found.further_findings)
                mine = [f.title for f in every if f.rule == name]
                text = f"{name}: {'; '.join(mine) or 'not found'}"
                yield BudgetLine(f"{key}.{name}", "none", float(len(mine)), not mine, text)
        elif limit:
            text = "; ".join(found.coverage.lacks) or "complete"
            complete = found.coverage.complete
            yield BudgetLine(COMPLETE, "true", float(complete), complete, f"complete: {text}")


def _line(key: str, name: str, value: float | None, limit: float) -> BudgetLine:
    most = key.endswith("_max")
    sign = "at most" if most else "at least"
    if value is None:
        text = f"{name}: the trace does not tell; {sign} {limit:g} is asked"
        return BudgetLine(name, f"{sign} {limit:g}", None, False, text)
    passed = value <= limit if most else value >= limit
    text = f"{name}: {value:.6g}, {sign} {limit:g} is asked"
    return BudgetLine(name, f"{sign} {limit:g}", value, passed, text)
