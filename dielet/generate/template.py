"""Chat templates, rendered in the sandbox and with the names that Hugging Face gives them.

A template comes with the checkpoint and is not trusted: it runs in jinja2's immutable sandbox
and sees plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dielet.errors import DamagedFile, UsageError

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]

# The names under which a message's reasoning may be passed; templates read the first.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One compiled template.  `source` names its file in errors."""

    def __init__(self, text: str, source: str, special: Mapping[str, str]) -> None:
        import jinja2

        self._source = source
        self._special = dict(special)
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise DamagedFile(
                f"{source}: line {error.lineno}: not a valid chat template: {error.message}; "
                "correct it, or pass raw text (--raw)"
            ) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt for `messages` (dicts with `role` and `content`), ready to be answered.

        `variables` (enable_thinking, ...) are passed on to the template, as are the strings of
        the special tokens.  Raises UsageError with the template's own words when it refuses
        the messages.
        """
        import jinja2

        names = {
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **self._special,
            **{name: plain(value) for name, value in variables.items()},
        }
        try:
            return self._template.render(messages=normalised(messages), **names)
        except jinja2.TemplateError as error:
            what = " ".join(str(error).split())
            raise UsageError(f"{self._source} refuses these messages: {what}") from None
        except (TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
            what = " ".join(str(error).split())
            raise UsageError(
                f"{self._source} fails on these messages: {type(error).__name__}: {what}"
            ) from None


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as plain dicts, keys without a value dropped, reasoning under every known name."""
    if not messages:
        raise UsageError("the list of messages is empty; give at least one message")
    result = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(
                f"message {message!r:.80} is not a dict with a 'role' "
                "('system', 'user', 'assistant') and a 'content'"
            )
        item = {str(k): plain(v) for k, v in message.items() if v is not None}
        reasoning = next((item[name] for name in _REASONING if name in item), None)
        if reasoning is not None:
            item = {"thinking": reasoning, **item, "reasoning_content": reasoning}
        result.append(item)
    return result


def plain(value: Any) -> Any:
    """`value` rebuilt from JSON types; anything else becomes a placeholder naming its type.

    Objects have methods that the sandbox cannot know to be dangerous.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    if isinstance(value, Mapping):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    return f"<{type(value).__name__}>"


def _environment() -> jinja2.Environment:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    import jinja2.utils

    class GenerationTag(jinja2.ext.Extension):
        """`{% generation %}` marks the assistant's words for training; here it only groups."""

        tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_body")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

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

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _new_dict()
    environment.globals["namespace"] = Names
    return environment


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
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _new_dict() -> Callable[..., dict[Any, Any]]:
    class Dict:
        """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the real type."""

        def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args, **kwargs)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    return Dict()


def _refuse_underscore(name: object) -> None:
    import jinja2

    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace attribute may not begin with an underscore: {name!r}"
        )
