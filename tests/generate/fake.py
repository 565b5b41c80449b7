"""A runtime without a model, and tokenizers small enough to make in a test.

FakeRuntime gives deterministic logits from a hash of everything in the cache, or follows a
script of tokens, and fails loudly when it is used against the contract in `generate/protocol.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dielet.checkpoint.spec import ModelSpec
from dielet.errors import CapacityError
from dielet.generate.sampling import Sampling
from dielet.generate.session import Model
from dielet.generate.template import ChatTemplate
from dielet.generate.text import Text

CORPUS = [
    "Hello! I'm an assistant. Feel free to ask me anything, anywhere, any time.",
    "Grüße aus Köln, 你好世界, 日本語のテキスト, emoji 😊👩‍👩‍👧‍👦🇩🇪,"
    " and   many    spaces\n\n\tand tabs.",
    "def main(): return [x * 2 for x in range(10)]  # 0123456789",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)


@dataclass
class FakeLogits:
    values: np.ndarray

    @property
    def argmax(self) -> int:
        return int(np.argmax(self.values))


@dataclass
class FakeState:
    tokens: list[int] = field(default_factory=list)
    program_switches: int = 0
    prompt: int = 0  # where the script begins: after the last token that was not decoded
    choosing: bool = False  # the last execution gave logits
    decoded: bool | None = None

    @property
    def past(self) -> int:
        return len(self.tokens)

    def rewind(self, past: int) -> None:
        assert 0 <= past <= self.past
        del self.tokens[past:]
        self.choosing = self.choosing and past > self.prompt  # tokens of the answer stay choices

    def read_panel(self, number: int) -> np.ndarray:
        """The tokens themselves are the keys and values."""
        assert 0 <= 32 * number < self.past
        panel = np.zeros(32, np.int32)
        tokens = self.tokens[32 * number : 32 * number + 32]
        panel[: len(tokens)] = tokens
        return panel.view(np.uint8)

    def restore(self, panels: Sequence[np.ndarray], past: int) -> None:
        assert 32 * (len(panels) - 1) < past <= 32 * len(panels)
        self.tokens = np.concatenate(panels).view(np.int32).tolist()[:past]
        self.choosing, self.prompt = False, past


class FakeRuntime:
    """`script` are the tokens that greedy decoding gives; afterwards, and without one, the best
    token depends on every token before it."""

    def __init__(
        self,
        vocab: int,
        *,
        max_seq_len: int = 256,
        chunk: int = 16,
        eos: Sequence[int] = (),
        script: Sequence[int] = (),
        before_forward: Callable[[FakeState], None] | None = None,
    ) -> None:
        self.spec = ModelSpec(
            model_type="qwen3",
            hidden=64,
            layers=1,
            heads=2,
            kv_heads=1,
            head_dim=32,
            intermediate=64,
            vocab=vocab,
            norm_eps=1e-6,
            rope_theta=1e4,
            max_position=max_seq_len,
            tied=True,
            qk_norm=True,
            eos_ids=tuple(eos),
            name="fake",
        )
        self.max_seq_len = max_seq_len
        self.chunk = chunk
        self.weight_bytes_per_token = 1_000_000
        self.kv_format, self.panel_bytes, self.identity = "bf16", 128, "a fake"
        self.script = list(script)
        self.executed: list[list[int]] = []
        self.states: list[FakeState] = []
        self.closed = False
        self.bandwidth_measured = 0
        self._values = np.empty(vocab, dtype=np.float32)
        self._busy = threading.Lock()
        self._before_forward = before_forward

    def new_state(self) -> FakeState:
        state = FakeState()
        self.states.append(state)
        return state

    def forward(self, state, tokens, want_logits=True):
        assert self._busy.acquire(blocking=False), "two executions at the same time"
        try:
            assert not self.closed, "executed after close"
            assert tokens.dtype == np.int32 and 1 <= len(tokens) <= self.chunk
            if state.past + len(tokens) > self.max_seq_len:
                raise CapacityError(f"{state.past + len(tokens)} > {self.max_seq_len}")
            if self._before_forward is not None:
                self._before_forward(state)
            decode = len(tokens) == 1 and state.choosing
            state.program_switches += int(state.decoded not in (None, decode))
            state.decoded, state.choosing = decode, want_logits
            self.executed.append(tokens.tolist())
            state.tokens += tokens.tolist()
            if not decode:
                state.prompt = state.past
            return self._logits(state) if want_logits else None
        finally:
            self._busy.release()

    def forward_all(self, state, tokens):
        """The logits after each token, as `forward` would give them one by one."""
        assert 1 <= len(tokens) <= 16
        rows = []
        for token in tokens:
            logits = self.forward(state, np.array([token], np.int32))
            rows.append(FakeLogits(logits.values.copy()))
        self.executed[-len(tokens) :] = [tokens.tolist()]
        return rows

    def _logits(self, state: FakeState) -> FakeLogits:
        step = state.past - state.prompt
        seed = np.uint64(hash(tuple(state.tokens)) & (2**63 - 1))
        self._values[:] = np.random.default_rng(seed).normal(size=len(self._values)) * 3
        if 0 <= step < len(self.script):
            self._values[self.script[step]] = 50.0
        return FakeLogits(self._values)

    def read_bandwidth(self) -> float:
        self.bandwidth_measured += 1
        return 10.0

    def memory_by_owner(self) -> dict[str, int]:
        return {"weights": 1_000_000, "kv": 2560, "shared": 3000}

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def byte_level_tokenizer() -> Tokenizer:
    """Like Qwen's: byte-level BPE, two special tokens, two added ones that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(
        [
            AddedToken("<think>", special=False),
            AddedToken("</think>", special=False),
            AddedToken("<a token é>", special=False),
        ]
    )
    return tokenizer


