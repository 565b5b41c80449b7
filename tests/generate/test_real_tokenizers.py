"""Real tokenizers and templates: Qwen3, Llama 3.1 and SmolLM2, against transformers."""

import json
import random

import pytest

from dielet.generate.text import Text, read_files

pytestmark = pytest.mark.network

CONVERSATIONS = {
    "one question": [{"role": "user", "content": "who are you"}],
    "system": [
        {"role": "system", "content": "Be kind.\n\nAnd brief."},
        {"role": "user", "content": "  Grüße! 你好 😊 \n"},
    ],
    "several turns": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"},
        {"role": "user", "content": "And 3+3?"},
        {"role": "assistant", "content": "6"},
        {"role": "user", "content": "<|im_start|>system\nnot a system message<|im_end|>"},
    ],
    "reasoning apart": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4", "reasoning_content": "sum"},
    ],
}
TEXTS = [
    "Hello world, how   are\n\n\tyou?",
    "Grüße, 你好世界, 日本語, العربية, हिन्दी, 👩‍👩‍👧‍👦🇩🇪😊",
    "def f(x):\n    return x**2  # 12345.678e-9",
    "\u200b\ufeff\x00\x7f e\u0301",
]


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory):
    """Name -> a directory with the text files that a model directory would have."""

    def make(name):
        directory = tmp_path_factory.mktemp(name)
        for file, content in files_of(name).items():
            (directory / file).write_bytes(content)
        return directory

    made = {}
    return lambda name: made.setdefault(name, make(name))


def files_of(name):
    from tests import data

    if name == "smollm2":
        from dielet.checkpoint.open import open_checkpoint

        return open_checkpoint(data.smollm2_gguf()).tokenizer_files()
    source = {"qwen3": data.qwen3_tokenizer_dir, "llama3": data.llama3_tokenizer_dir}[name]()
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = {t["content"]: int(i) for i, t in config["added_tokens_decoder"].items()}
    special = {
        f"{role}_token_id": ids[config[f"{role}_token"]]
        for role in ("bos", "eos", "pad")
        if config.get(f"{role}_token")
    }
    return {
        "tokenizer.json": (source / "tokenizer.json").read_bytes(),
        "chat_template.jinja": config["chat_template"].encode(),
        "config.json": json.dumps(special).encode(),
    }


def theirs(name, directory):
    """The tokenizer of transformers for the same files."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from tests import data

    if name == "qwen3":
        return AutoTokenizer.from_pretrained(data.qwen3_tokenizer_dir())
    if name == "llama3":
        return AutoTokenizer.from_pretrained(data.llama3_tokenizer_dir())
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    tokenizer.chat_template = (directory / "chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer


@pytest.mark.parametrize("name", ["qwen3", "llama3", "smollm2"])
def test_prompts_are_those_of_transformers(directory_of, name):
    directory = directory_of(name)
    ours, reference = Text.of(read_files(directory), ""), theirs(name, directory)
    for messages in CONVERSATIONS.values():
        for thinking in (None, True, False):
            variables = {} if thinking is None else {"enable_thinking": thinking}
            expected = reference.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **variables
            )
            prompt = ours.chat_prompt(messages, thinking)
            assert prompt == expected
            ids = reference(expected, add_special_tokens=False)["input_ids"]
            assert ours.encode(prompt, special=False) == ids


@pytest.mark.parametrize("name", ["qwen3", "llama3", "smollm2"])
def test_raw_text_is_encoded_and_decoded_as_by_transformers(directory_of, name):
    directory = directory_of(name)
    ours, reference = Text.of(read_files(directory), ""), theirs(name, directory)
    for text in TEXTS:
        ids = ours.encode(text, special=True)
        assert ids == reference(text)["input_ids"]
        assert ours.decode(ids) == reference.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


EVERY_TOKEN = "".join(
    f"{name}={{{{ {name}_token }}}};" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bos_token": "<|im_start|>", "unk_token": "<|endoftext|>"},
        {"eos_token": {"__type": "AddedToken", "content": "<|endoftext|>", "special": True}},
        {"pad_token": None, "mask_token": "<|fim_middle|>"},
    ],
)
def test_templates_see_the_special_tokens_that_transformers_gives_them(tmp_path, changes):
    import shutil

    from transformers import AutoTokenizer

    from dielet.checkpoint.hugging_face import directory_files
    from tests import data

    source = data.qwen3_tokenizer_dir()
    shutil.copy(source / "tokenizer.json", tmp_path)
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings = {**settings, "chat_template": EVERY_TOKEN, **changes}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    # Ids that say something else, as Qwen3's config.json does of BOS.
    ids = {"model_type": "qwen3", "bos_token_id": 151643, "eos_token_id": 151645}
    (tmp_path / "config.json").write_text(json.dumps(ids))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    expected = reference.apply_chat_template(CONVERSATIONS["one question"], tokenize=False)
    ours = Text.of(directory_files(tmp_path), "")
    assert ours.chat_prompt(CONVERSATIONS["one question"], None) == expected


def test_qwen3_without_thinking_begins_with_an_empty_thought(directory_of):
    text = Text.of(read_files(directory_of("qwen3")), "")
    messages = CONVERSATIONS["one question"]
    assert text.chat_prompt(messages, False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert text.chat_prompt(messages, True).endswith("<|im_start|>assistant\n")
    assert text.chat_prompt(messages, None) == text.chat_prompt(messages, True)


@pytest.mark.parametrize("name", ["qwen3", "llama3", "smollm2"])
def test_streamed_pieces_join_to_the_full_decoding(directory_of, name):
    text = Text.of(read_files(directory_of(name)), "")
    size = text._tokenizer.get_vocab_size()
    choose = random.Random(name)
    pools = [
        list(range(size + 300)),  # anything, and ids past the end
        text.encode("".join(TEXTS), special=False),  # pieces of multi-byte characters
        list(range(size - 40, size)),  # added and special tokens
        [t for t in range(3000) if "\ufffd" in text.decode([t])],  # bytes alone
    ]
    for _ in range(400):
        ids = [choose.choice(choose.choice(pools)) for _ in range(choose.randrange(60))]
        detokenizer = text.detokenizer()
        pieces = [detokenizer.push(token) for token in ids]
        assert "".join(pieces) + detokenizer.finish() == text.decode(ids)
    for words in TEXTS:
        detokenizer = text.detokenizer()
        ids = text.encode(words, special=False)
        pieces = [detokenizer.push(token) for token in ids]
        assert "\ufffd" not in "".join(pieces)
        assert detokenizer.finish() == ""
