"""The special tokens that chat templates know by name, as tokenizer_config.json gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dielet.errors import DamagedFile

_SUFFIX = "_token"
_GROUPS = ("extra_special_tokens", "model_specific_special_tokens")  # objects of more by name


def special_tokens(values: Mapping[str, Any], where: str) -> dict[str, str | None]:
    """Name -> text, or None where the file says that there is none; {} of a file without any.

    A token is a text or an object with its `content`.  Raises DamagedFile for anything else.
    """
    groups = [group for name in _GROUPS if isinstance(group := values.get(name), dict)]
    return {
        name: _text(value, name, where)
        for group in (values, *groups)
        for name, value in group.items()
        if name.endswith(_SUFFIX) and not isinstance(value, bool)  # add_bos_token is a switch
    }


def _text(value: Any, name: str, where: str) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise DamagedFile(f"{where}: {name} is {value!r:.60}, not the text of a token")
    return text
