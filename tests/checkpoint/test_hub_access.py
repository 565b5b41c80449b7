"""Models of the hub that not everybody may have: tokens, gates, and what is said of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dielet.checkpoint.hub import from_hub
from dielet.checkpoint.hub_settings import hub_settings
from dielet.checkpoint.hub_wanted import HubName, Wanted
from dielet.errors import MissingFile, UsageError
from tests.hub_server import Hub

NAME = "some/model"
TOKEN = "hf_mySecret"
FILES = {"config.json": b"{}", "model.safetensors": b"weights"}


def fetched(name: str = NAME) -> Path:
    parsed = HubName.parse(name)
    assert parsed is not None
    return from_hub(Wanted(parsed))


def complaint(name: str = NAME) -> str:
    with pytest.raises(MissingFile) as error:
        fetched(name)
    text = str(error.value)
    assert "\n" not in text and TOKEN not in text
    return text


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: Hub, monkeypatch):
    hub.add(NAME, FILES).access = {TOKEN}
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    fetched()
    at_hub = [one for one in hub.seen if not one.path.startswith("/store/")]
    at_store = [one for one in hub.seen if one.path.startswith("/store/")]
    assert {one.headers.get("Authorization") for one in at_hub} == {f"Bearer {TOKEN}"}
    assert at_store and all("Authorization" not in one.headers for one in at_store)
    assert {one.host.split(":")[0] for one in at_store} == {"localhost"}
    assert {one.host.split(":")[0] for one in at_hub} == {"127.0.0.1"}


def test_a_redirect_within_the_hub_keeps_the_token(hub: Hub, monkeypatch):
    """A model that was renamed, and a store of the hub's own."""
    hub.add("new/name", FILES).access = {TOKEN}
    hub.store = hub.address
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def moved(handler, seen) -> None:
        handler.reply(307, b"", {"Location": seen.path.replace("some/model", "new/name")})

    hub.fail("/some/model/", 100, moved)
    assert (fetched() / "model.safetensors").read_bytes() == b"weights"
    assert all(one.headers["Authorization"] == f"Bearer {TOKEN}" for one in hub.seen)


def test_where_the_token_is_from(hub: Hub, tmp_path: Path, monkeypatch):
    assert hub_settings().token is None
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_kept\n")
    assert hub_settings().token == "hf_kept"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert hub_settings().token is None
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    (tmp_path / "other").write_text("hf_other")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "other"))
    assert (hub_settings().token, hub_settings().token_from) == (
        "hf_other", str(tmp_path / "other"))  # fmt: skip
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_old")
    assert hub_settings().token == "hf_old"
    monkeypatch.setenv("HF_TOKEN", "hf_new")
    assert (hub_settings().token, hub_settings().token_from) == ("hf_new", "HF_TOKEN")
    assert "hf_new" not in repr(hub_settings())


@pytest.mark.parametrize("token", ["hf_a b", "hf_a\nX-Evil: 1", "hf_é", "hf_\x1b"])
def test_a_token_that_cannot_be_sent_is_not_shown(hub: Hub, monkeypatch, token: str):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(UsageError, match="the token of HF_TOKEN has characters") as error:
        fetched()
    assert "hf_" not in str(error.value)


def test_a_proxy_is_gone_through(hub: Hub, monkeypatch):
    monkeypatch.setenv("http_proxy", hub.address)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    assert "the hub has no model some/model" in complaint(), "so says the server as a proxy"
    assert hub.seen[0].path.startswith("http://hub.example/api/models/some/model/revision/main")


def test_a_model_that_is_missing(hub: Hub, monkeypatch):
    assert complaint() == (
        "the hub has no model some/model, or it is private; check the name, or, for one that is "
        "private, set HF_TOKEN to a token that may read it"
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert complaint().endswith("or it is private; check the name, and that the token may read it")


def test_a_model_that_is_private(hub: Hub, monkeypatch):
    hub.add(NAME, FILES).access = {TOKEN}
    assert "or it is private" in complaint()
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    assert "that the token may read it" in complaint()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetched().is_dir()


def test_a_model_behind_a_gate(hub: Hub, cache: Path, monkeypatch):
    hub.add(NAME, FILES).gate = {"hf_accepted"}
    assert complaint() == (
        f"some/model is gated: accept its terms at {hub.address}/some/model, then set HF_TOKEN to "
        "a token of that account (`hf auth login` keeps one)"
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert complaint() == (
        "some/model is gated: the account of the token given has no access; ask for it at "
        f"{hub.address}/some/model, and see that the token may read gated repositories"
    )
    assert not cache.exists(), "nothing was begun"
    monkeypatch.setenv("HF_TOKEN", "hf_accepted")
    assert fetched().is_dir()


def test_a_revision_that_is_missing(hub: Hub):
    hub.add(NAME, FILES)
    assert complaint(f"{NAME}@v9") == (
        "some/model has no revision 'v9'; its branches and tags are listed at "
        f"{hub.address}/some/model/tree/main"
    )


@pytest.mark.parametrize(
    ("status", "code", "said", "message"),
    [
        (401, "", "Invalid credentials in Authorization header",
         "does not accept the token .* make a new one at http://.*/settings/tokens"),
        (403, "", "Access to this resource is disabled.",
         r"does not give some/model away \(Access to this resource is disabled\.\); see http"),
        (403, "", "", r"does not give some/model away \(forbidden\)"),
        (451, "", "for legal reasons", "answers 451 for legal reasons; see http"),
        (418, "", "a\tteapot " * 100, "answers 418 a teapot a teapot .{,250}; see http"),
        (404, "EntryNotFound", "", r"lists config\.json and does not have it"),
    ],
)  # fmt: skip
def test_other_refusals(hub: Hub, status: int, code: str, said: str, message: str):
    hub.add(NAME, FILES)
    part = "/resolve/" if code else "/api/"
    hub.fail(part, 1, lambda handler, seen: handler.refuse(status, code, said))
    assert re.search(message, complaint())
