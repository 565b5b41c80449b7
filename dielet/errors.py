"""The errors that users see: one line each, saying what was wrong, the value seen, the limit, the
next step.  Each is also the built-in exception that Python users expect in its place."""


class DieletError(Exception):
    """Base of every error that dielet raises on purpose."""


class UsageError(DieletError, ValueError):
    """An option or argument is unknown, out of range, or contradicts another."""


class MissingFile(DieletError, FileNotFoundError):
    """A file or directory that was named does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


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
