"""The analysis: what a trace says about where the time went, and what to do about it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dielet.analysis.api import analyze
    from dielet.analysis.schema import Analysis

_LAZY = {"Analysis": "schema", "analyze": "api"}
__all__ = ["Analysis", "analyze"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dielet.analysis' has no attribute {name!r}")
    return getattr(import_module(f"dielet.analysis.{_LAZY[name]}"), name)
