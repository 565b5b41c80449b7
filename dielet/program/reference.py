"""The command reference page, made from the entries: what docs/commands.md must say."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from dielet.program.commands import ENTRIES, Entry
from dielet.program.types import SPACES

INTRODUCTION = """\
# Commands

Made from the entries in `dielet/program/commands/` by `python tools/reference.py`; do not edit.

A program is a list of commands. Each stands in the queue of one engine of one chiplet, starts when
its waits are met, and may raise its queue's semaphore by one when it completes. `valid` rows of the
chunk are real and `past` tokens are already in the cache: both are bound when the program runs.
"""


def reference() -> str:
    """The whole page, as Markdown."""
    return "\n".join([INTRODUCTION, _spaces(), *_entries()])


def _spaces() -> str:
    return f"Address spaces: {', '.join(f'`{space}`' for space in SPACES)}.\n"


def _entries() -> Iterator[str]:
    for kind in sorted(ENTRIES):
        yield _entry(ENTRIES[kind])


def _entry(entry: Entry) -> str:
    rows = [("reads", entry.reads), ("updates", entry.updates), ("writes", entry.writes)]
    operands = "\n".join(f"| {name} | {_roles(roles)} |" for name, roles in rows if roles)
    static = ", ".join(f"`{name}`" for name in entry.static) or "none"
    if entry.options:
        static += ", and where given " + ", ".join(f"`{name}`" for name in entry.options)
    return (
        f"## {entry.kind}\n\n"
        f"{inspect.getdoc(type(entry))}\n\n"
        f"| | |\n|---|---|\n"
        f"| engine | {entry.engine} |\n"
        f"{operands}\n"
        f"| selects the kernel | {static} |\n"
        f"| tolerance of kernels | {entry.tolerance:.1g} of the largest magnitude |\n"
        f"| source | `{_source(entry)}` |\n"
    )


def _roles(roles: str) -> str:
    names = (f"`{r.rstrip('?')}`" + (" (optional)" if r[-1] == "?" else "") for r in roles.split())
    return ", ".join(names)


def _source(entry: Entry) -> str:
    return type(entry).__module__.replace(".", "/") + ".py"
