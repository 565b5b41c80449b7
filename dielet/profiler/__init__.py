"""The profiler: every command on a Perfetto timeline."""

from dielet.profiler.session import Session, Summary
from dielet.profiler.writer import TraceWriter

__all__ = ["Session", "Summary", "TraceWriter"]
