"""A model of the hub as a directory here: from the cache, or fetched into it.

Only what a model is read from is fetched: its configuration, its tokenizer, its safetensors or the
one .gguf file that was named.  Nothing that could be run ever is: no .bin, no .pt, no .py.
"""

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dielet.checkpoint.hub_cache import CachedModel, writing
from dielet.checkpoint.hub_client import HubClient, Listing, RemoteFile
from dielet.checkpoint.hub_download import fetch_blob, patiently
from dielet.checkpoint.hub_progress import transfer
from dielet.checkpoint.hub_settings import HubSettings, hub_settings
from dielet.checkpoint.hub_wanted import CONFIG, Wanted, parts_of
from dielet.checkpoint.weight_files import INDEX, PICKLES, WEIGHTS
from dielet.errors import CapacityError, DieletError, MissingFile, Unsupported

_NAMED = 5  # files that a message names


def from_hub(request: Wanted, settings: HubSettings | None = None) -> Path:
    """The directory of a model, or the path of the .gguf file that was named.

    A revision that is in the cache is used as it is; the hub is asked when something is missing
    there.  Raises MissingFile, DamagedFile, CapacityError or Unsupported.
    """
    settings = settings or hub_settings()
    here = CachedModel(settings.cache, request.name.hub_id)
    cached = None if request.force else _cached(here, request)
    if cached is not None and cached.whole:
        return cached.path
    if settings.offline or not request.fetch:
        if cached is not None:
            return cached.path
        raise _not_here(request, settings)
    client = HubClient(settings, request.name.hub_id)
    try:
        with writing(settings.cache):
            return _fetched(client, here, request, cached)
    except DieletError:
        if cached is None:
            raise
        return cached.path  # all that a model needs; what else it may have is not known


@dataclass(frozen=True)
class _Cached:
    """What is here of a model, if that is enough to read it.

    whole: everything is known of the optional files too, even that there is none.
    """

    path: Path
    commit: str
    whole: bool


def _cached(here: CachedModel, request: Wanted) -> _Cached | None:
    commit = here.commit(request.name.revision)
    if commit is None:
        return None
    snapshot = here.snapshot(commit)
    usual = [*map(request.at, (WEIGHTS, INDEX))]
    names = [name for name in usual if here.has(commit, name)]
    if all(here.lacks(commit, name) for name in usual):
        names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*")]
    try:
        needed = request.needed(names, lambda name: snapshot / name)
    except DieletError:
        return None  # an index that cannot be read is fetched anew
    if not all(here.has(commit, name) for name in needed):
        return None
    whole = all(here.has(commit, n) or here.lacks(commit, n) for n in request.optional)
    return _Cached(_place(snapshot, request), commit, whole)


def _place(snapshot: Path, request: Wanted) -> Path:
    return snapshot / (parts_of(request.name.file)[0] if request.name.file else request.folder)


def _fetched(client: HubClient, here: CachedModel, request: Wanted, cached: _Cached | None) -> Path:
    """Fetch what is missing: of the commit that is `cached`, or else of the newest."""
    hub_id, revision = client.hub_id, request.name.revision
    asked, pauses = (cached.commit, ()) if cached else (revision, None)
    listing = patiently(hub_id, lambda: client.listing(asked), pauses)
    fetch = _Fetch(client, here, listing, request.force)
    _check_fetchable(request, listing.files, client.page)

    def read_index(name: str) -> Path:
        fetch.files([name])
        return here.snapshot(listing.commit) / name

    needed = request.needed(listing.files, read_index)
    if missing := [name for name in needed if name not in listing.files]:
        raise MissingFile(
            f"{hub_id} has no {_some(missing)}, which its {INDEX} names; see "
            f"{client.page}/tree/{revision}"
        )
    optional = [name for name in request.optional if name in listing.files]
    fetch.files([*needed, *optional])
    asked_for = {*request.optional, request.at(WEIGHTS), request.at(INDEX)}
    here.note_lacking(listing.commit, asked_for - set(listing.files))
    here.note_revision(revision, listing.commit)
    return _place(here.snapshot(listing.commit), request)


class _Fetch:
    """Brings files of one commit into the cache."""

    def __init__(self, client: HubClient, here: CachedModel, listing: Listing, force: bool) -> None:
        self._client, self._here, self._listing = client, here, listing
        self._force = force
        self._done: set[str] = set()

    def files(self, names: Iterable[str]) -> None:
        commit, hub_id = self._listing.commit, self._client.hub_id
        remote = [
            patiently(hub_id, partial(self._client.describe, self._listing, name))
            for name in names
            if name not in self._done and (self._force or not self._here.has(commit, name))
        ]
        self._check_room(remote)
        with transfer(hub_id, sum(file.size for file in remote)) as advance:
            for file in remote:
                fetch_blob(self._client, self._here, commit, file, advance, self._force)
                self._here.link(commit, file.name, file.etag)
                self._done.add(file.name)

    def _check_room(self, remote: Iterable[RemoteFile]) -> None:
        """Before the first byte: a disk that is full is trouble for everybody."""
        there = sum(self._here.bytes_of(file.etag) for file in remote)
        needed = sum(file.size for file in remote) - there
        cache = self._here.cache
        free = shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.exists())).free
        if needed > free:
            raise CapacityError(
                f"{self._client.hub_id} needs {needed / 1e9:.3g} GB more in the Hugging Face cache "
                f"{cache}, where {free / 1e9:.3g} GB are free; free some, or set "
                "HF_HUB_CACHE to a directory on a larger disk"
            )


def _check_fetchable(request: Wanted, names: Collection[str], page: str) -> None:
    """Say what is missing, and what is there instead, before anything is fetched."""
    hub_id, where = request.name.hub_id, request.folder
    ggufs = [name for name in names if name.endswith(".gguf")]
    if request.name.file:
        if missing := set(parts_of(request.name.file)) - set(names):
            there = f"; it has {_some(ggufs)}" if ggufs else ""
            raise MissingFile(f"{hub_id} has no {_some(missing)}{there}; see {page}/tree/main")
        return
    weights = {request.at(WEIGHTS), request.at(INDEX)} & set(names) or request.named_alone(names)
    if request.at(CONFIG) in names and (weights or not request.weights):
        return
    if ggufs and not where:
        raise MissingFile(
            f"{hub_id} has its weights in {_some(ggufs)}; name one of them: {hub_id}/{ggufs[0]}"
        )
    pickles = [name for name in names if name.endswith(PICKLES)]
    if request.at(CONFIG) in names and pickles:
        raise Unsupported(
            f"{hub_id} has its weights in {_some(pickles)}, a pickle, which could run code when "
            "read; convert it to safetensors (transformers: save_pretrained), or see whether a "
            f"pull request at {page}/discussions does: {hub_id}@refs/pr/NUMBER"
        )
    lacking = request.at(CONFIG if request.at(CONFIG) not in names else WEIGHTS)
    raise MissingFile(
        f"{hub_id} has no {lacking}, so it is no model that dielet reads; its files are listed at "
        f"{page}/tree/main"
    )


def _not_here(request: Wanted, settings: HubSettings) -> MissingFile:
    name = request.name
    what = f"{name.hub_id}/{name.file}" if name.file else name.hub_id
    why = "HF_HUB_OFFLINE is set" if settings.offline else "only the cache was to be looked in"
    return MissingFile(
        f"{what} at revision {name.revision} is neither a directory here nor whole in the Hugging "
        f"Face cache {settings.cache}, and {why}; fetch it where there is a network, or name its "
        "directory"
    )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return ", ".join(ordered[:_NAMED]) + more
