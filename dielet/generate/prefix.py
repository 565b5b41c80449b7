"""Keys and values that answers leave behind, found again by the tokens that they belong to.

What the model makes of a token depends on the tokens before it alone, so whatever begins a prompt
and was computed before is copied instead.  Sequences are cut into panels of 32 positions, the unit
of every format of the cache, and stand in a tree: what several have in common is kept once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dielet.formats.packed import PANEL

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Prefix:
    """The first `length` tokens of a prompt, as panels; the last one may hold more than that."""

    length: int = 0
    panels: tuple[Bytes, ...] = ()


@dataclass(eq=False, slots=True)
class _Node:
    tokens: tuple[int, ...]  # fewer than a panel has only where a sequence ended
    panel: Bytes
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class PrefixCache:
    """At most `limit` bytes of panels; those that were used longest ago make way.  Thread-safe."""

    def __init__(self, limit: int, panel_bytes: int) -> None:
        self.limit, self.panel_bytes = limit, panel_bytes
        self._root = _Node((), np.zeros(0, np.uint8))
        # Every node with its parent, the least recently used first. Nodes do not know their
        # parents: a cycle would keep the memory until the garbage collector comes by.
        self._recent: OrderedDict[_Node, _Node] = OrderedDict()
        # A signal handler may end an answer amid one of these methods: hence reentrant, and no
        # loop goes over a dictionary itself.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        return len(self._recent) * self.panel_bytes

    def find(self, tokens: Sequence[int]) -> Prefix:
        """The longest beginning of `tokens` that is known."""
        with self._lock:
            path, length = [self._root], 0
            while length < len(tokens):
                child, same = _nearest(path[-1], tuple(tokens[length : length + PANEL]))
                if child is None:
                    break
                path.append(child)
                length += same
                if same < PANEL:
                    break
            self._touch(path)
            return Prefix(length, tuple(node.panel for node in path[1:]))

    def put(self, tokens: Sequence[int], panel: Callable[[int], Bytes]) -> None:
        """Keep `tokens`; `panel(n)` gives a copy of the n-th panel of 32, if that is new.

        Of a sequence that is larger than the limit, the beginning is kept.
        """
        pieces = [tuple(tokens[at : at + PANEL]) for at in range(0, len(tokens), PANEL)]
        with self._lock:
            del pieces[self.limit // self.panel_bytes :]
            path = [self._root]
            for piece in pieces:
                child, same = _nearest(path[-1], piece)
                if child is None or same < len(piece):
                    break
                path.append(child)
            self._touch(path)
            known = len(path) - 1
            self._make_room(len(pieces) - known)
            for number, piece in enumerate(pieces[known:], known):
                path.append(self._add(path[-1], piece, panel(number)))
            self._touch(path)

    def clear(self) -> None:
        """Free all of it, and keep nothing from now on."""
        with self._lock:
            self.limit = 0
            self._make_room(0)

    def _add(self, parent: _Node, piece: tuple[int, ...], panel: Bytes) -> _Node:
        for shorter in list(parent.children.values()):
            if shorter.tokens == piece[: len(shorter.tokens)]:  # its sequence goes on in this one
                self._remove(shorter)
        node = _Node(piece, panel)
        self._recent[node] = parent
        parent.children[piece] = node
        return node

    def _touch(self, path: list[_Node]) -> None:
        # From the end, so that parents are more recent than children: ends make way first.
        for node in reversed(path[1:]):
            if node in self._recent:
                self._recent.move_to_end(node)

    def _make_room(self, panels: int) -> None:
        while self._recent and self.nbytes + panels * self.panel_bytes > self.limit:
            self._remove(next(iter(self._recent)))

    def _remove(self, node: _Node) -> None:
        parent = self._recent[node]
        if parent.children.get(node.tokens) is node:
            del parent.children[node.tokens]
        # Last, as it is first in `_add`: after an interrupt what is in the tree is counted.
        self._recent.pop(node, None)


def _nearest(parent: _Node, piece: tuple[int, ...]) -> tuple[_Node | None, int]:
    """The child that agrees with most of `piece`, and with how many tokens; (None, 0) if none."""
    child = parent.children.get(piece)
    if child is not None:
        return child, len(piece)
    best, most = None, 0
    for child in list(parent.children.values()):
        same = common_length(child.tokens, piece)
        if same > most:
            best, most = child, same
    return best, most


def common_length(old: Sequence[int], new: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    for at, (a, b) in enumerate(zip(old, new, strict=False)):
        if a != b:
            return at
    return min(len(old), len(new))
