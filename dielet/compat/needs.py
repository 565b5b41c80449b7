"""The packages that these interfaces stand on, or one line that says how to get them."""

from __future__ import annotations

from importlib.util import find_spec

from dielet.errors import DieletError

PACKAGES = ("torch", "transformers")


class NotInstalled(DieletError, ImportError):
    """A package that an optional part of dielet needs is missing."""


def require() -> None:
    """Raise NotInstalled unless torch and transformers can be imported."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed here; "
            "pip install 'dielet[hf]' (on Linux install PyTorch's CPU build first, or several "
            "gigabytes of CUDA come with it)"
        )
