"""Chat templates, rendered in the sandbox and with the names that Hugging Face gives them.

A template comes with the checkpoint and is not trusted: it runs in `sandbox`, sees plain data
only, and whatever it causes there is its own fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dielet.errors import DamagedFile, UsageError

Message = Mapping[str, Any]

# The names under which a message's reasoning may be passed; templates read the first.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One compiled template.  `source` names its file in errors."""

    def __init__(self, text: str, source: str, special: Mapping[str, str]) -> None:
        import jinja2

        from dielet.generate import sandbox

        self._source = source
        self._special = dict(special)
        try:
            self._code = sandbox.compiled(text)
        # Templates make jinja2 raise anything: SyntaxError, RecursionError, AttributeError, ...
        except Exception as error:
            line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise DamagedFile(
                f"{source}: {line}not a valid chat template: {_one_line(error)}; correct it, or "
                "remove it (prompts are then continued as they are), and compile again"
            ) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt for `messages` (dicts with `role` and `content`), ready to be answered.

        `variables` (enable_thinking, ...) are passed on to the template, as are the strings of
        the special tokens.  Raises UsageError with the template's own words when it refuses
        the messages, DamagedFile when it fails on the plainest ones too.
        """
        from dielet.generate import sandbox

        names = {
            "messages": normalised(messages),
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **self._special,
            **{name: plain(value) for name, value in variables.items()},
        }
        try:
            return sandbox.render(self._code, names)
        except sandbox.Refusal as error:
            raise UsageError(f"{self._source} refuses these messages: {_one_line(error)}") from None
        # Templates raise anything, as above; of ours, nothing but their data runs in there.
        except Exception as error:
            what = f"{type(error).__name__}: {_one_line(error)}"
        # Outside of the handler, whose error holds on to all that the template has made.
        if self._fails_on({**names, "messages": [{"role": "user", "content": "hello"}]}):
            raise DamagedFile(
                f"{self._source} fails on any messages: {what}; correct it and compile again, "
                "or pass raw text"
            )
        raise UsageError(
            f"{self._source} fails on these messages: {what}; change them or pass raw text"
        )

    def _fails_on(self, names: Mapping[str, Any]) -> bool:
        from dielet.generate import sandbox

        try:
            sandbox.render(self._code, dict(names))
        except sandbox.Refusal:
            return False  # in its own words, so it works
        except Exception:
            return True
        return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


def check_unicode(text: str, what: str) -> None:
    """UsageError when `text` has no UTF-8: half a character, or a byte that was no text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = "\udc80" <= text[error.start] <= "\udcff"
        bad = "a byte that could not be decoded" if byte else "half a character (surrogate)"
        raise UsageError(
            f"{what} has {bad} at position {error.start}; give valid Unicode text"
        ) from None


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as plain dicts, keys without a value dropped, reasoning under every known name."""
    if not messages:
        raise UsageError("the list of messages is empty; give at least one message")
    result = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(
                f"message {message!r:.80} is not a dict with a 'role' "
                "('system', 'user', 'assistant') and a 'content'"
            )
        for key, value in message.items():
            if isinstance(value, str):
                check_unicode(value, f"{key} of message {number}")
        try:
            item = {str(k): plain(v) for k, v in message.items() if v is not None}
        except RecursionError:
            raise UsageError(f"message {number} is nested too deeply, or holds itself") from None
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
