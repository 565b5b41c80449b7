"""A model hub on this machine: the few answers that huggingface_hub needs to fetch a model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(name: str, folder: Path, commit: str) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of `folder` as the model `name`: the address, and what has been sent."""
    sent: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = self.path.split("?")[0]
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                files = [{"rfilename": each.name} for each in sorted(folder.iterdir())]
                about = {"id": name, "modelId": name, "sha": commit, "siblings": files,
                         "private": False, "tags": [], "downloads": 0}  # fmt: skip
                self._send(json.dumps(about).encode(), body, {"Content-Type": "application/json"})
                return
            if path == f"/api/models/{name}/tree/{commit}":
                files = [
                    {"type": "file", "path": each.name, "size": each.stat().st_size,
                     "oid": hashlib.sha1(each.name.encode()).hexdigest()}
                    for each in sorted(folder.iterdir())
                ]  # fmt: skip
                self._send(json.dumps(files).encode(), body, {"Content-Type": "application/json"})
                return
            file = folder / path.rpartition("/")[2]
            if path.startswith(f"/{name}/resolve/") and file.is_file():
                data = file.read_bytes()
                tag = hashlib.sha256(data).hexdigest()
                sent.extend([file.name] * body)
                self._send(data, body, {"ETag": f'"{tag}"', "X-Repo-Commit": commit})
                return
            self._send(b"{}", body, {"X-Error-Code": "EntryNotFound"}, 404)

        def _send(self, data: bytes, body: bool, headers: dict[str, str], code: int = 200) -> None:
            self.send_response(code)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
