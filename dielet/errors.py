"""The errors that users see: one line each, saying what was wrong, the value seen, the limit, the
next step.  Each is also the built-in exception that Python users expect in its place."""

import re

MOST = 1500  # characters of a message; of a longer one the beginning and the end are kept
_END = 250  # where the next step stands
_BREAKS = re.compile(r"[ \t]*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


class DieletError(Exception):
    """Base of every error that dielet raises on purpose.

    As text it is one line, whatever the file holds that it quotes.
    """

    def __str__(self) -> str:
        return _line(str(self.args[0])) if self.args else ""


def _line(text: str) -> str:
    """`text` without line breaks, control characters and an endless middle."""
    text = _BREAKS.sub(" ", _cut(text))
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - _END - 5]} ... {text[-_END:]}"


class UsageError(DieletError, ValueError):
    """An option or argument is unknown, out of range, or contradicts another."""


class MissingFile(DieletError, FileNotFoundError):
    """A file or directory that was named does not exist."""


class DamagedFile(DieletError, ValueError):
    """A file exists but its content is truncated, altered, or not what its name promises."""


class Unsupported(DieletError, ValueError):
    """A valid model, format or machine that dielet does not handle; the message says what is."""


class CapacityError(DieletError, ValueError):
    """A prompt, cache or memory does not fit; the message names both numbers."""


class NumericError(DieletError, ArithmeticError):
    """NaN or infinity where a number was expected."""


class InternalError(DieletError, RuntimeError):
    """Our own invariant failed: a bug in dielet, not in the input."""
