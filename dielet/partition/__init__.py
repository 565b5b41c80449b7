"""Divide a graph over chiplets: which node is cut along which axis, and where."""

from dielet.partition.plan import PLANS, Cut, Division, divide, share

__all__ = ["PLANS", "Cut", "Division", "divide", "share"]
