"""Names of GGUF tensors, against the tables of the `gguf` package."""

from __future__ import annotations

import gguf
import pytest

from dielet.checkpoint.gguf_families import FAMILIES
from dielet.checkpoint.names import gguf_name, hugging_face_name
from dielet.checkpoint.stored import Stored
from tests.families import FAMILIES as TINY
from tests.families import spec_of

ARCHITECTURES = {"mistral": "llama", **{name: arch for arch, name in FAMILIES.items()}}
# No .gguf file of a mixture has layers without one.
CASES = [name for name in TINY if not spec_of(name).dense_layers]


@pytest.mark.parametrize("name", CASES)
def test_names_are_those_of_the_package(name: str) -> None:
    spec = spec_of(name, tie_word_embeddings=False)
    wanted = ARCHITECTURES[spec.model_type]
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == wanted)
    table = gguf.get_tensor_name_map(arch, spec.layers)
    for canonical in Stored(spec, by_expert=False).shapes:
        theirs = hugging_face_name(canonical)
        stem, _, suffix = theirs.rpartition(".")
        ours = gguf_name(canonical, spec.post_norms)
        assert ours == f"{table.get_name(stem)}.{suffix}", theirs
