"""The hub's two end points that a model is fetched through: what there is, and one file of it."""

import http.client
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any, NoReturn
from urllib.error import URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

import msgspec

from dielet.checkpoint.hub_cache import COMMIT
from dielet.checkpoint.hub_refusals import refusal
from dielet.checkpoint.hub_settings import HubSettings
from dielet.errors import DamagedFile, MissingFile
from dielet.files import UNDECODABLE

_LISTING_BYTES = 16 << 20  # some 60,000 files
_LISTING_SECONDS = 60
_REDIRECTS = 5
_LINKED = ("X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size")
_MOVED = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_PAUSE = 60.0  # seconds, whatever the hub asks for
_ETAG = re.compile(r"[\w.-]{1,128}", re.ASCII)
_PART = re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f\x7f]{1,255}")


_LATER = "try again later, or allow more seconds without a byte with HF_HUB_DOWNLOAD_TIMEOUT"


class NoAnswer(Exception):
    """The hub did not answer, which says nothing about the model.

    lasting: another attempt is not expected to help.  pause: seconds that the hub asks to wait.
    """

    def __init__(
        self, reason: str, remedy: str = _LATER, lasting: bool = False, pause: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.remedy = remedy
        self.lasting = lasting
        self.pause = pause


class _Lfs(msgspec.Struct, frozen=True):
    sha256: str | None = None


class _Sibling(msgspec.Struct, frozen=True, rename={"blob_id": "blobId"}):
    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    lfs: _Lfs | None = None


class _Model(msgspec.Struct, frozen=True):
    sha: str
    siblings: list[_Sibling]


@dataclass(frozen=True)
class Listing:
    """The files of a commit, by name."""

    commit: str
    files: Mapping[str, _Sibling]


@dataclass(frozen=True)
class RemoteFile:
    """size: bytes.  sha256: of the content; git_oid: git's own hash of it; None where not told."""

    name: str
    etag: str
    size: int
    sha256: str | None
    git_oid: str | None


class HubClient:
    """Asks for one model.  Raises NoAnswer, or DieletError for what it answers."""

    def __init__(self, settings: HubSettings, hub_id: str) -> None:
        self.settings = settings
        self.hub_id = hub_id
        # Nothing but these: no redirect is followed by itself, no other scheme is known.
        self._opener = OpenerDirector()
        for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
            self._opener.add_handler(handler)

    @property
    def page(self) -> str:
        """Where people see the model."""
        return f"{self.settings.endpoint}/{self.hub_id}"

    def listing(self, revision: str) -> Listing:
        where = f"{quote(self.hub_id)}/revision/{quote(revision, safe='')}"
        response, _ = self._get("GET", f"{self.settings.endpoint}/api/models/{where}?blobs=true")
        with response:
            if response.status != 200:
                self._refuse(response, revision)
            data = self._small(response)
        try:
            model = msgspec.json.decode(data, type=_Model)
        except UNDECODABLE as error:
            raise DamagedFile(
                f"{self.hub_id}: {self.settings.endpoint} answered with no listing of a model "
                f"({str(error)[:100]}); HF_ENDPOINT must be the address of a hub"
            ) from error
        if not COMMIT.fullmatch(model.sha):
            raise DamagedFile(f"{self.hub_id}: the hub gives the commit {model.sha[:80]!r}")
        for file in model.siblings:
            if not all(_PART.fullmatch(part) for part in file.rfilename.split("/")):
                raise DamagedFile(
                    f"{self.hub_id}: the hub lists a file {file.rfilename[:100]!r}, whose place "
                    "would not be in the cache; nothing is fetched from this repository"
                )
        return Listing(model.sha, {file.rfilename: file for file in model.siblings})

    def describe(self, listing: Listing, name: str) -> RemoteFile:
        """What a file is, before any of it is fetched."""
        url = self._url(listing.commit, name)
        response, headers = self._get("HEAD", url)
        with response:
            if response.status != 200 and response.status not in _MOVED:
                self._refuse(response, listing.commit, name)
            moved = response.status in _MOVED
            length = None if moved else response.headers.get("Content-Length")
        commit = headers.get("X-Repo-Commit", listing.commit)
        if commit != listing.commit:
            raise DamagedFile(
                f"{self.hub_id}: asked for {name} of commit {listing.commit}, the hub answers with "
                f"that of {commit[:80]!r}"
            )
        listed = listing.files[name]
        etag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/")
        etag = etag.strip('"')
        if not _ETAG.fullmatch(etag) or etag.startswith("."):
            raise DamagedFile(f"{self.hub_id}: the hub gives {name} the ETag {etag[:80]!r}")
        size = headers.get("X-Linked-Size") or length or str(listed.size)
        if not size.isascii() or not size.isdecimal() or len(size) > 15:
            raise DamagedFile(f"{self.hub_id}: the hub gives {name} a size of {size[:80]!r}")
        if listed.size not in (None, int(size)):
            raise DamagedFile(
                f"{self.hub_id}: the hub lists {name} with {listed.size:,} bytes, and then gives "
                f"it {int(size):,}; try again later"
            )
        sha256 = listed.lfs.sha256 if listed.lfs else None
        if sha256 is None and re.fullmatch(r"[0-9a-f]{64}", etag):
            sha256 = etag  # of every large file
        git_oid = listed.blob_id if listed.blob_id == etag else None
        return RemoteFile(name, etag, int(size), sha256, git_oid)

    def content(self, commit: str, file: RemoteFile, start: int) -> tuple[HTTPResponse, int]:
        """The bytes of `file`, from `start` on where the hub can do that: and from where on."""
        asked = {"Range": f"bytes={start}-"} if start else {}
        response, _ = self._get("GET", self._url(commit, file.name), asked)
        if response.status == 206:
            told = response.headers.get("Content-Range", "")
            if start and told == f"bytes {start}-{file.size - 1}/{file.size}":
                return response, start
            response.close()
            raise DamagedFile(
                f"{self.hub_id}: asked for {file.name} from byte {start} of {file.size}, the hub "
                f"answers with {told[:80]!r}"
            )
        if response.status == 200:
            return response, 0
        with response:
            self._refuse(response, commit, file.name)

    def _url(self, commit: str, name: str) -> str:
        return f"{self.settings.endpoint}/{quote(self.hub_id)}/resolve/{commit}/{quote(name)}"

    def _get(
        self, method: str, url: str, more: Mapping[str, str] | None = None
    ) -> tuple[HTTPResponse, dict[str, str]]:
        """The last answer of a chain of redirects, and what the hub itself said on the way.

        A HEAD ends where the hub has told everything: the store that it leads to need not know it.
        """
        told: dict[str, str] = {}
        for _ in range(_REDIRECTS + 1):
            response = self._send(method, url, more or {})
            for name in _LINKED:
                if name in response.headers:
                    told.setdefault(name, response.headers[name])
            if "ETag" in response.headers:
                told["ETag"] = response.headers["ETag"]
            if response.status not in _MOVED or (method == "HEAD" and "X-Linked-Etag" in told):
                return response, told
            response.close()
            url = self._led_to(url, response.headers.get("Location", ""))
        raise MissingFile(
            f"{self.hub_id}: {self.settings.endpoint} leads from address to address, more than "
            f"{_REDIRECTS} times; check HF_ENDPOINT"
        )

    def _led_to(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            parts = urlsplit(target)
            known = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            known = False
        if not location or not known or (url.startswith("https:") and parts.scheme != "https"):
            raise DamagedFile(
                f"{self.hub_id}: {_host(url)} leads to {location[:60]!r}, where no file is fetched "
                "from; check HF_ENDPOINT"
            )
        return target

    def _send(self, method: str, url: str, more: Mapping[str, str]) -> HTTPResponse:
        headers = {"User-Agent": "dielet", "Accept-Encoding": "identity", **more}
        if self.settings.token and _origin(url) == _origin(self.settings.endpoint):
            headers["Authorization"] = f"Bearer {self.settings.token}"
        try:
            request = Request(url, headers=headers, method=method)
            response: Any = self._opener.open(request, timeout=self.settings.timeout)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise broken(error, url, self.settings.timeout) from error
        if response.status in _PASSING:
            response.close()
            asked = response.headers.get("Retry-After", "")
            pause = min(float(asked), _LONGEST_PAUSE) if asked.isdecimal() else 0.0
            reason = f"{_host(url)} answers {response.status} {response.reason}"[:200]
            raise NoAnswer(reason, pause=pause)
        assert isinstance(response, HTTPResponse)
        return response

    def _small(self, response: HTTPResponse) -> bytes:
        """A whole answer that has no business being large, nor slow."""
        data, begin = bytearray(), time.monotonic()
        try:
            while part := response.read1(1 << 16):
                data += part
                if len(data) > _LISTING_BYTES:
                    raise DamagedFile(
                        f"{self.hub_id}: the hub's listing is larger than the "
                        f"{_LISTING_BYTES >> 20} MB that one may have"
                    )
                if time.monotonic() - begin > _LISTING_SECONDS:
                    raise NoAnswer(f"the hub's listing took longer than {_LISTING_SECONDS} s")
        except (OSError, http.client.HTTPException) as error:
            raise broken(error, response.url, self.settings.timeout) from error
        return bytes(data)

    def _refuse(self, response: HTTPResponse, revision: str, name: str = "") -> NoReturn:
        raise refusal(
            response.status,
            response.headers,
            hub_id=self.hub_id,
            page=self.page,
            revision=revision,
            name=name,
            with_token=self.settings.token is not None,
        )


def broken(error: Exception, url: str, timeout: float) -> NoAnswer:
    """What an error of a connection to `url` means."""
    cause = error.reason if isinstance(error, URLError) else error
    host = _host(url)
    if isinstance(cause, TimeoutError):
        return NoAnswer(f"{host} sent nothing for {timeout:g} s")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return NoAnswer(
            f"the certificate of {host} is not trusted ({cause.verify_message})",
            "set SSL_CERT_FILE to the file of the certificates to trust",
            lasting=True,
        )
    reason = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[:100]
    if isinstance(cause, ConnectionResetError | BrokenPipeError | http.client.HTTPException):
        return NoAnswer(f"{host} broke the connection off ({reason})")
    return NoAnswer(
        f"{host} cannot be reached ({reason})", "check the name and the connection", lasting=True
    )


def _host(url: str) -> str:
    """For messages: what follows may be signed, and a name before it a password."""
    parts = urlsplit(url)
    return (parts.hostname or "") + (f":{parts.port}" if parts.port else "")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or default
