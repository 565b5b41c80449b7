"""A local hub cache with a tiny Qwen3 under the name that the vendor's script asks for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.data import qwen3_tokenizer_dir
from tests.profiler.oracle import Trace, read
from tests.tiny import make

SCRIPTS = Path(__file__).parent / "scripts"
QWEN3 = "Qwen/Qwen3-1.7B"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZES: dict[str, Any] = {
    "vocab_size": 151936,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
}
EOS = [151645, 151643]


def put_in_cache(home: Path, name: str, model_type: str, **sizes: Any) -> Path:
    """The snapshot of a random model in the hub's cache under HF_HOME=home."""
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    make(snapshot, model_type, spread=4.0, **{**SIZES, **sizes})
    for path in qwen3_tokenizer_dir().iterdir():
        shutil.copyfile(path, snapshot / path.name)
    settings = {"bos_token_id": 151643, "eos_token_id": EOS, "pad_token_id": 151643,
                "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}  # fmt: skip
    (snapshot / "generation_config.json").write_text(json.dumps(settings))
    return snapshot


ROLES = Path(__file__).parents[2] / "docs" / "roles-example.toml"


def unknown_family(folder: Path) -> tuple[Path, Path]:
    """A llama with Qwen3's tokenizer, and the same model under the names of the role map."""
    known, unknown = folder / "known-model", folder / "unknown-model"
    roles = tomllib.loads(ROLES.read_text())
    sizes = {**SIZES, **roles["values"], "num_attention_heads": 4}
    make(known, roles["like"], spread=4.0, eos_token_id=None, **sizes)
    for path in qwen3_tokenizer_dir().iterdir():
        shutil.copyfile(path, known / path.name)
    shutil.copytree(known, unknown)
    config = json.loads((known / "config.json").read_text())
    for key, theirs in roles["config"].items():
        config[theirs] = config.pop(key)
    config = {key: value for key, value in config.items() if key not in roles["values"]}
    config = {**config, "model_type": "gptish", "architectures": ["GptishForCausalLM"]}
    (unknown / "config.json").write_text(json.dumps(config))
    tensors = {
        _renamed(name, roles["tensors"]): tensor
        for name, tensor in load_file(known / "model.safetensors").items()
    }
    save_file(tensors, unknown / "model.safetensors", {"format": "pt"})
    return known, unknown


def _renamed(name: str, names: dict[str, str]) -> str:
    number = next((part for part in name.split(".") if part.isdigit()), "")
    return names[name.replace(f".{number}.", ".{layer}.")].replace("{layer}", number)


def execute(
    script: str | Path, home: Path, cwd: Path, *words: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """`dielet exec SCRIPT words...` in a process of its own, in `cwd`; no network."""
    path = SCRIPTS / script if (SCRIPTS / script).is_file() else script
    return dielet("exec", str(path), *words, home=home, cwd=cwd, **env)


def dielet(*words: str, home: Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    cwd.mkdir(parents=True, exist_ok=True)
    kept = {n: v for n, v in os.environ.items() if n not in ("RBLN_PROFILER", "DIELET_PROFILER")}
    return subprocess.run(
        [sys.executable, "-m", "dielet.cli.main", *words],
        cwd=cwd,
        env={**kept, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", **env},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def written(script: str, cwd: Path) -> Path:
    """Write a script into `cwd`."""
    cwd.mkdir(parents=True, exist_ok=True)
    path = cwd / "script.py"
    path.write_text(script)
    return path


def traces(folder: Path) -> list[Trace]:
    """The merged trace, then those of one execution each; their names are checked."""
    merged = min(folder.glob("rbln_*.pb"), key=lambda path: len(path.name))
    stem = merged.name.removesuffix(".pb")
    date, clock = stem.removeprefix("rbln_").split("_")
    assert len(date) == 8 and (date + clock).isdigit()
    count = len(list(folder.glob("rbln_*.pb"))) - 1
    return [read(merged), *(read(folder / f"{stem}_{n}.pb") for n in range(count))]
