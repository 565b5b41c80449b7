"""A role map: how a checkpoint of an unknown family names what a known family's decoder needs.

A TOML file; docs/models.md describes it and docs/roles-example.toml is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dielet.checkpoint.config import Entries
from dielet.checkpoint.families import SUPPORTED_MODEL_TYPES
from dielet.checkpoint.filemap import read_small
from dielet.errors import DamagedFile, UsageError
from dielet.files import toml_values

_LAYER = "{layer}"
_SECTIONS = {"like": str, "config": dict, "values": dict, "tensors": dict, "ignore": list}


@dataclass(frozen=True)
class Roles:
    """like: the family whose decoder the model has.

    config: that family's key of config.json -> this one's.  values: keys that config.json does not
    state.  tensors: that family's name -> this one's, {layer} standing for the layer's number.
    ignore: endings of names of tensors that are no weights.
    """

    like: str
    config: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()

    def entries(self, config: Entries) -> Entries:
        """The config.json as the known family would have it."""
        found = dict(config.values)
        for key, theirs in self.config.items():
            if theirs not in config.values:
                raise UsageError(f"{config.where} has no {theirs}, which roles take for {key}")
            found[key] = config.values[theirs]
        return Entries(config.where, {**found, **self.values, "model_type": self.like})

    def tensor(self, name: str) -> str:
        """This model's name for a tensor that the known family calls `name`."""
        if name in self.tensors:
            return self.tensors[name]
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part.isdigit():
                pattern = ".".join([*parts[:at], _LAYER, *parts[at + 1 :]])
                if pattern in self.tensors:
                    return self.tensors[pattern].replace(_LAYER, part)
        return name


def read_roles(path: Path) -> Roles:
    """Read a role map.  Raises MissingFile, DamagedFile, UsageError."""
    data = read_small(path)
    try:
        given = toml_values(data.decode("utf-8"))
    except ValueError as error:
        raise DamagedFile(f"{path}: not valid TOML ({error})") from error
    for key, value in given.items():
        kind = _SECTIONS.get(key)
        if kind is None:
            raise UsageError(f"{path}: {key} is unknown; known: {', '.join(_SECTIONS)}")
        if not isinstance(value, kind):
            raise UsageError(f"{path}: {key} must be of type {kind.__name__}")
    like = given.get("like")
    if like not in SUPPORTED_MODEL_TYPES:
        known = ", ".join(SUPPORTED_MODEL_TYPES)
        raise UsageError(f"{path}: like is {str(like)[:60]!r}; it must be one of {known}")
    for section in ("config", "tensors"):
        for key, value in given.get(section, {}).items():
            if not isinstance(value, str):
                raise UsageError(f"{path}: {section} {key} must be a name in quotation marks")
            if section == "tensors" and (_LAYER in key) != (_LAYER in value):
                raise UsageError(f"{path}: tensors {key}: both names or neither must have {_LAYER}")
    ignore = tuple(str(ending) for ending in given.get("ignore", ()))
    if not all(ignore):
        raise UsageError(f"{path}: ignore has an empty ending, which would ignore every tensor")
    sections = {name: given.get(name, {}) for name in ("config", "values", "tensors")}
    return Roles(like=given["like"], ignore=ignore, **sections)
