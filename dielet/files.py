"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dielet.errors import DieletError


class CannotWrite(DieletError, OSError):
    """A file could not be written, and is as it was before."""

    def __str__(self) -> str:
        return str(self.args[0])


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and rename it.  Raises CannotWrite with the system's reason."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise CannotWrite(
            f"{path} cannot be written: {error.strerror}; choose another place"
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
