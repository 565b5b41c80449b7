"""The vendor's files in a compiled model's directory: `*.rbln` and `rbln_config.json`.

A `.rbln` file here names the programs that stand for the vendor's compiled model; their commands
and the weights are in the images beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dielet import __version__
from dielet.checkpoint.filemap import read_small
from dielet.compat.rbln_checks import check_kinds
from dielet.compat.rbln_errors import NoRuntime, WrongClass
from dielet.compat.rbln_options import (
    COMPILE,
    RUNTIME,
    UNSAVED,
    RBLNDecoderOnlyModelForCausalLMConfig,
    model_names,
)
from dielet.compat.said import say_once
from dielet.devices import load_device
from dielet.errors import DamagedFile, MissingFile, UsageError
from dielet.image import Manifest, read_manifest
from dielet.image.names import DECODER

CONFIG = "rbln_config.json"
OPTIMUM = "0.12.0"  # the version whose interface this is
Config = RBLNDecoderOnlyModelForCausalLMConfig
_MODEL_KEYS = {"programs", "image", "sha256"}  # of a `.rbln` file
_OWN = ("cls_name", "optimum_rbln_version", "dielet_version", "cache_metas", "_compile_cfgs")


def is_artefact(directory: Path) -> bool:
    return (directory / CONFIG).is_file() and any(directory.glob("*.rbln"))


def files_of(directory: Path, config: Config, cls_name: str) -> dict[str, bytes]:
    """What makes the compiled model `directory` one of the vendor's."""
    manifest = read_manifest(directory)
    models = {f"{name}.rbln": _json(_model(name, manifest)) for name in model_names(config)}
    return {**models, CONFIG: _json(_description(config, cls_name, manifest))}


def class_of(directory: Path) -> str:
    """The name of the class that `directory` was compiled as."""
    return str(_saved(directory).get("cls_name"))


def read_config(directory: Path, cls_name: str, given: Config) -> Config:
    """The options that `directory` was compiled with, and of `given` those of a runtime.

    Raises what the vendor raises for another class, another version, and changed options.
    """
    check_kinds(given)
    path, saved = directory / CONFIG, _saved(directory)
    if saved.get("cls_name") != cls_name:
        raise WrongClass(
            f"{directory} was compiled as {saved.get('cls_name')}, not {cls_name}; load it as that"
        )
    strange = [name for name in saved if name not in COMPILE and name not in _OWN]
    if strange:
        raise UsageError(
            f"unexpected arguments: {path} has {', '.join(strange)}; it was written by "
            f"{saved.get('optimum_rbln_version')}, and {OPTIMUM} is read: compile the model again"
        )
    values = {name: saved[name] for name in COMPILE if name in saved}
    _refuse_changes(given, values)
    if given.memory_budget is not None:
        say_once(
            "rbln_memory_budget has no effect on a compiled model, whose KV blocks are counted"
        )
    config = type(given)(**values)
    config.update({name: getattr(given, name) for name in given.given if name in RUNTIME})
    return config


