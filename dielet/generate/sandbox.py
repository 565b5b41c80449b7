"""Hugging Face's template environment, bounded in work and size, for templates nobody trusts.

jinja2's immutable sandbox keeps a template from reaching what it should not.  This one also keeps
it from running without end and from filling the memory, as far as that can be counted.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, CodeType
from typing import Any

import jinja2.ext
import jinja2.sandbox
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.visitor import NodeTransformer

MOST_STEPS = 1_000_000  # half a second or so; a long chat takes some thousand
MOST_CHARACTERS = 1 << 22  # of the prompt, and of anything on the way to it
_MOST_BITS = 1 << 12  # of whole numbers
_STEP = 1024  # characters that come with a step; more are further steps
_ITEMS = 4  # items of a list, and of lists in it, that take a step
_ITEM = 8  # characters that an item counts for: it takes as much room
_WIDEST = 9_999  # that text may be filled up to, in formats and in the following
_FILLING = {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"}  # methods
_FILLING_FILTERS = {"batch", "center", "indent", "round", "slice", "tojson"}
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[-#0 +\d.]*(\d{5}|\*)")  # a width above it
_WIDE_SPEC = re.compile(r"\d{5}|\{")  # the same after the colon of a field of format()


class Refusal(jinja2.TemplateError):
    """`raise_exception(...)`: the template's own words about the messages."""


class Limit(jinja2.TemplateError):
    """The template does more, or makes something larger, than a chat template may."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment of one rendering, which may take MOST_STEPS steps.

    A step is a turn of a loop, a call, a filter, a list, or an output, of up to 1024 characters.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=self.bounded,
            optimized=False,  # which takes exponentially long over filters of filters
        )
        self._steps = MOST_STEPS
        self.filters["tojson"] = _tojson
        self.filters = {name: self._counted(name, f) for name, f in self.filters.items()}
        self.filters.update(turns=self.turns, bounded=self.bounded)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = Dict()
        self.globals["namespace"] = Names
        del self.globals["lipsum"]  # any amount of Latin

    def turns(self, items: Iterable[Any]) -> Iterator[Any]:
        """`items`, each a step."""
        for item in items:
            self._spend(1)
            yield item

    def bounded(self, value: Any) -> Any:
        """`value`, a step, unless it is too large."""
        items, size = _size(value)
        _check_size(_ITEM * items + size)
        self._spend(1 + items // _ITEMS + size // _STEP)
        return value

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # jinja2 has wrapped str.format
        if isinstance(method, BuiltinMethodType):
            if method.__name__ in _FILLING:
                _check_widths((*args, *kwargs.values()))
            if method.__name__ in ("format", "format_map"):
                _check_format(str(method.__self__))
        if isinstance(function, LoopContext) and args:  # a loop that is recursive
            args = (self.turns(args[0]), *args[1:])
        self._spend(1)
        return self.bounded(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_percent(left)
        if isinstance(left, int) and isinstance(right, int):
            _check_integers(operator, left, right)
        elif operator == "*":
            times, other = (right, left) if isinstance(right, int) else (left, right)
            items, size = _size(other)
            _check_size((_ITEM * items + size) * (times if isinstance(times, int) else 1))
        return self.bounded(super().call_binop(context, operator, left, right))

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise Limit(f"it takes more than {MOST_STEPS} steps; is there an endless loop in it?")

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose every use is a step."""

        @wraps(function)  # with the marks that jinja2 puts on functions
        def counted(*args: Any, **kwargs: Any) -> Any:
            if name in _FILLING_FILTERS:
                _check_widths((*args[1:], *kwargs.values()))
            elif name == "format":
                _check_percent(str(args[0]))
            return self.bounded(function(*args, **kwargs))

        return counted


class Counting(NodeTransformer):
    """Lets the loops of a template count their turns, and bounds what it puts together."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter("turns", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("bounded", node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """A list of twice a list of twice a list ... has few items, and no end when written out."""
        self.generic_visit(node)
        return _filter("bounded", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filter("bounded", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx == "store" else _filter("bounded", node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filter("bounded", node.filter)
        return node


def _filter(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


def compiled(text: str) -> CodeType:
    """The code of a template.  Raises whatever jinja2 and Python find wrong with it."""
    environment = Sandbox()
    tree = Counting().visit(environment.parse(text))
    return environment.compile(tree)


def render(code: CodeType, variables: Mapping[str, Any]) -> str:
    """What the template makes of `variables`.  Raises Refusal, Limit, or anything it causes."""
    environment = Sandbox()
    template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    pieces = []
    size = 0
    for piece in template.generate(variables):
        size += len(piece)
        _check_size(size)
        pieces.append(piece)
    return "".join(pieces)


def _size(value: Any) -> tuple[int, int]:
    """Items, those of lists in lists too, and characters; no more than are too many."""
    if isinstance(value, str | bytes):
        return 0, len(value)
    items = size = 0
    inside = [value]
    while inside and _ITEM * items + size <= MOST_CHARACTERS:
        value = inside.pop()
        if isinstance(value, str | bytes):
            size += len(value)
        elif isinstance(value, dict):
            items += len(value)
            inside += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            items += len(value)
            inside += value
    return items, size


def _check_integers(operator: str, left: int, right: int) -> None:
    """Hold the result of `*` and `**`, the operators by which numbers get long."""
    bits = left.bit_length() + right.bit_length()
    if operator == "**":
        bits = left.bit_length() * abs(right)
    if operator in ("*", "**") and bits > _MOST_BITS:
        raise Limit(f"it calculates with whole numbers of more than {_MOST_BITS} bits")


def _check_size(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise Limit(f"it makes something of more than {MOST_CHARACTERS} characters or items")


def _check_widths(arguments: Iterable[Any]) -> None:
    """What a method or filter is given that fills up to any width."""
    if any(isinstance(value, int) and abs(value) > _WIDEST for value in arguments):
        raise Limit(f"it fills text up to more than {_WIDEST} characters")


def _check_percent(text: str) -> None:
    if _WIDE_PERCENT.search(text):
        raise Limit(f"it formats with a width that is * or more than {_WIDEST}")


def _check_format(text: str) -> None:
    if any(_WIDE_SPEC.search(spec or "") for _, _, spec, _ in string.Formatter().parse(text)):
        raise Limit(f"it formats with a width that is a field or more than {_WIDEST}")


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class Names(jinja2.utils.Namespace):
    """`namespace()` without underscored attributes, which reach into CPython."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that namespace(self=...) works
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


class Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the real type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own filter: no HTML escapes, keys in their order."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise Refusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace attribute may not begin with an underscore: {name!r}")
