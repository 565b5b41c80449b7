"""Directories of optimum-rbln: what is left in one, what loading refuses of one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dielet.compat import said
from dielet.compat.rbln_models import (
    RBLNLlamaForCausalLMConfig,
    RBLNQwen3ForCausalLM,
)
from dielet.compat.rbln_options import RBLNDecoderOnlyModelForCausalLMConfig
from dielet.errors import DamagedFile, UsageError
from tests.compat.tiny import words
from tests.tiny import make

OPTIONS: dict[str, Any] = {
    "rbln_max_seq_len": 256, "rbln_prefill_chunk_size": 64, "rbln_create_runtimes": False,
}  # fmt: skip
TWO = {"rbln_batch_size": 2, "rbln_decoder_batch_sizes": [1, 2]}


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_said", set())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "qwen3"
    make(path, "qwen3", num_attention_heads=8, num_key_value_heads=4, eos_token_id=None)
    words().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def one_layer(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "m"
    RBLNQwen3ForCausalLM.from_pretrained(
        source, True, num_hidden_layers=1, model_save_dir=path, **TWO, **OPTIONS
    )
    return path


def test_fewer_layers_are_told_and_kept(one_layer: Path, source: Path) -> None:
    """transformers, reading what was saved beside the model, has the same layers."""
    own = AutoConfig.from_pretrained(one_layer)
    assert own.num_hidden_layers == len(own.layer_types) == 1
    theirs = AutoModelForCausalLM.from_pretrained(source, config=own)
    assert len(theirs.model.layers) == 1
    for more in ({}, {"num_hidden_layers": 1}, {"config": own}):
        model = RBLNQwen3ForCausalLM.from_pretrained(one_layer, rbln_create_runtimes=False, **more)
        assert model.config.num_hidden_layers == 1
    for asked in (2, 0, "1"):
        with pytest.raises(UsageError, match=rf"num_hidden_layers is {asked!r}, .* compiled with"):
            RBLNQwen3ForCausalLM.from_pretrained(one_layer, num_hidden_layers=asked)
    with pytest.raises(UsageError, match=r"config differs .* in .*num_hidden_layers"):
        RBLNQwen3ForCausalLM.from_pretrained(one_layer, config=AutoConfig.from_pretrained(source))
    for asked, message in ((0, "layers is 0"), (3, "layers 3: the model has 2"), ("x", "'x'")):
        with pytest.raises(UsageError, match=message):
            RBLNQwen3ForCausalLM.from_pretrained(source, True, num_hidden_layers=asked, **OPTIONS)


def test_decoders_of_an_earlier_compilation_go(
    one_layer: Path, source: Path, tmp_path: Path
) -> None:
    def files() -> set[str]:
        return {path.name for path in target.glob("*.rbln")}

    target = tmp_path / "m"
    shutil.copytree(one_layer, target)
    (target / "notes.txt").write_text("so that it is not replaced as a whole")
    (target / "theirs.rbln").write_bytes(b"\x80 another program's")
    (target / "like.rbln").write_text("{}")
    model = RBLNQwen3ForCausalLM.from_pretrained(source, True, model_save_dir=target, **OPTIONS)
    kept = {"prefill.rbln", "decoder_batch_1.rbln", "theirs.rbln", "like.rbln"}
    assert files() == kept
    target = tmp_path / "saved"
    shutil.copytree(one_layer, target)
    (target / "theirs.rbln").write_bytes(b"\x80 another program's")
    assert "decoder_batch_2.rbln" in files()
    model.save_pretrained(target)
    assert files() == kept, "and what the folder had besides"
    RBLNQwen3ForCausalLM.from_pretrained(target, rbln_create_runtimes=False)


def test_a_checkpoint_is_not_compiled_into_itself(source: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    (tmp_path / "link").symlink_to(source)
    for out in (source, tmp_path / "link", f"{source}/../qwen3"):
        with pytest.raises(UsageError, match=r"is the checkpoint itself; name another directory"):
            RBLNQwen3ForCausalLM.from_pretrained(source, True, model_save_dir=out, **OPTIONS)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


EDITED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "context": ({"max_seq_len": 128, "kvcache_block_size": 128}, DamagedFile,
                "max_seq_len says 128, and the model was compiled with 256"),
    "chunk": ({"prefill_chunk_size": 128}, DamagedFile, "prefill_chunk_size says 128, .* 64"),
    "batch": ({"batch_size": 4, "decoder_batch_sizes": [4]}, DamagedFile,
              r"decoder_batch_sizes says \(1, 4\), .* \(1, 2\)"),
    "devices": ({"num_devices": 2}, DamagedFile, "num_devices says 2, .* with 1"),
    "npu": ({"npu": "RBLN-CA25"}, DamagedFile, "npu says 'atom', .* 'rebel100'"),
    "weights": ({"quantization": {"weights": "int8"}}, DamagedFile, "quantization says 'int8'"),
    "kind": ({"batch_size": "2"}, UsageError, "batch_size is '2'"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_configuration(name: str, one_layer: Path, tmp_path: Path) -> None:
    change, error, message = EDITED[name]
    shutil.copytree(one_layer, tmp_path / "m")
    path = tmp_path / "m" / "rbln_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(error, match=message):
        RBLNQwen3ForCausalLM.from_pretrained(tmp_path / "m", rbln_create_runtimes=False)


def test_the_dtype_is_one_of_torch_by_either_name(one_layer: Path) -> None:
    for dtype in (torch.bfloat16, "bfloat16", None):
        RBLNQwen3ForCausalLM.from_pretrained(
            one_layer, rbln_dtype=dtype, rbln_create_runtimes=False
        )
    with pytest.raises(UsageError, match=r"rbln_dtype is 'float16', .* compiled with 'bfloat16'"):
        RBLNQwen3ForCausalLM.from_pretrained(one_layer, rbln_dtype=torch.float16)


def test_a_configuration_is_that_of_the_class(source: Path) -> None:
    for kind in (RBLNLlamaForCausalLMConfig, RBLNDecoderOnlyModelForCausalLMConfig):
        with pytest.raises(UsageError, match=rf"is a {kind.__name__}; give a dict or a RBLNQwen3"):
            RBLNQwen3ForCausalLM.from_pretrained(source, True, kind(max_seq_len=256))


def test_nothing_is_announced_that_is_refused(source: Path, capsys) -> None:
    for length, message in ((250, "must be a multiple of 32; use 224"), (8192, "use at most 4096")):
        with pytest.raises(UsageError, match=message):
            RBLNQwen3ForCausalLM.from_pretrained(
                source, True, **{**OPTIONS, "rbln_max_seq_len": length}
            )
    assert "compiling" not in capsys.readouterr().err