def _saved(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not path.exists():
        raise MissingFile(
            f"{path} is missing; compile the model with export=True, or save one there"
        )
    data = read_small(path)
    try:
        saved = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: not valid JSON ({error}); compile the model again") from None
    if not isinstance(saved, dict) or "_meta" in saved:
        raise NoRuntime(f"{path} is of an old version of optimum-rbln; compile the model again")
    return saved


def _refuse_changes(given: Config, values: Mapping[str, Any]) -> None:
    for name in sorted(given.given - set(RUNTIME) - set(UNSAVED)):
        asked = getattr(given, name)
        if asked is not None and asked != values.get(name):
            raise UsageError(
                f"rbln_{name} is {asked!r}, and the model was compiled with {values.get(name)!r}; "
                "leave it out, or compile again with export=True"
            )


def check_compiled(directory: Path, config: Config, manifest: Manifest) -> None:
    """DamagedFile unless settled options are those that the programs were compiled with."""
    options = config.compile_options()
    for name, said, found in (
        ("npu", load_device(options.device).name, manifest.device),
        ("num_devices", config.num_devices, manifest.devices),
        ("max_seq_len", config.max_seq_len, manifest.max_seq_len),
        ("prefill_chunk_size", config.prefill_chunk_size, manifest.prefill_chunk),
        ("decoder_batch_sizes", options.resolved_batch_sizes(), manifest.batch_sizes),
        ("quantization", options.weights, manifest.weights),
    ):
        if said != found:
            raise DamagedFile(
                f"{directory / CONFIG}: {name} says {said!r}, and the model was compiled with "
                f"{found!r}; compile the model again"
            )


def check_models(directory: Path, config: Config) -> None:
    """Raise MissingFile unless every `.rbln` file is there; others are said."""
    wanted = {f"{name}.rbln" for name in model_names(config)}
    found = {path.name for path in directory.glob("*.rbln")}
    if missing := sorted(wanted - found):
        raise MissingFile(f"{directory} has no {', '.join(missing)}; compile the model again")
    if extra := sorted(found - wanted):
        say_once(f"{directory} has {', '.join(extra)} besides, which belong to nothing")


def remove_stale(directory: Path, config: Config) -> None:
    """Remove `.rbln` files that an earlier compilation by dielet left, and no others."""
    wanted = {f"{name}.rbln" for name in model_names(config)}
    for path in directory.glob("*.rbln"):
        if path.name not in wanted and _is_ours(path):
            path.unlink()


def _is_ours(path: Path) -> bool:
    try:
        found = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() == _MODEL_KEYS


def _model(name: str, manifest: Manifest) -> dict[str, Any]:
    phase = "prefill" if name == "prefill" else f"decode_{name.rpartition('_')[2]}"
    programs = [p.name for p in manifest.programs if p.name.startswith(f"{phase}_")]
    return {"programs": programs, "image": DECODER, "sha256": manifest.files[DECODER].sha256}


def _description(config: Config, cls_name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "cls_name": cls_name,
        "optimum_rbln_version": OPTIMUM,
        "dielet_version": __version__,
        **config.compile_values(),
        "cache_metas": _cache_metas(config, manifest),
        "_compile_cfgs": [_compile_cfg(name, config, manifest) for name in model_names(config)],
    }


def _cache_shape(config: Config, manifest: Manifest) -> list[int]:
    spec = manifest.spec
    return [config.kvcache_num_blocks, spec.kv_heads, config.kvcache_block_size, spec.head_dim]


def _cache_metas(config: Config, manifest: Manifest) -> list[dict[str, Any]]:
    """Keys and values alternate: entry 2i is layer i's keys, 2i+1 its values."""
    return [
        {
            "name": f"past_key_values_{number}",
            "layer_index": number // 2,
            "shape": _cache_shape(config, manifest),
            "layer_type": (
                "sliding_attention"
                if number // 2 in config.sliding_window_layers
                else "full_attention"
            ),
            "is_auto": False,
            "dtype": config.dtype,
        }
        for number in range(2 * manifest.spec.layers)
    ]


def _compile_cfg(name: str, config: Config, manifest: Manifest) -> dict[str, Any]:
    blocks = config.max_seq_len // config.kvcache_block_size
    if name == "prefill":
        rows, columns, tables = 1, config.prefill_chunk_size, [blocks]
    else:
        rows = int(name.rpartition("_")[2])
        columns, tables = 1, [rows, blocks]
    inputs: list[list[Any]] = [
        ["input_ids", [rows, columns], "int64"],
        ["cache_position", [rows, columns], "int32"],
        ["block_tables", tables, "int16"],
    ]
    if name == "prefill":
        inputs.append(["query_position", [], "int16"])
    inputs += [
        [f"past_key_values_{number}", _cache_shape(config, manifest), config.dtype]
        for number in range(2 * manifest.spec.layers)
    ]
    return {
        "compiled_model_name": name,
        "input_info": inputs,
        "npu": config.npu,
        "num_devices": config.num_devices,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()
