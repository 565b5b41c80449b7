"""Models of the hub when something goes wrong on the way: what is kept, and what is said."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
from huggingface_hub.utils import WeakFileLock

from dielet.checkpoint import hub_client, hub_download
from dielet.errors import CapacityError, DamagedFile
from tests.checkpoint.fetching import NAME, complaint, fetched
from tests.hub_server import COMMIT, Handler, Hub, Seen, git_oid

WEIGHTS = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}
HALF = len(WEIGHTS) // 2


def blobs(cache: Path) -> dict[str, int]:
    folder = cache / "models--some--model" / "blobs"
    return {path.name: path.stat().st_size for path in folder.glob("*")}


def whole(cache: Path) -> bool:
    """The weights are there, and nothing but what belongs there."""
    snapshot = next((cache / "models--some--model" / "snapshots").iterdir())
    right = (snapshot / "model.safetensors").read_bytes() == WEIGHTS
    return right and set(blobs(cache)) == {SHA256, git_oid(b"{}")}


def half(handler: Handler, seen: Seen) -> None:
    """The connection ends in the middle of a file."""
    data = WEIGHTS[int(seen.headers.get("Range", "bytes=0-")[6:-1]) :]
    handler.reply(200 if "Range" not in seen.headers else 206, data[: len(data) // 2],
                  {"Content-Range": f"bytes {len(WEIGHTS) - len(data)}-{len(WEIGHTS) - 1}/"
                   f"{len(WEIGHTS)}"}, length=len(data))  # fmt: skip
    handler.close_connection = True


def hang(handler: Handler, seen: Seen) -> None:
    """Half of what is asked for, then nothing."""
    handler.reply(200, WEIGHTS[:HALF], {}, length=len(WEIGHTS))
    handler.wfile.flush()
    handler.hub.closing.wait(30)


def ranges(hub: Hub) -> list[str | None]:
    """What parts of the weights were asked for, of the store."""
    return [one.headers.get("Range") for one in hub.seen
            if one.method == "GET" and one.path.startswith("/store/")]  # fmt: skip


def test_a_broken_connection_is_taken_up_where_it_broke(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    hub.fail("GET /store/", 2, half)
    fetched()
    assert whole(cache)
    assert ranges(hub) == [None, f"bytes={HALF}-", f"bytes={HALF + HALF // 2}-"]


def test_a_hub_that_cannot_continue_begins_anew(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    hub.ranges = False
    hub.fail("GET /store/", 1, half)
    fetched()
    assert whole(cache) and ranges(hub) == [None, f"bytes={HALF}-"]


def test_what_is_kept_is_continued_by_the_next_call(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    hub.fail("GET /store/", 1, half)
    hub.fail("GET /store/", 100, lambda handler, seen: handler.refuse(503, "", ""))
    complaint()
    assert blobs(cache) == {git_oid(b"{}"): 2, f"{SHA256}.incomplete": HALF}
    assert not list((cache / "models--some--model").glob("snapshots/*/model.safetensors"))
    assert not (cache / "models--some--model" / "refs").exists()
    hub.faults.clear()
    fetched()
    assert whole(cache) and ranges(hub)[-1] == f"bytes={HALF}-"


def test_how_much_is_kept_is_said(hub: Hub):
    hub.add(NAME, FILES)
    hub.fail("GET /store/", 1, half)
    hub.fail("GET /store/", 100, lambda handler, seen: handler.refuse(503, "", ""))
    assert complaint() == (
        "some/model is neither a directory here nor in the Hugging Face cache, and cannot be "
        f"fetched: {hub.store.removeprefix('http://')} answers 503 Service Unavailable; 512,000 of "
        "1,024,000 bytes of model.safetensors are kept; try again later, or allow more seconds "
        "without a byte with HF_HUB_DOWNLOAD_TIMEOUT"
    )


def test_a_part_that_is_wrong_is_fetched_again(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    folder = cache / "models--some--model" / "blobs"
    folder.mkdir(parents=True)
    for wrong in (b"x" * HALF, b"x" * len(WEIGHTS), b"x" * 2 * len(WEIGHTS)):
        (folder / f"{SHA256}.incomplete").write_bytes(wrong)
        fetched()
        assert whole(cache)
        shutil.rmtree(cache / "models--some--model" / "snapshots")
        (folder / SHA256).unlink()


def test_a_blob_of_an_etag_that_is_no_hash_is_looked_into(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    blob = cache / "models--some--model" / "blobs" / "tag"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(len(WEIGHTS)))
    named = {"X-Linked-Etag": '"tag"', "X-Linked-Size": str(len(WEIGHTS))}
    hub.fail("HEAD /some/model/resolve/" + COMMIT + "/model", 1,
             lambda handler, seen: handler.reply(302, b"", named))  # fmt: skip
    assert (fetched() / "model.safetensors").read_bytes() == WEIGHTS


def test_a_blob_of_another_size_is_fetched_again(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    blob = cache / "models--some--model" / "blobs" / SHA256
    blob.parent.mkdir(parents=True)
    blob.write_bytes(WEIGHTS[:HALF])
    fetched()
    assert whole(cache)


def altered(handler: Handler, seen: Seen) -> None:
    handler.content(b"x" + WEIGHTS[1:], {})


def longer(handler: Handler, seen: Seen) -> None:
    handler.content(WEIGHTS + b"x", {})


def shorter(handler: Handler, seen: Seen) -> None:
    handler.content(WEIGHTS[:-1], {})


def endless(handler: Handler, seen: Seen) -> None:
    """Without a length: what comes is counted."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(4):
        handler.wfile.write(WEIGHTS)
    handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (altered, "model.safetensors of some/model came with another sha256 than the hub says"),
        (longer, "has 1,024,000 bytes by the hub's own word, and 1,024,001 or more are sent"),
        (shorter, "has 1,024,000 bytes by the hub's own word, and 1,023,999 or more are sent"),
        (endless, "has 1,024,000 bytes by the hub's own word, and 1,"),
    ],
)
def test_wrong_content_is_refused_and_nothing_of_it_is_kept(hub, cache, answer, message):
    hub.add(NAME, FILES)
    hub.fail("GET /store/", 1, answer)
    said = complaint(DamagedFile)
    assert message in said and "nothing of it is kept; try again" in said
    assert blobs(cache) == {git_oid(b"{}"): 2}
    fetched()
    assert whole(cache)


