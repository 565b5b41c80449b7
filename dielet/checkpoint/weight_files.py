"""The safetensors files of a directory, as the tensors that they stand for.

Where a linear is quantised, the tensors that make it up are one here, under the name and in the
shape of the weight that it would otherwise have.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from dielet.checkpoint import awq, fp8, gptq
from dielet.checkpoint.config import Entries, read_json
from dielet.checkpoint.names import shown
from dielet.checkpoint.quantization import Quantization
from dielet.checkpoint.safetensors import SafetensorsFile
from dielet.checkpoint.source import FileTensor, Source
from dielet.errors import DamagedFile, MissingFile, Unsupported

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class WeightFiles:
    """`where`: what to call the files together.  `shapes`: of the tensors, by name.

    Raises MissingFile, DamagedFile or Unsupported when opened.
    """

    def __init__(self, directory: Path, quantization: Quantization | None = None) -> None:
        self.where, self.files = _open_files(directory)
        self._home = {name: file for file in self.files for name in file.shapes}
        self._linears: dict[str, Source] = {}
        self._unused: tuple[str, ...] = ()
        parts: set[str] = set()
        if quantization is not None:
            parts = self._read_linears(quantization)
        shapes = {name: file.shapes[name] for name, file in self._home.items() if name not in parts}
        self.shapes = shapes | {name: linear.shape for name, linear in self._linears.items()}

    def _read_linears(self, how: Quantization) -> set[str]:
        """Fill in the quantised linears; the names of the tensors that they are made of."""
        if how.method == "fp8":
            self._unused = fp8.UNUSED
            found = list(fp8.fp8_linears(self._home, how))
            self._linears = {linear.name: linear for linear, _ in found}
            return {scale for _, scale in found}
        linears, kinds = {
            "gptq": (gptq.gptq_linears, gptq.PARTS),
            "awq": (awq.awq_linears, awq.PARTS),
        }[how.method]
        self._linears = {linear.name: linear for linear in linears(self._home, how)}
        for name in self._linears:
            if name in self._home:
                raise DamagedFile(
                    f"{self._home[name].path}: {shown(name)} is there both quantised and as it was"
                )
        stems = [name.removesuffix("weight") for name in self._linears]
        return {f"{stem}{kind}" for stem in stems for kind in kinds}

    def tensor(self, name: str) -> Source:
        """The tensor; raises Unsupported for a number format that is not read."""
        return self._linears.get(name) or self._home[name].tensor(name)

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors, neither of them quantised, hold the same numbers."""
        first, second = self.tensor(name), self.tensor(other)
        if isinstance(first, FileTensor) and isinstance(second, FileTensor):
            return first.same_bytes(second)
        return False

    def is_unused(self, name: str) -> bool:
        """Whether a tensor that no decoder expects changes nothing: of a quantiser's own business,
        or the bias of zeros that some of them give to every linear."""
        if name.endswith(self._unused):
            return True
        stem, _, last = name.rpartition(".")
        linear = self._linears.get(f"{stem}.weight")
        if linear is None or last != "bias" or self.shapes[name] != (linear.N,):
            return False
        return not self.tensor(name).array().any()


def _open_files(directory: Path) -> tuple[str, list[SafetensorsFile]]:
    """What to call the weight files together, and the files."""
    single = directory / WEIGHTS
    if single.is_file():
        return str(single), [SafetensorsFile(single)]
    index = directory / INDEX
    if index.is_file():
        return str(index), _open_shards(directory, read_json(index))
    others = sorted(directory.glob("*.safetensors"))
    if len(others) == 1:
        return str(others[0]), [SafetensorsFile(others[0])]
    pickles = [p for p in sorted(directory.iterdir()) if p.suffix in PICKLES and p.is_file()]
    if pickles and not others:
        raise Unsupported(pickle_refusal(max(pickles, key=lambda path: path.stat().st_size)))
    raise MissingFile(f"{directory} has neither {WEIGHTS} nor {INDEX}")


def pickle_refusal(path: Path) -> str:
    """Why weights that PyTorch pickled are not read, and the command that converts them."""
    folder = str(path.parent)
    code = (
        f"import transformers as t; a, b = {json.dumps(folder)}, "
        f"{json.dumps(folder + '-safetensors')}; "
        't.AutoModelForCausalLM.from_pretrained(a, dtype="auto").save_pretrained(b); '
        "t.AutoTokenizer.from_pretrained(a).save_pretrained(b)"
    )
    return (
        f"{path} is a pickle, which can run any code of its maker's when it is read; where you "
        f"trust it, convert it: python -c {shlex.quote(code)}"
    )


def _open_shards(directory: Path, index: Entries) -> list[SafetensorsFile]:
    weight_map: dict[str, Any] = index.get("weight_map", dict)
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _SHARD.fullmatch(name):
            raise DamagedFile(
                f"{index.where}: tensor {shown(tensor)} lies in {shown(name)!r}, "
                "which is not the name of a file beside it"
            )
    shards = {name: SafetensorsFile(directory / name) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in shards[name].shapes:
            raise DamagedFile(f"{index.where}: tensor {shown(tensor)} is not in {name} as it says")
    seen: dict[str, str] = {}
    for name, shard in shards.items():
        for tensor in shard.shapes:
            if tensor in seen:
                raise DamagedFile(
                    f"{index.where}: tensor {shown(tensor)} is in both {seen[tensor]} and {name}"
                )
            seen[tensor] = name
    return list(shards.values())
