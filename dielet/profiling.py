"""Whether anything is being profiled, and what the host tells then.

This stands below everything that can be profiled, so that with no profiler on nothing of it is
loaded: a mark then costs one comparison.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from time import perf_counter_ns
from typing import Any

from dielet.errors import UsageError

SWITCH, FOLDER = "DIELET_PROFILER", "DIELET_PROFILER_DIR"
_ON, _OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

Listener = Callable[[Any, str, int, int, bool], None]
"""Told of the host's work: runtime, what, start and end in `perf_counter_ns`, and whether it was
for the runtime's next execution (or else for its last)."""

listener: Listener | None = None
runtimes: weakref.WeakKeyDictionary[Any, bool | None] = weakref.WeakKeyDictionary()
"""Loaded runtimes: profiled always (True), never (False), or when a session asks for it (None)."""

on_load: Callable[[Any], None] | None = None
"""A running session's wish to know of further runtimes."""

_NOTHING = nullcontext()


class _Mark:
    __slots__ = ("_before", "_begin", "_runtime", "_work")

    def __init__(self, runtime: Any, work: str, before: bool) -> None:
        self._runtime, self._work, self._before = runtime, work, before

    def __enter__(self) -> None:
        self._begin = perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        end = perf_counter_ns()
        told = listener  # another thread may end the session between the two lines
        if told is not None:
            told(self._runtime, self._work, self._begin, end, self._before)


def mark(runtime: Any, work: str, before: bool = False) -> AbstractContextManager[None]:
    """Around work of the host for `runtime`; `before`: for its next execution."""
    return _NOTHING if listener is None else _Mark(runtime, work, before)


def loaded(runtime: Any, profiler: bool | None = None) -> None:
    """Make a runtime known.  `profiler` None: decided by the environment and by sessions.

    Raises UsageError when the environment variable is neither on nor off.
    """
    if profiler is None and switched_on():
        profiler = True
    runtimes[runtime] = profiler
    if profiler:
        import_module("dielet.profiler.session").begin_with_process()
    if on_load is not None:
        on_load(runtime)


def switched_on() -> bool:
    """What the environment variable says."""
    value = os.environ.get(SWITCH, "").strip().lower()
    if value in _ON:
        return True
    if value in _OFF:
        return False
    raise UsageError(f"{SWITCH} is {value!r}; set it to 1 to profile, or to 0")
