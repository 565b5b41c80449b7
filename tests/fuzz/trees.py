"""Strategies for files that are trees: right ones with a few values changed into anything."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

LEFT_OUT = object()
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([31, 32, 64, 65, 128, 2**31, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1, 10**30]),
    st.sampled_from([0.0, -0.0, 0.5, 1e-320, 1e18, 1e308, float("inf"), float("nan")]),
)
TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "\n", "a" * 5000, "../x", "\x00", "é\u2028", "{layer}", "1 GB/s", "inf"]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def paths(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a tree, inner ones too."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield (*above, key)
            yield from paths(value, (*above, key))


def changed(trees: Sequence[Any], more: Sequence[str] = ()) -> st.SearchStrategy[Any]:
    """One of the trees with up to four values replaced, left out, or taken from another place.

    more: keys that the top may have besides.
    """
    return st.integers(0, len(trees) - 1).flatmap(lambda n: _changes(trees[n], more))


def _changes(tree: Any, more: Sequence[str]) -> st.SearchStrategy[Any]:
    places = [*paths(tree), *((key,) for key in more)]
    known = st.sampled_from(places).map(lambda place: _at(tree, place))
    change = st.tuples(st.sampled_from(places), st.one_of(VALUES, known, st.just(LEFT_OUT), LEAVES))
    return st.lists(change, min_size=1, max_size=4).map(lambda changes: _applied(tree, changes))


def _at(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _applied(tree: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Any:
    tree = copy.deepcopy(tree)
    for place, value in changes:
        inside = _at(tree, place[:-1])
        try:
            if value is LEFT_OUT:
                del inside[place[-1]]
            else:
                inside[place[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            pass  # what was around it is gone
    return tree


def toml(values: dict[str, Any], notes: dict[str, str] | None = None) -> str:
    """A tree as TOML, as far as it can be; `notes` are comments by key."""
    notes = notes or {}
    return "".join(
        f"{json.dumps(str(key))} = {_toml(value)} {notes.get(key, '# assumed')}\n"
        for key, value in values.items()
    )


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        parts = ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items())
        return "{" + parts + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if value is None:
        return '""'
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
