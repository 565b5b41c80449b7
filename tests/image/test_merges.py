"""Shorter merges in tokenizer.json: the same tokenizer, or the same file."""

import json
from pathlib import Path

import pytest
import tokenizers

from dielet.image.merges import with_short_merges
from tests.fuzz.checkpoints import TOKENIZERS

PAIRS = TOKENIZERS[0]


def file(changes=None, **more):
    document = {**PAIRS, "model": {**PAIRS["model"], **(changes or {})}, **more}
    return json.dumps(document, indent=2).encode()


def test_pairs_become_texts_and_nothing_else_changes():
    numbers = '"dropout": 1.50e-1, "order": {"z": 12345678901234567890.0, "a": "\\u00e9 \\/ : ,"}, '
    data = file().replace(b'"vocab"', numbers.encode() + b'"vocab"')
    short = with_short_merges(data)
    assert b"1.50e-1" in short and b'{"z":12345678901234567890.0,"a":"\\u00e9 \\/ : ,"}' in short
    before, after = json.loads(data), json.loads(short)
    assert before["model"].pop("merges") == [["a", "b"]] and after["model"].pop("merges") == ["a b"]
    assert json.dumps(before) == json.dumps(after), "the order of keys stays too"
    assert with_short_merges(short) == short, "texts are left"


@pytest.mark.parametrize(
    "data",
    [
        file({"merges": [["a", "b"], ["a ", "b"]]}),
        file({"merges": [["a", "b"], ["", "b"]]}),
        file({"merges": [["#version", "b"]]}),
        file({"merges": [["a", "b", "ab"]]}),
        file({"merges": [["a", "b"], "a b"]}),
        file({"merges": ["a b"]}),
        file({"type": "Unigram"}),
        file({"type": None}),
        file().replace(b'"merges"', b'"merges": [], "merges"'),
        file().replace(b'"merges"', b'"m\\u0065rges"'),
        file().replace(b'"a",', b'"\\ud800",'),
        file()[:-1],
        b'{"model": {"type": "BPE"}}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
)
def test_what_is_not_plain_stays_byte_for_byte(data):
    assert with_short_merges(data) == data


ALPHABETS = "".join(map(chr, [*range(0x20, 0x250), *range(0x370, 0x600), *range(0x4E00, 0x5200)]))
TEXTS = [
    ALPHABETS,
    "Hello world, how   are\n\n\tyou? I'll say WE'VE <|im_start|>user\r\n <|endoftext|> 12 3456",
    "Grüße, 你好世界, 日本語, العربية, हिन्दी, 한국어 👩‍👩‍👧‍👦🇩🇪😊 \u200b\ufeff\x00\x7f e\u0301 ﬁ",
    "def f(x):\n    return x**2  # 12345.678e-9\n" + "#version 0.2\n" + " " * 40 + "\t" * 9,
    Path(__file__).read_text(encoding="utf-8"),
]


@pytest.mark.network
@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_real_tokenizers_are_the_same_with_shorter_merges(name):
    from tests.generate.test_real_tokenizers import files_of

    data = files_of(name)["tokenizer.json"]
    short = with_short_merges(data)
    assert len(short) < len(data)
    ours, theirs = (tokenizers.Tokenizer.from_str(d.decode()) for d in (short, data))
    assert ours.to_str() == theirs.to_str()
    for text in TEXTS:
        ids = theirs.encode(text).ids
        assert ours.encode(text).ids == ids
        for skip in (True, False):
            decoded = ours.decode(ids, skip_special_tokens=skip)
            assert decoded == theirs.decode(ids, skip_special_tokens=skip)
    count = theirs.get_vocab_size()
    assert [ours.id_to_token(i) for i in range(count)] == [
        theirs.id_to_token(i) for i in range(count)
    ]
