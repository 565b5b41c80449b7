"""Divide a graph over chiplets: which node is cut along which axis, and where."""

from dielet.partition.cut import Cut, Division, Range, share
from dielet.partition.local import kv_range
from dielet.partition.plan import PLANS, divide

__all__ = ["PLANS", "Cut", "Division", "Range", "divide", "kv_range", "share"]
