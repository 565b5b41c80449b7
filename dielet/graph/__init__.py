"""The decoder as a graph: one node type, one table of ops, one verifier."""

from dielet.graph.builder import GraphBuilder
from dielet.graph.fuse import fuse
from dielet.graph.node import OPS, Graph, Node, Value, verify_graph

__all__ = ["OPS", "Graph", "GraphBuilder", "Node", "Value", "fuse", "verify_graph"]