def test_small_files_are_checked_too(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    tag = {"ETag": f'"{git_oid(b"{}")}"'}
    hub.fail("GET /some/model/resolve", 1, lambda handler, seen: handler.content(b"[]", tag))
    assert "config.json of some/model came with another git hash" in complaint(DamagedFile)
    assert blobs(cache) == {}


def test_a_range_that_was_not_asked_for(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    hub.fail("GET /store/", 1, half)
    where = {"Content-Range": "bytes 0-9/10"}
    hub.fail("GET /store/", 1, lambda handler, seen: handler.reply(206, WEIGHTS[:10], where))
    said = complaint(DamagedFile)
    assert "from byte 512000 of 1024000, the hub answers with 'bytes 0-9/10'" in said
    assert blobs(cache) == {git_oid(b"{}"): 2}


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("part", ["/api/", "HEAD ", "GET /some/model/resolve/", "GET /store/"])
def test_what_is_passing_is_tried_again(hub: Hub, cache: Path, status: int, part: str):
    hub.add(NAME, FILES)
    hub.fail(part, 3, lambda handler, seen: handler.refuse(status, "", ""))
    fetched()
    assert whole(cache)


def test_the_pauses_grow_and_are_at_least_what_the_hub_asks_for(hub: Hub, monkeypatch):
    hub.add(NAME, FILES)
    slept: list[float] = []
    monkeypatch.setattr(hub_download, "PAUSES", (1.0, 2.0, 4.0))
    monkeypatch.setattr(time, "sleep", slept.append)
    asked = iter(["3", "nonsense", "100000"])
    hub.fail(
        "/api/", 3, lambda handler, seen: handler.reply(429, b"", {"Retry-After": next(asked)})
    )
    fetched()
    assert slept == [3.0, 2.0, 60.0]


def test_what_stays_is_one_line(hub: Hub):
    hub.add(NAME, FILES)
    hub.fail("/api/", 100, lambda handler, seen: handler.refuse(502, "", ""))
    assert "fetched: 127.0.0.1:" in complaint() and "answers 502 Bad Gateway; try" in complaint()
    assert len(hub.seen) == 2 * 4, "one attempt and three more"


def test_a_hub_that_hangs(hub: Hub, cache: Path, monkeypatch):
    hub.add(NAME, FILES)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.2")
    hub.fail("GET /store/", 1, hang)
    fetched()
    assert whole(cache) and ranges(hub) == [None, f"bytes={HALF}-"]
    shutil.rmtree(cache)
    hub.fail("/api/", 100, lambda handler, seen: handler.hub.closing.wait(30))
    begin = time.monotonic()
    assert "sent nothing for 0.2 s; try again later, or allow more seconds" in complaint()
    assert time.monotonic() - begin < 5


def test_a_hub_that_is_not_there(hub: Hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it will not come back"))
    assert complaint() == (
        "some/model is neither a directory here nor in the Hugging Face cache, and cannot be "
        "fetched: 127.0.0.1:9 cannot be reached (Connection refused); check the name and the "
        "connection"
    )


def test_a_connection_that_is_dropped(hub: Hub, cache: Path):
    hub.add(NAME, FILES)

    def drop(handler: Handler, seen: Seen) -> None:
        handler.connection.close()
        handler.rfile.close()
        handler.close_connection = True

    for part in ("/api/", "HEAD ", "GET /store/"):
        hub.fail(part, 1, drop)
    fetched()
    assert whole(cache)


def test_a_certificate_that_is_not_trusted():
    refused = ssl.SSLCertVerificationError(1, "certificate verify failed")
    refused.verify_message = "self-signed certificate"
    answer = hub_client.broken(refused, "https://user:secret@hub.example/x?sig=secret", 10)
    assert str(answer) == (
        "the certificate of hub.example is not trusted (self-signed certificate)"
    )
    assert answer.lasting and "SSL_CERT_FILE" in answer.remedy


FETCH = f"""
import sys
from dielet.checkpoint.hub import from_hub
from dielet.checkpoint.hub_wanted import HubName, Wanted
print(from_hub(Wanted(HubName({NAME!r}))))
"""


def test_two_processes_fetch_one_file_once(hub: Hub, cache: Path):
    hub.add(NAME, FILES)

    def slow(handler: Handler, seen: Seen) -> None:
        time.sleep(0.3)
        handler.content(WEIGHTS, {})

    hub.fail("GET /store/", 100, slow)
    both = [
        subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0] and paths[0] == paths[1]
    assert whole(cache) and ranges(hub) == [None]


def test_huggingface_hub_keeps_to_the_same_lock(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    lock = cache / ".locks" / "models--some--model" / f"{SHA256}.lock"
    lock.parent.mkdir(parents=True)
    fetching = threading.Thread(target=fetched)
    with WeakFileLock(lock):
        fetching.start()
        deadline = time.monotonic() + 30
        while not hub.gets("config.json") and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        assert not hub.gets("model.safetensors"), "somebody else is at it"
    fetching.join(30)
    assert whole(cache)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_what_an_interrupted_process_fetched_is_continued(hub, cache, tmp_path, number, code):
    hub.add(NAME, FILES)
    hub.fail("GET /store/", 1, hang)
    command = [sys.executable, "-m", "dielet.cli.main", "compile", NAME, "-o", str(tmp_path / "m")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    part = cache / "models--some--model" / "blobs" / f"{SHA256}.incomplete"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == code and said.count("\n") == (0 if code < 0 else 1)
    kept = part.stat().st_size
    assert 0 < kept <= HALF and not part.with_suffix("").exists()
    fetched()
    assert whole(cache) and ranges(hub)[-1] == f"bytes={kept}-"


def test_a_disk_without_room_is_named_before_anything_is_fetched(hub, cache, monkeypatch):
    hub.add(NAME, FILES)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 1_000_000))
    said = complaint(CapacityError)
    assert f"needs 0.00102 GB more in the Hugging Face cache {cache}, where 0.001 GB are" in said
    assert "HF_HUB_CACHE" in said and not hub.gets()


def test_a_disk_that_fills_up_on_the_way(hub: Hub, cache: Path):
    """The limit of a file's size fails as a full disk does: in the middle of a write."""
    hub.add(NAME, FILES)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, before[1]))
    try:
        said = complaint()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said == (
        f"cannot write to the Hugging Face cache {cache}: {os.strerror(errno.EFBIG)}; free some "
        "space there, or set HF_HUB_CACHE to a directory that can be written"
    )
    assert blobs(cache)[f"{SHA256}.incomplete"] <= HALF
    fetched()
    assert whole(cache)


def test_a_cache_that_cannot_be_written(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    cache.parent.mkdir()
    cache.write_bytes(b"a file")
    assert f"cannot write to the Hugging Face cache {cache}: Not a directory" in complaint()


def test_a_file_system_without_links(hub: Hub, cache: Path, monkeypatch):
    hub.add(NAME, FILES)

    def refuse(*args: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    path = fetched() / "model.safetensors"
    assert path.read_bytes() == WEIGHTS and not path.is_symlink()
    assert blobs(cache) == {}
    before = len(hub.seen)
    fetched()
    assert len(hub.seen) == before