def _llama_vocabulary() -> dict[str, int]:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁▁"]
    words += ["▁Hello", "▁world", "Hello", "ing", "!", ",", "é", "▁你", "好", "\n", "▁a", "b", "c"]
    return {word: i for i, word in enumerate(words)}


def llama_tokenizer() -> Tokenizer:
    """Like Llama 2's: words begin with a space that is not there, unknown text is byte tokens."""
    tokenizer = Tokenizer(
        models.BPE(_llama_vocabulary(), [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def gemma_tokenizer() -> Tokenizer:
    """The same without the leading space rule."""
    tokenizer = llama_tokenizer()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(Regex("▁"), " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    tokenizer = llama_tokenizer()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def wordpiece_tokenizer() -> Tokenizer:
    """Puts spaces between tokens, and takes some out again."""
    words = ["[UNK]", "hello", "world", "##ing", "##s", ".", ",", "'", "do", "n't", "!"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def bare_tokenizer() -> Tokenizer:
    """No decoder at all: the library joins tokens with spaces."""
    return Tokenizer(models.BPE(_llama_vocabulary(), []))


def text_of(tokenizer: Tokenizer, template: str | None = TEMPLATE) -> Text:
    import json

    decoder = json.loads(tokenizer.to_str())["decoder"]
    compiled = None if template is None else ChatTemplate(template, "chat_template.jinja", {})
    return Text(tokenizer, decoder, compiled)


def fake_model(
    runtime: FakeRuntime | None = None,
    *,
    template: str | None = TEMPLATE,
    sampling: Sampling | None = None,
    prefix_cache_mb: int = 0,
    **settings,
) -> Model:
    """A Model over `runtime`, or over a new FakeRuntime(**settings), with byte-level text."""
    text = text_of(byte_level_tokenizer(), template)
    if runtime is None:
        runtime = FakeRuntime(410, **settings)
    return Model(runtime, text, Path("fake-model"), sampling, 0.5, prefix_cache_mb)


def write_text_files(
    directory: Path, tokenizer: Tokenizer, template: str | None = TEMPLATE
) -> None:
    """The files of a model directory that generation reads itself."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "manifest.json").write_text("{}")
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
