"""The profiler: every command on a Perfetto timeline."""

from typing import TYPE_CHECKING

from dielet import lazy

if TYPE_CHECKING:
    from dielet.profiler.host import HostSlice
    from dielet.profiler.reader import Trace, read_trace
    from dielet.profiler.session import Session, Summary
    from dielet.profiler.writer import Source, TraceWriter, Written

# Reading a trace needs no runtime, and a session no reader.
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

__getattr__ = lazy.names(__name__, _LAZY)
