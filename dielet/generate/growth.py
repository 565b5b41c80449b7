"""How large what a template asks for will be, told from the arguments before anything is made."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import jinja2

MOST_CHARACTERS = 1 << 22  # of the prompt, and of anything on the way to it
ITEM = 8  # characters that an item of a list counts for: it takes as much room
_WIDEST = 9_999  # that text may be filled up to, in formats and in the following
_FILLING = {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"}  # methods
_FILLING_FILTERS = {"batch", "center", "indent", "round", "slice", "tojson"}
_PERCENT = re.compile(r"%(?:\(([^)]*)\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?")
_WIDE_SPEC = re.compile(r"\d{5}|\{")  # after the colon of a field of format()
_FLOAT = 330  # characters of the longest number in floating point, before its fraction


class Limit(jinja2.TemplateError):
    """The template does more, or makes something larger, than a chat template may."""


def size_of(value: Any) -> tuple[int, int]:
    """Items, those of lists in lists too, and characters; no more than are too many."""
    if isinstance(value, str | bytes):
        return 0, len(value)
    items = size = 0
    inside = [value]
    while inside and ITEM * items + size <= MOST_CHARACTERS:
        value = inside.pop()
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, dict):
            items += len(value)
            inside += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            items += len(value)
            inside += value
        elif isinstance(value, int) and value.bit_length() > 64:
            size += value.bit_length() // 3  # the digits
    return items, size


def room(value: Any) -> int:
    """Characters and items of `value` as one number."""
    items, size = size_of(value)
    return ITEM * items + size


def check_size(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise Limit(f"it makes something of more than {MOST_CHARACTERS} characters or items")


def check_method(
    text: Any, name: str, args: Sequence[Any], given: Mapping[str, Any], plain: bool
) -> None:
    """Hold a method of `text`; `plain` where it is CPython's own, of a string or anything else."""
    values = [*args, *given.values()]
    if plain and name in _FILLING:
        _check_widths(values)
    if not isinstance(text, str | bytes):
        return
    if name in _FILLING:
        _check_widths(values)
    if name in ("format", "format_map"):
        _check_format(str(text), values)
    elif name == "replace":
        _check_replace(text, args)
    elif name == "join" and args:
        check_size(room(args[0]) + _length(args[0]) * len(text))
    elif name == "translate" and args:
        table = args[0].values() if isinstance(args[0], dict) else args[0]
        longest = max(map(_length, table), default=0) if isinstance(args[0], dict | list) else 1
        check_size(len(text) * max(1, longest))
    elif name == "expandtabs":
        wide = next((each for each in values if isinstance(each, int)), 8)
        tabs = text.count("\t") if isinstance(text, str) else text.count(b"\t")
        check_size(len(text) + tabs * wide)
    elif name == "hex":
        check_size(len(text) * (2 + sum(map(_length, values))))


def check_filter(name: str, args: Sequence[Any], given: Mapping[str, Any]) -> None:
    """Hold a filter of jinja2; args[0] is what it filters."""
    values = [*args[1:], *given.values()]
    if name in _FILLING_FILTERS:
        _check_widths(values)
    if not args:
        return
    first = args[0]
    text = first if isinstance(first, str) else ""
    if name == "format":
        check_percent(str(first), given or tuple(args[1:]))
    elif name == "replace":
        _check_replace(str(first), [*args[1:], *given.values()])
    elif name == "join":
        check_size(room(first) + _length(first) * sum(map(_length, values)))
    elif name == "indent":
        wide = sum(each if isinstance(each, int) else _length(each) for each in values)
        check_size(len(text) + (len(text.splitlines()) + 1) * wide)
    elif name == "wordwrap":
        check_size(len(text) * (1 + sum(map(_length, values))))
    elif name == "urlize":
        check_size(len(text) + len(text.split()) * sum(map(room, values)))
    elif name == "tojson":
        _check_json(first, values)


def check_percent(text: str | bytes, values: Any) -> None:
    """Hold `text % values`."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    wide = 0
    names: Counter[str] = Counter()
    for name, *widths in _PERCENT.findall(text):
        if any(width == "*" or len(width) > 4 for width in widths):
            raise Limit(f"it formats with a width that is * or more than {_WIDEST}")
        wide += sum(int(width or 0) for width in widths)
        names[name] += bool(name)
    check_size(len(text) + wide + max([1, *names.values()]) * _written([values]))


def check_integers(operator: str, left: int, right: int, most_bits: int) -> None:
    """Hold the result of `*` and `**`, the operators by which numbers get long."""
    bits = left.bit_length() + right.bit_length()
    if operator == "**":
        bits = left.bit_length() * abs(right)
    if operator in ("*", "**") and bits > most_bits:
        raise Limit(f"it calculates with whole numbers of more than {most_bits} bits")


def _check_widths(arguments: Iterable[Any]) -> None:
    """What a method or filter is given that fills up to any width."""
    if any(isinstance(value, int) and abs(value) > _WIDEST for value in arguments):
        raise Limit(f"it fills text up to more than {_WIDEST} characters")


def _check_format(text: str, values: Sequence[Any]) -> None:
    wide = 0
    names: Counter[str] = Counter()
    for _, name, spec, _ in string.Formatter().parse(text):
        if _WIDE_SPEC.search(spec or ""):
            raise Limit(f"it formats with a width that is a field or more than {_WIDEST}")
        wide += sum(map(int, re.findall(r"\d+", spec or "")))
        if name:
            names[re.split(r"[.\[]", name)[0]] += 1
    check_size(len(text) + wide + max([1, *names.values()]) * _written(values))


def _written(values: Sequence[Any]) -> int:
    """Characters of all `values`, as a format may write them."""
    inside = values[0] if len(values) == 1 and isinstance(values[0], tuple | dict) else values
    each = inside.values() if isinstance(inside, dict) else inside
    bits = sum(value.bit_length() for value in each if isinstance(value, int))
    return room(list(values)) + bits + _FLOAT * sum(isinstance(value, float) for value in each)


def _check_replace(text: Any, values: Sequence[Any]) -> None:
    kind = bytes if isinstance(text, bytes) else str
    parts = [value for value in values if isinstance(value, kind)]
    if len(parts) < 2:
        return  # an error of its own
    old, new = parts[0], parts[1]
    times = text.count(old)
    counts = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
    check_size(len(text) + min([times, *counts]) * max(0, len(new) - len(old)))


def _check_json(value: Any, options: Sequence[Any]) -> None:
    """Indentation grows with the depth; and it and the separators may be any text."""
    wide = 0
    for option in options:
        if isinstance(option, int):
            wide += max(0, option)
        elif isinstance(option, str | list | tuple):
            wide += room(option)
    check_size(room(value) + wide * deep(value))


def deep(value: Any) -> int:
    """The items of `value`, each as often as it is deep in it; no more than are too many."""
    total = 0
    inside = [(value, 1)]
    while inside and total <= MOST_CHARACTERS:
        value, depth = inside.pop()
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            total += (len(value) + 1) * depth
            inside += [(each, depth + 1) for each in value]
    return total


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0
