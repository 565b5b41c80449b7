"""A model hub on this machine: the end points that a model is fetched through, and their faults.

It answers as the public one does: large files are elsewhere (a redirect, the sha256 as ETag), small
ones have git's hash as ETag, and what is private, gated or missing is told by status and headers.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".bin", ".pt")


@dataclass
class Repository:
    """commits: the files of each.  access: the tokens that may read it, None for everybody.

    gate: the tokens that accepted the terms of a gated one.
    """

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    access: set[str] | None = None
    gate: set[str] | None = None

    def commit(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)


@dataclass(frozen=True)
class Seen:
    """One request.  name: the file asked for, or the path."""

    method: str
    path: str
    name: str
    host: str
    headers: Mapping[str, str]


@dataclass(repr=False)
class Hub:
    """address: its end point.  store: where large files lie; another name of the same machine.

    seen: all requests.  ranges: whether a part of a file can be had.  faults: for each request,
    the first one that takes it (returns True) has answered it.
    """

    address: str = ""
    store: str = ""
    models: dict[str, Repository] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    ranges: bool = True
    faults: list[Callable[[Handler, Seen], bool]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def add(self, hub_id: str, files: Mapping[str, bytes], commit: str = COMMIT) -> Repository:
        """A model whose branch main is at `commit`."""
        repository = self.models.setdefault(hub_id, Repository({}, {}))
        repository.commits[commit] = dict(files)
        repository.refs["main"] = commit
        return repository

    def gets(self, name: str = "") -> list[Seen]:
        """Files that were asked for with their content, not counting redirects to the store."""
        return [
            one for one in self.seen
            if one.method == "GET" and "/resolve/" in one.path and one.name.endswith(name)
        ]  # fmt: skip

    def fail(self, part: str, times: int, answer: Callable[[Handler, Seen], None]) -> None:
        """Let `answer` answer the next `times` requests with `part` in "METHOD path"."""
        left = [times]

        def fault(handler: Handler, seen: Seen) -> bool:
            if not left[0] or part not in f"{seen.method} {seen.path}":
                return False
            left[0] -= 1
            answer(handler, seen)
            return True

        self.faults.append(fault)


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(self.path.split("?")[0])
        name = path.partition("/resolve/")[2].partition("/")[2] or path
        seen = Seen(self.command, self.path, name, self.headers["Host"], dict(self.headers))
        self.hub.seen.append(seen)
        if any(fault(self, seen) for fault in list(self.hub.faults)):
            return
        if path.startswith("/store/"):
            self.content(self._stored(path.removeprefix("/store/")), {})
            return
        hub_id, kind, revision, rest = _parsed(self.path.split("?")[0])
        model = self.hub.models.get(hub_id)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if model is None or not (model.access is None or token in model.access):
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return
        commit = model.commit(revision)
        if commit is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif kind == "revision":
            self.json(_about(hub_id, commit, model))
        elif kind == "tree" and not rest:
            self.json(_tree(model.commits[commit]))
        elif kind == "tree":
            self.refuse(404, "EntryNotFound", f"{rest} does not exist")
        elif model.gate is not None and token not in model.gate:
            self.refuse(403 if token else 401, "GatedRepo", "Access to this model is restricted")
        elif rest not in model.commits[commit]:
            self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            self._file(model.commits[commit][rest], rest, commit)

    def _file(self, data: bytes, name: str, commit: str) -> None:
        if not name.endswith(LARGE):
            self.content(data, {"ETag": f'"{git_oid(data)}"', "X-Repo-Commit": commit})
            return
        sha256 = hashlib.sha256(data).hexdigest()
        self.reply(302, b"", {
            "X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(data)),
            "X-Repo-Commit": commit, "Location": f"{self.hub.store}/store/{sha256}",
        })  # fmt: skip

    def _stored(self, sha256: str) -> bytes:
        for model in self.hub.models.values():
            for files in model.commits.values():
                for data in files.values():
                    if hashlib.sha256(data).hexdigest() == sha256:
                        return data
        raise AssertionError(f"nothing in the store is {sha256}")

    def content(self, data: bytes, headers: Mapping[str, str]) -> None:
        """All of `data`, or from the byte on that is asked for."""
        asked = self.headers.get("Range")
        if asked is None or not self.hub.ranges:
            self.reply(200, data, headers)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        where = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        self.reply(206, data[start:], {**headers, **where})

    def json(self, value: object) -> None:
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self.reply(status, b"{}", {name: text for name, text in headers.items() if text})

    def reply(
        self, status: int, data: bytes, headers: Mapping[str, str], length: int | None = None
    ) -> None:
        """`length`: what is said of it, where that is not so."""
        self.send_response(status)
        size = len(data) if length is None else length
        for key, value in {"Content-Length": str(size), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def git_oid(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def _parsed(path: str) -> tuple[str, str, str, str]:
    """hub id, "revision", "tree" or "resolve", the revision, and the file, folder or nothing.

    A revision is one word of the path, whatever it has in it.
    """
    words = [unquote(word) for word in path.strip("/").split("/")]
    if words[:2] == ["api", "models"]:
        hub_id, rest = "/".join(words[2:4]), words[4:] or ["revision", "main"]
        return hub_id, rest[0], rest[1], "/".join(rest[2:])
    if words[2:3] == ["resolve"] and len(words) > 4:
        return "/".join(words[:2]), "resolve", words[3], "/".join(words[4:])
    return "", "", "", ""


def _about(hub_id: str, commit: str, model: Repository) -> dict[str, object]:
    siblings = [
        {"rfilename": name, "size": len(data), "blobId": git_oid(data), **_lfs(name, data)}
        for name, data in model.commits[commit].items()
    ]
    return {"id": hub_id, "modelId": hub_id, "sha": commit, "siblings": siblings, "tags": [],
            "private": model.access is not None, "gated": "auto" if model.gate else False,
            "downloads": 0}  # fmt: skip


def _tree(files: Mapping[str, bytes]) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": name, "size": len(data), "oid": git_oid(data), **_lfs(name, data)}
        for name, data in files.items()
    ]


def _lfs(name: str, data: bytes) -> dict[str, object]:
    if not name.endswith(LARGE):
        return {}
    sha256 = hashlib.sha256(data).hexdigest()
    return {"lfs": {"sha256": sha256, "oid": sha256, "size": len(data), "pointerSize": 134}}


@contextmanager
def running() -> Iterator[Hub]:
    """A hub without models."""
    hub = Hub()
    handler = type("BoundHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    port = server.server_address[1]
    hub.address, hub.store = f"http://127.0.0.1:{port}", f"http://localhost:{port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files of a directory by name; links are followed."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
