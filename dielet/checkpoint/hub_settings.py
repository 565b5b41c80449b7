"""Where the hub is and where it keeps files here: huggingface_hub's own environment variables."""

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from dielet.checkpoint.filemap import read_small
from dielet.errors import MissingFile, UsageError

_TRUE = {"1", "ON", "YES", "TRUE"}
_TIMEOUT = 10.0  # seconds without a byte; huggingface_hub's own default


@dataclass(frozen=True)
class HubSettings:
    """endpoint: address without a / at its end.  cache: the folder of `models--...`.

    token: never shown, not even in a traceback; token_from: the variable or file that it is of.
    timeout: seconds without a byte after which an answer is given up.
    """

    endpoint: str
    cache: Path
    token: str | None = field(repr=False)
    token_from: str | None
    offline: bool
    timeout: float


def hub_settings() -> HubSettings:
    """The settings that hold now.  Raises UsageError naming a variable that makes no sense."""
    token, token_from = _token()
    return HubSettings(
        endpoint=_endpoint(),
        cache=hub_cache_dir(),
        token=token,
        token_from=token_from,
        offline=is_true("HF_HUB_OFFLINE") or is_true("TRANSFORMERS_OFFLINE"),
        timeout=_timeout(),
    )


def with_token(settings: HubSettings, token: str | None, given_by: str) -> HubSettings:
    """The settings with this token, or none, instead of the environment's."""
    checked = _checked(token, given_by) if token else None
    return replace(settings, token=checked, token_from=given_by if token else None)


def hub_cache_dir() -> Path:
    """$HF_HUB_CACHE, or `hub` in the hub's home."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return _path(named) if named else _home() / "hub"


def _home() -> Path:
    if named := os.environ.get("HF_HOME"):
        return _path(named)
    return _path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"


def _path(text: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(text)))


def is_true(variable: str) -> bool:
    """Whether an environment variable switches something on, by huggingface_hub's rules."""
    return os.environ.get(variable, "").upper() in _TRUE


def _endpoint() -> str:
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not endpoint.isprintable() or " " in endpoint or "@" in endpoint:
        shown = endpoint.rpartition("@")[2][:100]  # what stands before may be a password
        raise UsageError(
            f"HF_ENDPOINT is {shown!r}; give an address such as https://huggingface.co, without a "
            "name or a password"
        )
    return endpoint


def _token() -> tuple[str | None, str | None]:
    """The token, if any, and where it is from."""
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(variable, "").strip():
            return _checked(token, variable), variable
    if is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None, None
    named = os.environ.get("HF_TOKEN_PATH")
    path = _path(named) if named else _home() / "token"
    try:
        token = read_small(path).decode().strip()
    except (MissingFile, UnicodeDecodeError):
        return None, None
    return (_checked(token, str(path)), str(path)) if token else (None, None)


def _checked(token: str, where: str) -> str:
    """A header holds visible ASCII alone, and what it refuses would be shown in its complaint."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError(f"the token of {where} has characters that no token has; set it anew")
    return token


def _timeout() -> float:
    text = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT")
    if not text:
        return _TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 1e6:
        raise UsageError(f"HF_HUB_DOWNLOAD_TIMEOUT is {text!r}; give seconds, such as 30")
    return seconds
