"""The analysis: what a trace says about where the time went, and what to do about it."""

from typing import TYPE_CHECKING

from dielet import lazy

if TYPE_CHECKING:
    from dielet.analysis.api import analyze
    from dielet.analysis.schema import Analysis

__all__ = ["Analysis", "analyze"]

__getattr__ = lazy.names(__name__, {"Analysis": "schema", "analyze": "api"})
