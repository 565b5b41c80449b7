"""Which files of a directory are its weights, and the refusal of pickles."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from dielet.checkpoint import open_checkpoint
from dielet.checkpoint.weight_files import pickle_refusal
from dielet.errors import MissingFile, Unsupported
from tests.tiny import make

from .make import config, hugging_face, spec, weights


def test_one_file_may_have_any_name(tmp_path):
    one = spec()
    folder = hugging_face(tmp_path, one, weights(one))
    (folder / "model.safetensors").rename(folder / "gptq_model-4bit-128g.safetensors")
    assert len(open_checkpoint(folder).names()) == len(weights(one))
    (folder / "other.safetensors").write_bytes(b"")
    with pytest.raises(MissingFile, match=r"neither model\.safetensors nor"):
        open_checkpoint(folder)


NAMES = ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "model.pt"]


@pytest.mark.parametrize("name", NAMES)
def test_pickles_are_refused_and_never_opened(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(config(spec())))
    (tmp_path / "training_args.bin").write_bytes(b"x")
    (tmp_path / name).write_bytes(b"not even a pickle")
    with pytest.raises(Unsupported) as error:
        open_checkpoint(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / name} is a pickle, which can run any code")
    with pytest.raises(Unsupported) as error:
        open_checkpoint(tmp_path / name)
    assert str(error.value) == message
    assert "\n" not in message and "; where you trust it, convert it: python -c " in message


def test_the_command_that_it_names_converts(tmp_path, monkeypatch):
    """As a shell would split it, in a directory whose name has a space and a quote."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "it's a model"
    model = make(folder, "llama", dtype=torch.bfloat16)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.to(torch.bfloat16).state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(Unsupported) as error:
        open_checkpoint(folder)
    assert str(error.value) == pickle_refusal(folder / "pytorch_model.bin")
    command = re.search(r"convert it: (.*)", str(error.value))
    assert command
    program, flag, code = shlex.split(command[1])
    assert (program, flag) == ("python", "-c")
    exec(compile(code, "<the command>", "exec"), {})
    made = Path(f"{folder}-safetensors")
    checkpoint = open_checkpoint(made)
    state = model.state_dict()
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        assert np.array_equal(tensor.array(), state[tensor.name].float().numpy()), name
    assert "tokenizer.json" in checkpoint.tokenizer_files()
