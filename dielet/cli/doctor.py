"""Say what dielet finds on this machine, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

from dielet import __version__
from dielet.cli.console import Console, size, table
from dielet.cli.doctor_caches import Damaged, bytes_of, damaged_of_ours, folders, hub_facts
from dielet.cli.exits import FAILED
from dielet.errors import UsageError

HELP = "versions, processor, memory, measured limits, caches, and what is missing"

NEEDED = ("numpy", "llvmlite", "tokenizers", "jinja2", "rich", "msgspec")
USEFUL = {
    "isal": ("traces that are compressed four times as fast", "pip install isal"),
    "pip": ("`dielet demo`, which fetches its model with it", "python -m ensurepip"),
    "transformers": ("dielet.compat.transformers and `dielet exec`", "pip install 'dielet[hf]'"),
    "torch": ("dielet.compat.transformers and `dielet exec`", "pip install 'dielet[hf]'"),
    "pyarrow": ("`dielet analyze --parquet`", "pip install 'dielet[arrow]'"),
}
COUNTS = ("cores", "cached_models", "unfinished")  # of the facts that are whole numbers


@dataclass
class Findings:
    """Sections of facts for people and for --json, and what is wrong or missing."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the common options."""


def run(args: argparse.Namespace, console: Console) -> int:
    findings = Findings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a cache: it is a problem of its own
        for name, examine in EXAMINATIONS.items():
            findings.sections[name] = examine(findings)
    console.result(
        {
            **findings.sections,
            "damaged": [asdict(one) for one in findings.damaged],
            "problems": findings.problems,
            "missing": findings.hints,
        }
    )
    for name, facts in findings.sections.items():
        console.out(name)
        console.out(table({f"  {key}": _shown(key, value) for key, value in facts.items()}))
    for hint in findings.hints:
        console.out(f"missing: {hint}")
    for one in findings.damaged:
        console.out(f"damaged: {one.path}: {one.reason}; {one.remedy}")
    for problem in findings.problems:
        console.out(f"problem: {problem}")
    if not findings.problems:
        damaged = len(findings.damaged)
        console.out(f"ready, but for what is damaged ({damaged})." if damaged else "ready.")
    return FAILED if findings.problems else 0


def versions(findings: Findings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "dielet": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in NEEDED:
        found[name] = _version(name)
        if found[name] is None:
            findings.problems.append(f"{name} is not installed; run: pip install {name}")
    for name, (purpose, remedy) in USEFUL.items():
        if util.find_spec(name) is not None:
            found[name] = _version(name)
        else:
            findings.hints.append(f"{name}, for {purpose}; run: {remedy}")
    return found


def processor(findings: Findings) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": _cpu_name(), "cores": _cores()}
    try:
        from dielet.codegen import TARGETS, host_target
        from dielet.codegen.processor import describe

        target, here = host_target(), describe(None)
    except Exception as error:  # whatever it is, it is what a user came here to learn
        findings.problems.append(f"no code can be generated: {type(error).__name__}: {error}")
        return facts
    facts["target"] = target.name
    facts["targets"] = list(TARGETS)
    facts["runs"] = [name for name, each in TARGETS.items() if here.has(each.needs)]
    needs = dict.fromkeys(need for each in TARGETS.values() for need in each.needs)
    facts["features"] = [need for need in needs if here.has([need])]
    machine = here.triple.partition("-")[0]
    lacking = [
        f"{need} (for {name})"
        for name, each in TARGETS.items()
        if each.triple.partition("-")[0] == machine
        for need in each.needs
        if not here.has([need])
    ]
    if lacking:
        facts["lacks"] = lacking
    return facts


def memory(findings: Findings) -> dict[str, Any]:
    facts = {"total": 0, "available": 0}
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        facts = {"total": values["MemTotal"], "available": values["MemAvailable"]}
    except (OSError, KeyError):
        facts["total"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _control_group_limit()
    if limit is not None and limit < facts["total"]:
        facts["limit"] = limit
    return facts


def caches(findings: Findings) -> dict[str, Any]:
    from dielet.paths import cache_dir

    root = cache_dir()
    facts: dict[str, Any] = {"directory": str(root)}
    facts |= {child.name: bytes_of(child) for child in folders(root)}
    findings.damaged += damaged_of_ours(root)
    parent = next(p for p in (root, *root.parents) if p.exists())
    facts["free"] = shutil.disk_usage(parent).free
    try:  # really: the superuser may write anywhere, says os.access
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        findings.problems.append(
            f"{root} cannot be written ({error.strerror}), so nothing is cached; "
            "set XDG_CACHE_HOME to a directory that can be"
        )
    return facts


def hub(findings: Findings) -> dict[str, Any]:
    """Where models are fetched from by their ids.  Whether there is a token, never which."""
    from dielet.checkpoint.hub_settings import hub_settings

    try:
        settings = hub_settings()
    except UsageError as error:
        findings.problems.append(str(error))
        return {}
    facts, damaged = hub_facts(settings.cache)
    findings.damaged += damaged
    return {
        "endpoint": settings.endpoint,
        "cache": str(settings.cache),
        **facts,
        "offline": settings.offline,
        "token": f"of {settings.token_from}" if settings.token_from else "none",
    }


def limits(findings: Findings) -> dict[str, Any]:
    """Measured in a fraction of a second, on all cores; `dielet run` holds itself against them."""
    from dielet.host.limits import probes, read_bandwidth

    threads = _cores()
    try:
        rates = {kind: probes().rate(kind, threads) / 1e9 for kind in ("int8", "bf16", "fp32")}
        return {
            "read_gb_s": round(read_bandwidth(threads), 1),
            **{f"{kind}_gop_s": round(rate) for kind, rate in rates.items()},
        }
    except Exception as error:
        findings.problems.append(f"the limits cannot be measured: {type(error).__name__}: {error}")
        return {}


EXAMINATIONS: dict[str, Callable[[Findings], dict[str, Any]]] = {
    "versions": versions,
    "processor": processor,
    "memory": memory,
    "limits": limits,
    "caches": caches,
    "hub": hub,
}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _shown(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key not in COUNTS and not key.endswith("_s"):
        return size(value)
    return "not installed" if value is None else str(value)


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _control_group_limit() -> int | None:
    """The memory limit of a container, when there is one."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
