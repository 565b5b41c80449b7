"""The profiler: every command on a Perfetto timeline."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dielet.profiler.host import HostSlice
    from dielet.profiler.reader import Trace, read_trace
    from dielet.profiler.session import Session, Summary
    from dielet.profiler.writer import Source, TraceWriter, Written

_LAZY = {
    "HostSlice": "host",
    "Session": "session",
    "Source": "writer",
    "Summary": "session",
    "Trace": "reader",
    "TraceWriter": "writer",
    "Written": "writer",
    "read_trace": "reader",
}
__all__ = [
    "HostSlice", "Session", "Source", "Summary", "Trace", "TraceWriter", "Written", "read_trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Reading a trace needs no runtime, and a session no reader: each loads what it needs."""
    if name not in _LAZY:
        raise AttributeError(f"module 'dielet.profiler' has no attribute {name!r}")
    return getattr(import_module(f"dielet.profiler.{_LAZY[name]}"), name)
