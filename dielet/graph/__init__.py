"""The decoder as a graph: one node type, one table of ops, one verifier."""

from dielet.graph.builder import GraphBuilder
from dielet.graph.formats import activation_format, activation_group, assign_formats
from dielet.graph.fuse import fuse
from dielet.graph.node import OPS, Graph, Node, matrices, verify_graph

__all__ = [
    "OPS",
    "Graph",
    "GraphBuilder",
    "Node",
    "activation_format",
    "activation_group",
    "assign_formats",
    "fuse",
    "matrices",
    "verify_graph",
]
