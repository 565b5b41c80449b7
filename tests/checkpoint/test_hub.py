"""Models of the hub: what is fetched, where it is kept, and what is asked for again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import huggingface_hub
import pytest

from dielet.checkpoint import open_checkpoint, open_config
from dielet.checkpoint.hub import from_hub
from dielet.checkpoint.hub_settings import hub_settings
from dielet.checkpoint.hub_wanted import HubName, Wanted
from dielet.errors import DamagedFile, MissingFile, Unsupported, UsageError
from tests.hub_server import COMMIT, Hub, git_oid, read_folder

from .make import gguf_file, hugging_face, spec, weights

NAME = "some/model-1.5B"
OTHER = "f" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights " * 1000,
    "pytorch_model.bin": b"pickle",
    "model.pt": b"pickle",
    "modeling_llama.py": b"raise SystemExit",
    "README.md": b"# a model",
    "consolidated.safetensors": b"the same again",
    "onnx/config.json": b"{}",
}
READ = ["config.json", "model.safetensors", "tokenizer.json"]


def fetched(name: str = NAME, **options) -> Path:
    parsed = HubName.parse(name)
    assert parsed is not None
    return from_hub(Wanted(parsed, **options))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_what_is_read_is_fetched_and_only_once(hub: Hub):
    hub.add(NAME, FILES)
    path = fetched()
    assert read_folder(path) == {name: FILES[name] for name in READ}
    assert sorted(one.name for one in hub.gets()) == READ
    before = len(hub.seen)
    assert fetched() == path and len(hub.seen) == before, "nothing more is asked"


def test_huggingface_hub_finds_what_was_fetched(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    path = fetched()
    theirs = huggingface_hub.snapshot_download(NAME, cache_dir=cache, local_files_only=True)
    assert Path(theirs) == path
    assert huggingface_hub.try_to_load_from_cache(NAME, "config.json", cache_dir=cache) == str(
        path / "config.json"
    )
    absent = huggingface_hub.try_to_load_from_cache(NAME, "chat_template.jinja", cache_dir=cache)
    assert absent is huggingface_hub._CACHED_NO_EXIST
    (found,) = huggingface_hub.scan_cache_dir(cache).repos
    assert found.repo_id == NAME and set(found.refs) == {"main"}
    assert found.size_on_disk == sum(len(FILES[name]) for name in READ)
    assert not huggingface_hub.scan_cache_dir(cache).warnings
    assert names(cache / "models--some--model-1.5B" / "blobs") == sorted(
        [
            git_oid(FILES["config.json"]),
            git_oid(FILES["tokenizer.json"]),
            hashlib.sha256(FILES["model.safetensors"]).hexdigest(),
        ]
    )
    before = len(hub.gets())
    huggingface_hub.snapshot_download(
        NAME, cache_dir=cache, endpoint=hub.address, token=False, allow_patterns=READ
    )
    assert len(hub.gets()) == before, "online too, it has nothing to fetch"


def test_what_huggingface_hub_fetched_is_used(hub: Hub, cache: Path, monkeypatch):
    hub.add(NAME, FILES)
    theirs = huggingface_hub.snapshot_download(
        NAME, cache_dir=cache, endpoint=hub.address, token=False, allow_patterns=READ
    )
    gets, before = len(hub.gets()), len(hub.seen)
    with monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        assert fetched() == Path(theirs) and len(hub.seen) == before
    assert fetched() == Path(theirs) and len(hub.gets()) == gets
    assert len(hub.seen) == before + 1, "asked once whether there are further files"
    assert fetched() == Path(theirs) and len(hub.seen) == before + 1


def test_what_the_cache_has_is_enough_where_the_hub_cannot_be_asked(hub: Hub, cache: Path):
    hub.add(NAME, FILES)
    path = fetched()
    (cache / "models--some--model-1.5B" / ".no_exist" / COMMIT / "chat_template.jinja").unlink()
    hub.fail("/api/", 1, lambda handler, seen: handler.refuse(503, "", ""))
    assert fetched() == path, "a template may be missing, but nobody can say"
    hub.models.clear()
    assert fetched() == path, "nor of a model that is gone"


def test_shards_are_those_of_the_index(hub: Hub):
    shards = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 100 for n in (1, 2)}
    index = {"weight_map": {f"t{n}": name for n, name in enumerate(shards)}}
    files = {**FILES, **shards, "model.safetensors.index.json": json.dumps(index).encode()}
    del files["model.safetensors"]
    hub.add(NAME, files)
    assert names(fetched()) == sorted(
        ["config.json", "tokenizer.json", "model.safetensors.index.json", *shards]
    )
    before = len(hub.seen)
    fetched()
    assert len(hub.seen) == before
    (fetched() / "model-00002-of-00002.safetensors").unlink()
    assert fetched().joinpath("model-00002-of-00002.safetensors").read_bytes() == b"\2" * 100
    assert len(hub.gets("00001-of-00002.safetensors")) == 1


def test_one_weight_file_of_another_name(hub: Hub, cache: Path):
    """As quantisers call theirs.  Two of them could be anything."""
    hub.add(NAME, {"config.json": b"{}", "gptq-4bit.safetensors": b"w", "x/y.safetensors": b"x"})
    assert names(fetched()) == ["config.json", "gptq-4bit.safetensors"]
    before = len(hub.seen)
    assert fetched() and len(hub.seen) == before
    absent = huggingface_hub.try_to_load_from_cache(NAME, "model.safetensors", cache_dir=cache)
    assert absent is huggingface_hub._CACHED_NO_EXIST
    hub.add("some/two", {"config.json": b"{}", "a.safetensors": b"", "b.safetensors": b""})
    with pytest.raises(MissingFile, match=r"some/two has no model\.safetensors"):
        fetched("some/two")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"{", "not valid JSON"),
        (b"{}", "weight_map is missing"),
        (b'{"weight_map": {}}', "weight_map does not name the files"),
        (b'{"weight_map": {"t": 1}}', "weight_map does not name the files"),
        (b'{"weight_map": {"t": "no.safetensors"}}', r"has no no\.safetensors, which its"),
        (b'{"weight_map": {"t": "../../x"}}', r"has no \.\./\.\./x, which its"),
    ],
)
def test_an_index_that_is_not_right_is_named(hub: Hub, index: bytes, message: str):
    hub.add(NAME, {"config.json": b"{}", "model.safetensors.index.json": index})
    with pytest.raises((DamagedFile, MissingFile), match=message):
        fetched()


def test_the_configuration_alone_and_the_weights_later(hub: Hub):
    hub.add(NAME, FILES)
    path = fetched(weights=False)
    assert names(path) == ["config.json", "tokenizer.json"]
    with pytest.raises(MissingFile, match="only the cache was to be looked in"):
        fetched(fetch=False)
    assert fetched() == path and names(path) == READ
    assert fetched(fetch=False) == path
    assert len(hub.gets("config.json")) == 1


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Hub, cache: Path):
    model = hub.add(NAME, FILES)
    model.commits[OTHER] = {**FILES, "config.json": b'{"other": 1}'}
    model.refs |= {"v1": OTHER, "refs/pr/7": OTHER, "dev/x": OTHER}
    for revision in ("v1", "refs/pr/7", "dev/x", OTHER):
        path = fetched(f"{NAME}@{revision}")
        assert path.name == OTHER and (path / "config.json").read_bytes() == b'{"other": 1}'
    assert fetched(f"{NAME}@main").name == fetched().name == COMMIT
    folder = cache / "models--some--model-1.5B"
    assert (folder / "refs" / "refs" / "pr" / "7").read_text() == OTHER
    assert names(folder / "refs") == ["dev", "main", "refs", "v1"]
    assert len(hub.gets("model.safetensors")) == 1, "one blob for both commits"
    theirs = huggingface_hub.snapshot_download(
        NAME, revision="refs/pr/7", cache_dir=cache, local_files_only=True
    )
    assert Path(theirs).name == OTHER


def test_a_cached_revision_stays_where_it_is(hub: Hub, cache: Path):
    model = hub.add(NAME, FILES)
    path = fetched()
    model.commits[OTHER], model.refs["main"] = {**FILES, "model.safetensors": b"new"}, OTHER
    assert fetched() == path
    (cache / "models--some--model-1.5B" / ".no_exist" / COMMIT / "chat_template.jinja").unlink()
    assert fetched() == path, "what else the commit has is asked of that commit"
    assert fetched(force=True).name == OTHER
    assert fetched().name == OTHER


def test_force_fetches_again_what_was_altered_here(hub: Hub):
    hub.add(NAME, FILES)
    path = fetched()
    (path / "model.safetensors").resolve().write_bytes(b"altered " * 1000)
    fetched()
    assert (path / "model.safetensors").read_bytes() == b"altered " * 1000
    fetched(force=True)
    assert (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_folder_of_a_repository_and_further_files(hub: Hub):
    inner = {f"inner/{name}": data for name, data in FILES.items()}
    hub.add(NAME, {**FILES, **inner, "inner/vocab.json": b"{}"})
    path = fetched(folder="inner", extras=("vocab.json", "merges.txt"))
    assert path.name == "inner" and names(path) == [*READ, "vocab.json"]
    assert names(path.parent) == ["inner"]
    assert (path / "config.json").read_bytes() == FILES["config.json"]


def test_one_gguf_file_of_many(hub: Hub, tmp_path: Path, monkeypatch):
    one = spec()
    data = gguf_file(tmp_path / "m.gguf", one, weights(one)).read_bytes()
    hub.add("some/model-GGUF", {"m-Q4_0.gguf": data, "x/m-BF16.gguf": b"larger", "README.md": b""})
    assert open_checkpoint("some/model-GGUF/m-Q4_0.gguf").spec.hidden == 64
    assert open_config("some/model-GGUF/m-Q4_0.gguf@main").hidden == 64
    assert [one.name for one in hub.gets()] == ["m-Q4_0.gguf"]
    with pytest.raises(MissingFile, match=r"weights in m-Q4_0\.gguf, x/m-BF16\.gguf; name one"):
        open_checkpoint("some/model-GGUF")
    with pytest.raises(MissingFile, match=r"has no no\.gguf; it has m-Q4_0\.gguf, x/m-BF16"):
        open_checkpoint("some/model-GGUF/no.gguf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert open_checkpoint("some/model-GGUF/m-Q4_0.gguf").spec.hidden == 64
    with pytest.raises(MissingFile, match=r"some/model-GGUF/x/m-BF16\.gguf at revision main"):
        open_checkpoint("some/model-GGUF/x/m-BF16.gguf")


def test_all_parts_of_a_gguf_file_that_is_split(hub: Hub):
    parts = {f"q/m-0000{n}-of-00003.gguf": bytes([n]) for n in (1, 2, 3)}
    hub.add(NAME, parts)
    path = fetched(f"{NAME}/q/m-00002-of-00003.gguf")
    assert path.name == "m-00001-of-00003.gguf", "the first one tells of the others"
    assert read_folder(path.parent.parent) == parts


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        (
            {"config.json": b"{}", "pytorch_model.bin": b""},
            Unsupported,
            r"weights in pytorch_model\.bin, a pickle, which could run code .* convert it to",
        ),
        ({"config.json": b"{}"}, MissingFile, r"has no model\.safetensors, so it is no model"),
        ({"model.safetensors": b"{}"}, MissingFile, r"has no config\.json, so it is no model"),
        (
            {f"{n}.gguf": b"" for n in range(9)},
            MissingFile,
            r"0\.gguf, 1\.gguf, 2\.gguf, 3\.gguf, 4\.gguf and 4 more; name one",
        ),
    ],
)
def test_what_cannot_be_read_is_not_fetched(hub: Hub, files, error, message):
    hub.add(NAME, files)
    with pytest.raises(error, match=message):
        fetched()
    assert not hub.gets()


def test_a_model_is_opened_by_its_id(hub: Hub, tmp_path: Path):
    one = spec()
    hub.add(NAME, read_folder(hugging_face(tmp_path / "made", one, weights(one))))
    assert open_config(NAME).hidden == 64
    assert "model.safetensors" not in [one.name for one in hub.seen], "its weights are not needed"
    assert open_checkpoint(NAME).source.startswith(f"{NAME} (Hugging Face directory /")
    assert open_checkpoint(f"{NAME}@main").spec.name == NAME


def test_how_to_be_rid_of_a_damaged_file_in_the_cache(hub: Hub, tmp_path: Path, cache: Path):
    one = spec()
    hub.add(NAME, read_folder(hugging_face(tmp_path / "made", one, weights(one))))
    path = fetched()
    with (path / "model.safetensors").resolve().open("rb+") as file:
        file.truncate(1000)
    folder = cache / "models--some--model-1.5B"
    with pytest.raises(DamagedFile, match=f"to fetch it anew, delete {folder}$"):
        open_checkpoint(NAME)


@pytest.mark.parametrize(
    "name",
    ["", "a", "a/b/c", "/a/b", "a/b/", "a//b", "../b", "a/..", "a/b--c", "a/b c", "a/b@",
     "a/b.gguf", "-a/b", "a/b/../c.gguf"],
)  # fmt: skip
def test_what_is_no_name_of_the_hub(name: str):
    assert HubName.parse(name) is None


@pytest.mark.parametrize(
    "revision",
    ["../x", "a/../b", "/a", "-a", "a//b", "a b", "a\\b", "a@{1}", "a.lock", "a/", "x\n", "é"],
)
def test_what_is_no_revision(revision: str):
    with pytest.raises(UsageError, match="is no revision; give a branch, a tag or a commit"):
        HubName.parse(f"a/b@{revision}") or pytest.fail("it was taken for a path")


def test_where_the_cache_is(hub: Hub, tmp_path: Path, monkeypatch):
    assert hub_settings().cache == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "/old")
    assert hub_settings().cache == Path("/old")
    monkeypatch.setenv("HF_HUB_CACHE", "~/new")
    assert hub_settings().cache == Path.home() / "new"
    for name in ("HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub_settings().cache == tmp_path / "huggingface" / "hub"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert hub_settings().cache == Path.home() / ".cache" / "huggingface" / "hub"


def test_a_cache_of_its_own(hub: Hub, tmp_path: Path, monkeypatch):
    hub.add(NAME, FILES)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert fetched().is_relative_to(tmp_path / "elsewhere")


def test_the_address_may_have_a_path(hub: Hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.address}/mirror/of/hub/")
    hub.fail("/mirror/of/hub/api/models/some/model-1.5B/revision/main", 1,
             lambda handler, seen: handler.refuse(404, "RepoNotFound", ""))  # fmt: skip
    with pytest.raises(MissingFile, match="the hub has no model some/model"):
        fetched()


@pytest.mark.parametrize(
    "value", ["ftp://host", "host", "http://", "http://[", "http://a b", "http://me:secret@host"]
)
def test_an_address_that_is_none_is_named(hub: Hub, monkeypatch, value: str):
    monkeypatch.setenv("HF_ENDPOINT", value)
    with pytest.raises(UsageError, match=r"HF_ENDPOINT is '.*give an address") as error:
        fetched()
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_named(hub: Hub, monkeypatch, value: str):
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", value)
    with pytest.raises(UsageError, match=f"HF_HUB_DOWNLOAD_TIMEOUT is '{value}'; give seconds"):
        fetched()


def test_offline_nothing_is_asked(hub: Hub, monkeypatch):
    hub.add(NAME, FILES)
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with monkeypatch.context() as offline:
            offline.setenv(variable, "true")
            with pytest.raises(MissingFile, match=f"{NAME} at revision main is neither a directory "
                               "here nor whole in .* HF_HUB_OFFLINE is set"):  # fmt: skip
                fetched()
    assert not hub.seen


def test_nothing_is_drawn_off_a_terminal(hub: Hub, capsys):
    hub.add(NAME, {**FILES, "model.safetensors": bytes(11_000_000)})
    fetched()
    assert capsys.readouterr() == ("", "")
