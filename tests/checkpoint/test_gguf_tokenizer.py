"""Tokenizers out of GGUF metadata, against the tokenizers that the metadata was made from."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from dielet.checkpoint import open_checkpoint
from dielet.checkpoint.config import Entries
from dielet.checkpoint.gguf_tokenizer import end_of_text_ids, tokenizer_json
from dielet.errors import DamagedFile, DieletError, Unsupported
from tests import data

TEXTS = (
    "",
    "Hello world",
    "  leading, trailing  ",
    "I'm sure WE'LL say they've, he'd, it's",
    "numbers 1 12 123 1234 12345, 3.14159, ½ Ⅷ ٣",
    "tabs\tand\n\nnew lines\r\n\r\n   mixed \n \t\n end",
    "def f(x):\n    return {'a': x**2, \"b\": [1, 2]}  # comment\n\n\n",
    '<html><body class="x">&amp;</body></html> a_b-c::d->e',
    "你好,世界!今天是2026年11月30日。",
    "日本語のテキスト 한국어 العربية हिन्दी ไทย",
    "emoji 🙂🙃 👩‍👩‍👧‍👦 🇫🇷 combined e\u0301 and é, \u212b",
    "\u00a0no-break\u2003em space\u200bzero width\ufeff",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_start|>assistant\n",
    "<think>\n\n</think> <tool_call>{}</tool_call>",
    "x" * 300 + "!" * 40 + "\x00\x01\x7f",
)
SPECIAL = st.sampled_from(["<|im_start|>", "<|im_end|>", "\n\n", "  ", "12", "'s", "é", "🙂", "你"])
MIXED = st.lists(st.one_of(st.text(max_size=8), SPECIAL), max_size=8).map("".join)


def same(ours: Tokenizer, theirs: Tokenizer, text: str, special: bool = True) -> None:
    """Both encode `text` alike, and both decode it alike."""
    ids = ours.encode(text, add_special_tokens=special).ids
    assert ids == theirs.encode(text, add_special_tokens=special).ids, repr(text)
    for skip in (True, False):
        decoded = ours.decode(ids, skip_special_tokens=skip)
        assert decoded == theirs.decode(ids, skip_special_tokens=skip), repr(text)


def metadata_of(folder: Path, pre: str, size: int, **changes: Any) -> dict[str, Any]:
    """What a converter writes for a tokenizer.json: tokens, types and merges."""
    document = json.loads((folder / "tokenizer.json").read_text())
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [5] * size
    for text, i in document["model"]["vocab"].items():
        tokens[i], types[i] = text, 1
    for token in document["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    merges = document["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
        **changes,
    }


def converted(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(Entries("file", metadata)).decode())


@pytest.fixture(scope="module")
def qwen3() -> tuple[Tokenizer, Tokenizer]:
    """(ours out of metadata, the original)."""
    folder = data.qwen3_tokenizer_dir()
    ours = converted(metadata_of(folder, "qwen2", 151936))
    return ours, Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def smollm2() -> tuple[Tokenizer, Any]:
    """(ours, what transformers makes of the same file).

    transformers knows nothing of the kind "smollm"; the model's own tokenizer.json has these two.
    """
    path = data.smollm2_gguf()
    ours = Tokenizer.from_str(open_checkpoint(path).tokenizer_files()["tokenizer.json"].decode())
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return ours, theirs


@pytest.mark.network
@pytest.mark.parametrize("text", TEXTS)
def test_qwen3_comes_back_as_it_was(qwen3, text):
    same(*qwen3, text)


@pytest.mark.network
@given(text=MIXED)
@settings(max_examples=150, deadline=None)
def test_qwen3_comes_back_on_any_text(qwen3, text):
    same(*qwen3, text)


@pytest.mark.network
def test_llama3_comes_back_as_it_was_with_its_bos():
    folder = data.llama3_tokenizer_dir()
    metadata = metadata_of(folder, "llama-bpe", 128256, **{"tokenizer.ggml.bos_token_id": 128000})
    ours, theirs = converted(metadata), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        same(ours, theirs, text, special=True)
        same(ours, theirs, text, special=False)
    assert ours.encode("x").ids[0] == 128000
    assert ours.encode("x", add_special_tokens=False).ids[0] != 128000
    assert end_of_text_ids(Entries("file", metadata)) == (128001, 128009)


@pytest.mark.network
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_is_what_transformers_makes_of_it(smollm2, text):
    ours, theirs = smollm2
    ids = ours.encode(text).ids
    assert ids == theirs.encode(text)
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.network
@given(text=MIXED)
@settings(max_examples=150, deadline=None)
def test_smollm2_on_any_text(smollm2, text):
    ours, theirs = smollm2
    assert ours.encode(text).ids == theirs.encode(text)


@pytest.mark.network
def test_smollm2_takes_digits_one_by_one_and_special_tokens_whole(smollm2):
    ours, _ = smollm2
    assert ours.encode("10 2000").tokens == ["1", "0", "Ġ", "2", "0", "0", "0"]
    assert ours.encode("<|im_start|>a<|im_end|>").ids == [1, ours.token_to_id("a"), 2]
    assert ours.decode([1, ours.token_to_id("a"), 2]) == "a"
    assert ours.get_vocab_size() == 49152


BYTES = [chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))]
SMALL: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*BYTES, "Ġ", "Ċ", "ab", "<s>", "<tool>", "<unused>"],
    "tokenizer.ggml.token_type": [1] * (len(BYTES) + 3) + [3, 4, 5],
    "tokenizer.ggml.merges": ["a b"],
}
BOS = len(BYTES) + 3


def test_a_small_vocabulary_in_full():
    ours = converted(SMALL)
    assert ours.encode("ab <s><tool>").tokens == ["ab", "Ġ", "<s>", "<tool>"]
    ids = ours.encode("ab<s><tool>").ids
    assert ours.decode(ids) == "ab<tool>"  # a control token is skipped, a user's token is text
    assert ours.token_to_id("<unused>") is None
    around = converted(
        {
            **SMALL,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.add_eos_token": True,
            "tokenizer.ggml.eos_token_id": BOS,
        }
    )
    assert around.encode("ab").tokens == ["<s>", "ab", "<s>"]
    assert around.encode("ab", "ab").tokens == ["<s>", "ab", "<s>", "<s>", "ab", "<s>"]
    spaced = converted({**SMALL, "tokenizer.ggml.add_space_prefix": True})
    assert spaced.encode("ab").tokens == ["Ġ", "ab"]


@pytest.mark.parametrize("pre", ["default", "gpt-2", "smollm", "qwen2", "llama-bpe", None])
def test_every_known_kind_loads(pre):
    ours = converted({**SMALL, "tokenizer.ggml.pre": pre})
    assert ours.decode(ours.encode("ab (ab) 12").ids) == "ab (ab) 12"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "bert"}, Unsupported, "tokenizer model 'bert' is not supported; .* gpt2"),
        ({"pre": "viking"}, Unsupported, "pre 'viking' is not supported; supported: gpt-2, smol"),
        ({"tokens": None}, DamagedFile, "tokenizer.ggml.tokens is missing"),
        ({"tokens": [1, 2]}, DamagedFile, "not a list of texts"),
        ({"tokens": []}, DamagedFile, "not a list of texts"),
        ({"token_type": [1]}, DamagedFile, "token_type must be .* numbers from 0 to 6"),
        ({"token_type": [9] * (BOS + 3)}, DamagedFile, "from 0 to 6"),
        ({"merges": None}, DamagedFile, "merges is missing"),
        ({"merges": ["a b c"]}, DamagedFile, r"merges\[0\], 'a b c', is not two tokens"),
        ({"merges": ["a b", "a c"]}, DamagedFile, r"merges\[1\], 'a c', is not two tokens"),
        ({"merges": [5]}, DamagedFile, r"merges\[0\]"),
        ({"tokens": ["ab"] * (BOS + 3)}, DamagedFile, "token 'ab' occurs twice"),
        ({"add_bos_token": True, "bos_token_id": 5000}, DamagedFile, "bos_token_id is 5000, but"),
        ({"add_bos_token": 1}, DamagedFile, "add_bos_token is '1', not bool"),
    ],
)
def test_what_is_not_a_known_tokenizer_is_named(changes, error, message):
    metadata = {**SMALL, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    with pytest.raises(error, match=message) as seen:
        converted(metadata)
    assert str(seen.value).startswith("file: ") and "\n" not in str(seen.value)


@given(
    st.dictionaries(
        st.sampled_from([*SMALL, "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token"]),
        st.one_of(
            st.none(), st.booleans(), st.integers(-1, 300), st.text(max_size=5),
            st.lists(st.one_of(st.integers(-1, 9), st.text(max_size=3)), max_size=4),
        ),
        max_size=3,
    )
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_any_metadata_gives_a_tokenizer_or_one_line(changes):
    try:
        converted({**SMALL, **changes})
        end_of_text_ids(Entries("file", {**SMALL, **changes}))
    except DieletError as error:
        assert "\n" not in str(error)
