"""Errors that scripts for optimum-rbln expect to be of certain built-in kinds."""

from dielet.errors import DieletError, Unsupported


class NotPossible(Unsupported, NotImplementedError):
    """An option or call of the vendor's that has no counterpart here."""


class NoRuntime(DieletError, RuntimeError):
    """The model was compiled only, or what it was compiled to has to be made anew."""


class NoBlock(DieletError, RuntimeError):
    """The KV blocks that the model was given are all taken."""


class WrongClass(DieletError, NameError):
    """A compiled model is loaded as something else than it was compiled as."""


class NotHere(DieletError, ImportError):
    """A name of the vendor's modules that dielet has not."""
