"""A tiny random model that can talk, compiled for this machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dielet.checkpoint.random import RandomCheckpoint
from dielet.image import compile_checkpoint
from tests.generate.fake import TEMPLATE, byte_level_tokenizer
from tests.models import QWEN, options


def talking(folder: Path, **given: object) -> Path:
    """Compile into `folder`; every token may be followed by any other, none ends an answer."""
    tokenizer = byte_level_tokenizer()
    spec = msgspec.structs.replace(
        QWEN, vocab=tokenizer.get_vocab_size(with_added_tokens=True), eos_ids=()
    )
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }
    return compile_checkpoint(RandomCheckpoint(spec, 7, files), folder, options(**given))
