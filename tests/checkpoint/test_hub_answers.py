"""A hub that answers strangely: nothing is written elsewhere, and it is told in one line."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dielet.checkpoint import hub_client, hub_download
from dielet.errors import DamagedFile, DieletError
from tests.checkpoint.fetching import NAME, complaint, fetched
from tests.hub_server import Handler, Hub, Seen

WEIGHTS = bytes(range(256))
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a\\b", "a\nb", "", "x" * 256, ".."],
)
def test_a_listing_with_a_name_that_leads_elsewhere(hub: Hub, cache: Path, name: str):
    hub.add(NAME, {**FILES, name: b"evil"})
    assert "whose place would not be in the cache; nothing is fetched" in complaint(DamagedFile)
    assert not hub.gets() and not cache.exists()


@pytest.mark.parametrize("etag", ["", '"../../x"', '"a/b"', '".."', '".hidden"', "x" * 200])
def test_an_etag_that_leads_elsewhere(hub: Hub, cache: Path, etag: str):
    hub.add(NAME, FILES)
    hub.fail("HEAD ", 1, lambda handler, seen: handler.content(b"{}", {"ETag": etag}))
    assert "the hub gives config.json the ETag '" in complaint(DamagedFile)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X-Repo-Commit": "f" * 40}, f"the hub answers with that of '{'f' * 40}'"),
        ({"X-Linked-Size": "-1"}, "the hub gives config.json a size of '-1'"),
        ({"X-Linked-Size": "1" * 16}, "the hub gives config.json a size of '1111"),
        ({"X-Linked-Size": "many"}, "the hub gives config.json a size of 'many'"),
        ({"X-Linked-Size": "3"}, "the hub lists config.json with 2 bytes, and then gives it 3;"),
    ],
)
def test_a_file_that_is_described_wrongly(hub: Hub, headers: dict[str, str], message: str):
    hub.add(NAME, FILES)
    hub.fail("HEAD ", 1, lambda handler, seen: handler.content(b"{}", {"ETag": '"e"', **headers}))
    assert message in complaint(DamagedFile)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>please log in</html>", "answered with no listing of a model (JSON is malformed"),
        (b"{}", "answered with no listing of a model (Object missing required field `sha`"),
        (b'{"sha": "' + b"a" * 40 + b'"}', "missing required field `siblings`"),
        (b'{"sha": "../x", "siblings": []}', "the hub gives the commit '../x'"),
        (b'{"x": ' + b"[" * 1_000_000, "answered with no listing of a model"),
        (b"\xff", "answered with no listing of a model"),
        (b" " * (17 << 20), "the hub's listing is larger than the 16 MB that one may have"),
    ],
    ids=["html", "empty", "half", "commit", "deep", "binary", "large"],
)
def test_a_listing_that_is_none(hub: Hub, cache: Path, body: bytes, message: str):
    hub.fail("/api/", 1, lambda handler, seen: handler.reply(200, body, {}))
    assert message in complaint(DamagedFile)
    assert not cache.exists()


def test_a_listing_that_takes_for_ever(hub: Hub, monkeypatch):
    hub.add(NAME, FILES)
    monkeypatch.setattr(hub_client, "_LISTING_SECONDS", -1)
    assert "the hub's listing took longer than -1 s; try again later" in complaint()
    assert len(hub.seen) == 4


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "leads to 'file:///etc/passwd', where no file is fetched from"),
        ("ftp://host/x", "leads to 'ftp://host/x', where no file is fetched from"),
        ("http://[", "leads to 'http://[', where no file is fetched from"),
        ("", "leads to '', where no file is fetched from"),
    ],
)
def test_a_redirect_to_where_nothing_is_fetched_from(hub: Hub, location: str, message: str):
    hub.add(NAME, FILES)
    hub.fail("GET /some/model/resolve/", 1,
             lambda handler, seen: handler.reply(302, b"", {"Location": location}))  # fmt: skip
    assert message in complaint(DamagedFile)


def test_redirects_without_end(hub: Hub):
    hub.fail("/", 100, lambda handler, seen: handler.reply(302, b"", {"Location": seen.path}))
    assert "leads from address to address, more than 5 times" in complaint()
    assert len(hub.seen) == 6


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "ETag": st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20),
        "X-Linked-Etag": st.sampled_from(['"a"', SHA256, "W/x", "", "../a"]),
        "X-Linked-Size": st.sampled_from(["0", "-1", "2", "1e3", "\xb2", "9" * 40]),
        "X-Repo-Commit": st.sampled_from(["", "f" * 40, "..", "main"]),
        "X-Error-Code": st.sampled_from(["", "GatedRepo", "RepoNotFound", "\x80"]),
        "X-Error-Message": st.text(st.characters(min_codepoint=32, max_codepoint=255)),
        "Retry-After": st.sampled_from(["", "-1", "\xb2", "1e999", "Wed, 21 Oct"]),
        "Content-Range": st.sampled_from(["", "bytes 0-1/2", "bytes */2", "x"]),
        "Location": st.sampled_from(
            ["", "/x", "//", "http://127.0.0.1:9/", "file:///x", "http://[::1", "http://a b/", "?"]
        ),
        "Content-Length": st.sampled_from(["0", "-1", "x", "1", "9" * 30]),
        "Transfer-Encoding": st.sampled_from(["chunked", "x"]),
    },
)
BODIES = st.one_of(
    st.binary(max_size=50),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.dictionaries(
            st.sampled_from(["sha", "siblings", "rfilename", "size", "lfs", "blobId"]), inner
        ) | st.lists(inner, max_size=3),
    ).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip


@settings(
    max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    part=st.sampled_from(["/api/", "HEAD ", "GET /some/model/resolve/", "GET /store/"]),
    status=st.sampled_from([200, 200, 206, 302, 307, 401, 403, 404, 416, 451, 500, 599]),
    headers=HEADERS,
    body=BODIES,
)
def test_whatever_a_hub_answers_is_one_line(hub, cache, monkeypatch, part, status, headers, body):
    monkeypatch.setattr(hub_download, "PAUSES", ())
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.5")
    shutil.rmtree(cache, ignore_errors=True)
    hub.add(NAME, FILES)

    def answer(handler: Handler, seen: Seen) -> bool:
        if part not in f"{seen.method} {seen.path}":
            return False
        handler.reply(status, body, headers)
        handler.close_connection = True
        return True

    hub.faults[:] = [answer]
    try:
        path = fetched()
    except DieletError as error:
        assert "\n" not in str(error) and not list(cache.glob("**/snapshots/*/model.safetensors"))
    else:
        assert (path / "model.safetensors").read_bytes() == WEIGHTS
