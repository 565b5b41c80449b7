"""A tokenizer.json that makes short texts enormous is refused before it is given any."""

import json

import pytest
import tokenizers

from dielet.errors import DamagedFile
from dielet.generate.text import Text

PLAIN = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
EMPTY = {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 30}
WORDS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def template(pieces, ids=1):
    special = {"Q": {"id": "Q", "ids": [0] * ids, "tokens": ["Q"] * ids}}
    whole = [*pieces, {"Sequence": {"id": "A", "type_id": 0}}]
    made = {"type": "TemplateProcessing", "single": whole, "special_tokens": special}
    return made | {"pair": [*whole, {"Sequence": {"id": "B", "type_id": 0}}]}


def text(**parts):
    return Text.of({"tokenizer.json": json.dumps({**PLAIN, **parts}).encode()}, "m/")


Q = {"SpecialToken": {"id": "Q", "type_id": 0}}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 4}}, r"6.25e\+06 times"),
        ({"normalizer": {"type": "Sequence", "normalizers": [EMPTY] * 6}}, "times as long"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 5000}}, "puts 5000 characters"),
        ({"decoder": {"type": "Sequence", "decoders": [EMPTY] * 8}}, "its decoder may make"),
        ({"post_processor": template([Q] * 1000, 100)}, "puts 100000 tokens"),
    ],
)
def test_what_amplifies_is_refused_in_one_line(parts, why):
    with pytest.raises(DamagedFile, match=rf"^m/tokenizer.json: .*{why}.*compile again$"):
        text(**parts)


def test_what_tokenizers_do_is_far_from_that():
    steps = [WORDS] * 6 + [{"type": "Replace", "pattern": {"String": " "}, "content": "_"}]
    usual = text(
        normalizer={"type": "Sequence", "normalizers": steps},
        decoder={"type": "Replace", "pattern": {"String": "_"}, "content": " "},
        post_processor=template([Q] * 5),
    )
    assert usual.encode("", special=True) == [0] * 5


def test_an_unusable_file_is_said_so_once():
    with pytest.raises(DamagedFile) as error:
        text(model={"type": "Nothing"})
    assert str(error.value).count("not a usable tokenizer") == 1
    assert str(error.value).startswith("m/tokenizer.json: ")
