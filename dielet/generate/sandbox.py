"""Hugging Face's template environment, bounded in work and size, for templates nobody trusts.

jinja2's immutable sandbox keeps a template from reaching what it should not.  This one also keeps
it from running without end and from filling the memory, as far as that can be counted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, CodeType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, markup_join, str_join
from jinja2.visitor import NodeTransformer

from dielet.generate.growth import (
    ITEM,
    Limit,
    check_filter,
    check_integers,
    check_method,
    check_percent,
    check_size,
    deep,
    room,
    size_of,
)

MOST_STEPS = 500_000  # a second at the worst; a long chat takes some thousand
_MOST_BITS = 1 << 12  # of whole numbers
_STEP = 256  # bytes of text that come with a step; more are further steps
_ITEMS = 4  # items of a list, and of lists in it, that take a step
_PATH = 16  # characters of what a filter is given that it may look up for every item in a step
# Filters that do something for every item, or character, and those that do much.
_WALKING = {"batch", "dictsort", "list", "map", "max", "min", "reject", "rejectattr", "select"}
_WALKING |= {"selectattr", "slice", "sort", "sum", "title", "unique", "join"}
_SLOW = {"groupby", "pprint", "urlize", "wordwrap"}
_SLOWER = 8  # steps for an item of the latter
# What jinja2 gives some filters before what is filtered.
_OF_JINJA = (jinja2.Environment, Context, nodes.EvalContext)


class Refusal(jinja2.TemplateError):
    """`raise_exception(...)`: the template's own words about the messages."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment of one rendering, which may take MOST_STEPS steps.

    A step is a turn of a loop, a call, a filter, a list, or an output, of up to 256 bytes.
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
        self.filters.update(turns=self.turns, bounded=self.bounded, concatenated=self.concatenated)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = Dict()
        self.globals["namespace"] = Names
        del self.globals["lipsum"]  # any amount of Latin

    def turns(self, items: Iterable[Any], weight: int = 1) -> Iterator[Any]:
        """`items`, each `weight` steps."""
        for item in items:
            self._spend(weight)
            yield item

    def bounded(self, value: Any) -> Any:
        """`value`, a step, unless it is too large."""
        items, size = size_of(value)
        check_size(ITEM * items + size)
        if isinstance(value, str):
            size = sys.getsizeof(value)  # up to four bytes for a character
        self._spend(1 + items // _ITEMS + size // _STEP)
        return value

    @jinja2.pass_eval_context
    def concatenated(self, evaluation: Any, values: tuple[Any, ...]) -> Any:
        """`~` of any number of operands."""
        self.bounded(values)
        return (markup_join if evaluation.autoescape else str_join)(values)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # jinja2 has wrapped str.format
        text, plain = getattr(method, "__self__", None), isinstance(method, BuiltinMethodType)
        if plain or isinstance(text, str):  # Markup has methods of its own
            if isinstance(text, str | bytes):
                args = self._counted_items(args, 1)
            check_method(text, method.__name__, args, kwargs, plain)
        if isinstance(function, LoopContext) and args:  # a loop that is recursive
            args = (self.turns(args[0]), *args[1:])
        self._spend(1)
        return self.bounded(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str | bytes):
            check_percent(left, right)
        if isinstance(left, int) and isinstance(right, int):
            check_integers(operator, left, right, _MOST_BITS)
        elif operator == "*":
            times, other = (right, left) if isinstance(right, int) else (left, right)
            check_size(room(other) * (times if isinstance(times, int) else 1))
        return self.bounded(super().call_binop(context, operator, left, right))

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise Limit(f"it takes more than {MOST_STEPS} steps; is there an endless loop in it?")

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose every use is a step."""

        @wraps(function)  # with the marks that jinja2 puts on functions
        def counted(*args: Any, **kwargs: Any) -> Any:
            skip = 1 if args and isinstance(args[0], _OF_JINJA) else 0
            ours, args = args[:skip], args[skip:]
            options = (*args[1:], *kwargs.values())
            weight = 1 + sum(map(room, options)) // _PATH
            args = self._counted_items(args, weight, whole=name in _WALKING | _SLOW)
            check_filter(name, args, kwargs)
            if args and name in _WALKING | _SLOW and isinstance(args[0], Sized):
                self._spend(_work(name, args[0], options) * weight)
            return self.bounded(function(*ours, *args, **kwargs))

        return counted

    def _counted_items(
        self, args: tuple[Any, ...], weight: int, whole: bool = True
    ) -> tuple[Any, ...]:
        """`args` whose first one, where it makes its items as they are asked for, is counted."""
        if not args or not isinstance(args[0], Iterator) or isinstance(args[0], LoopContext):
            return args
        items = self.turns(args[0], weight)
        return (list(items) if whole else items, *args[1:])


class Counting(NodeTransformer):
    """Lets the loops of a template count their turns, and bounds what it puts together."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        written = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        node.iter = _filter("turns", node.iter, nodes.Const(1 + written // _STEP))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("concatenated", nodes.Tuple(node.nodes, "load"))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """A slice is a copy."""
        self.generic_visit(node)
        return _filter("bounded", node) if isinstance(node.arg, nodes.Slice) else node

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


def _filter(name: str, node: Any, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None)


def _work(name: str, value: Any, options: tuple[Any, ...]) -> int:
    """Steps that a filter takes over the items, or characters, of `value`."""
    if name == "sum" and any(isinstance(each, list | tuple) for each in options):
        return len(value) * (1 + room(value) // _STEP)  # every sum of lists is a list of its own
    if name == "pprint":
        return _SLOWER * (room(value) + 1) * (1 + deep(value) // (len(value) + 1))
    return len(value) * (_SLOWER if name in _SLOW else 1)


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
        check_size(size)
        pieces.append(piece)
    return "".join(pieces)


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

    def __repr__(self) -> str:
        """Without the attributes, any number of which may be large."""
        return "<Namespace>"


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
