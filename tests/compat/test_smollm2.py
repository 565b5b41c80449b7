"""A real model behind transformers' interface, beside transformers itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from dielet.compat.transformers import DieletForCausalLM
from tests.numbers import measure
from tests.numbers.conftest import smollm2  # noqa: F401  (a fixture)
from tests.numbers.models import SmolLM2

pytestmark = [pytest.mark.network, pytest.mark.slow]
NEW = 100


@pytest.fixture(scope="module")
def ours(smollm2: SmolLM2, tmp_path_factory: pytest.TempPathFactory):  # noqa: F811
    out = tmp_path_factory.mktemp("ours") / "m"
    with DieletForCausalLM.from_pretrained(
        smollm2.hugging_face, out=out, max_seq_len=2048, batch_sizes=(1, 5)
    ) as model:
        yield model


def test_greedy_answers_are_those_of_transformers(smollm2: SmolLM2, ours) -> None:  # noqa: F811
    """Five prompts in one batch, in bfloat16: the same tokens but for ties within the error."""
    texts = [smollm2.encode(text) for text in measure.PROMPTS.values()]
    width = max(map(len, texts))
    ids = torch.stack(
        [torch.cat([torch.zeros(width - len(t)), torch.from_numpy(t)]) for t in texts]
    ).long()
    mask = torch.stack([(torch.arange(width) >= width - len(t)).long() for t in texts])
    options = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0}
    found = ours.generate(ids, attention_mask=mask, **options)
    theirs = smollm2.hugging_face_oracle.generate(ids, attention_mask=mask, **options)
    allowed = smollm2.score("bf16").measured_error
    same = 0
    for prompt, answer, expected in zip(texts, found, theirs, strict=True):
        tokens = answer[width:].numpy().astype(np.int32)
        ties = measure.judged(smollm2.hugging_face_oracle, prompt, tokens)
        assert all(tie.gap <= allowed for tie in ties), f"beyond {allowed:.3f}: {ties}"
        first = ties[0].position if ties else NEW
        assert tokens[:first].tolist() == expected[width:][:first].tolist()
        same += not ties
    assert same >= 1, "some answers are the same to the last token"


def test_a_gguf_file_with_its_tokenizer(smollm2: SmolLM2, tmp_path: Path) -> None:  # noqa: F811
    """One file in, and tokenizer and chat template come out for transformers to use."""
    out = tmp_path / "m"
    with DieletForCausalLM.from_pretrained(smollm2.gguf, out=out, max_seq_len=512) as model:
        tokenizer = AutoTokenizer.from_pretrained(out)
        question = [{"role": "user", "content": "What is the capital city of France, please?"}]
        inputs = tokenizer.apply_chat_template(
            question, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        answer = model.generate(**inputs, max_new_tokens=20, do_sample=False)
        assert "Paris" in tokenizer.decode(answer[0], skip_special_tokens=True)
