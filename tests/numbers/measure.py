"""What is measured against the oracle, by the tests and by tools/accuracy.py alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.host import Runtime, State
from tests.numbers.oracle import all_logits

F32 = NDArray[np.float32]
Tokens = NDArray[np.int32]

TEXT = (Path(__file__).parent / "text.txt").read_text()
NEW_TOKENS = 200

# 1,200 tokens by full chunks, parts of chunks and single tokens; 512 is passed inside a chunk and
# 1,024 by decoding.
STEPS = [128, 128, 1, 1, 100, 127, 2, 17, 1, 3, 128, 16, 1, 1, 128, 128, 64, 35]
STEPS += [*[1] * 30, 128, 33]


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


# Five kinds: a question, a story, code, French, and a task about a text of several chunks.
PROMPTS = {
    "question": _chat("What is gravity, and why do things fall down?"),
    "story": "Once upon a time, in a village between two rivers, there lived a clockmaker who",
    "code": _chat("Write a Python function that tells whether a text is a palindrome."),
    "french": "Le marché ouvre à huit heures. Les gens du village viennent acheter",
    "summary": _chat(f"Summarize this text:\n\n{TEXT[:1500]}"),
}


def fresh(rt: Runtime) -> State:
    """A state whose cache is NaN wherever nothing has been written."""
    state = rt.new_state()
    state.kv[:] = 0xFF
    return state


def scores(rt: Runtime, state: State, tokens: Tokens) -> F32:
    """f32 [vocab]: the scores after `tokens`, which are fed in one step; a copy."""
    logits = rt.forward(state, tokens)
    assert logits is not None
    best = int(logits.values.argmax())
    assert logits.argmax == best, f"chose {logits.argmax}, but {best} is the best"
    return logits.values.copy()


def one_by_one(rt: Runtime, tokens: Tokens) -> Iterator[F32]:
    """The scores after each of `tokens`, each fed by a decode program."""
    state = fresh(rt)
    for i in range(len(tokens)):
        yield scores(rt, state, tokens[i : i + 1])


def forced(rt: Runtime, tokens: Tokens) -> Iterator[F32]:
    """The same, sixteen tokens in a step: the same bits in less time."""
    state = fresh(rt)
    for lo in range(0, len(tokens), 16):
        for logits in rt.forward_all(state, tokens[lo : lo + 16]):
            yield logits.values.copy()


def answer(rt: Runtime, prompt: Tokens, new: int = NEW_TOKENS) -> Tokens:
    """The `new` tokens of a greedy answer that ignores EOS; the prompt goes in by chunks."""
    state, found = fresh(rt), []
    for lo in range(0, len(prompt), rt.chunk):
        best = int(scores(rt, state, prompt[lo : lo + rt.chunk]).argmax())
    for _ in range(new):
        found.append(best)
        best = int(scores(rt, state, np.array([best], np.int32)).argmax())
    return np.array(found, np.int32)


def relative_error(oracle: F32, ours: F32) -> float:
    """Largest difference of any logit, as a fraction of the range of the oracle's logits."""
    return float(np.abs(oracle - ours).max() / (oracle.max() - oracle.min()))


@dataclass(frozen=True)
class Difference:
    """The oracle would have said `best`, by `gap` more than the `chosen` token."""

    position: int
    chosen: int
    best: int
    gap: float


def differences(oracle: Iterable[F32], chosen: Iterable[int]) -> list[Difference]:
    """Where the chosen tokens are not the oracle's, with the oracle's own scores of both."""
    found = []
    for position, (row, token) in enumerate(zip(oracle, chosen, strict=True)):
        best = int(row.argmax())
        if best != token:
            found.append(Difference(position, int(token), best, float(row[best] - row[token])))
    return found


def judged(model: Any, prompt: Tokens, answer: Tokens) -> list[Difference]:
    """Where the oracle, reading along, would have gone on in another way than `answer` does."""
    read = np.concatenate([prompt, answer[:-1]])
    return differences(all_logits(model, read)[-len(answer) :], answer)


@dataclass(frozen=True)
class Score:
    """One model against the oracle over a text, teacher-forced; arrays have one entry a token."""

    oracle_loss: NDArray[np.float64]  # -log probability of the token that follows
    loss: NDArray[np.float64]
    relative: NDArray[np.float64]  # see relative_error
    gap_error: NDArray[np.float64]  # error in the distance between the oracle's two best tokens
    differences: list[Difference]

    @property
    def agreement(self) -> float:
        return 1 - len(self.differences) / len(self.relative)

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.loss.mean()))

    @property
    def oracle_perplexity(self) -> float:
        return float(np.exp(self.oracle_loss.mean()))

    @property
    def measured_error(self) -> float:
        """By how much the distance of two candidates may be wrong: all but 1 in 1,000 are less."""
        return float(np.quantile(self.gap_error, 0.999))


def compare(tokens: Tokens, oracle: Iterable[F32], ours: Iterable[F32]) -> Score:
    oracle_loss, loss, relative, gap_error, chosen = [], [], [], [], []
    rows = []
    for i, (theirs, mine) in enumerate(zip(oracle, ours, strict=True)):
        if i + 1 < len(tokens):
            oracle_loss.append(_loss(theirs, tokens[i + 1]))
            loss.append(_loss(mine, tokens[i + 1]))
        relative.append(relative_error(theirs, mine))
        second, first = np.argpartition(theirs, -2)[-2:]
        gap_error.append(abs((theirs[first] - theirs[second]) - (mine[first] - mine[second])))
        chosen.append(int(mine.argmax()))
        rows.append(theirs)
    return Score(
        np.array(oracle_loss),
        np.array(loss),
        np.array(relative),
        np.array(gap_error, np.float64),
        differences(rows, chosen),
    )


def _loss(scores: F32, token: int) -> float:
    wide = scores.astype(np.float64)
    top = wide.max()
    return float(top + np.log(np.exp(wide - top).sum()) - wide[token])


def splits(total: int, seed: int, most: int) -> list[int]:
    """`total` cut into random steps of 1 ... `most` tokens, short and single ones among them."""
    rng = np.random.default_rng(seed)
    steps: list[int] = []
    while (left := total - sum(steps)) > 0:
        limit = (1, 4, most)[rng.integers(3)]
        steps.append(int(min(left, rng.integers(1, limit + 1))))
    return steps


def walk(
    rt: Runtime, model: Any, tokens: Tokens, steps: list[int]
) -> tuple[list[float], list[int]]:
    """Feed `tokens` in such steps: the relative error and the KV capacity at each."""
    expected, state = all_logits(model, tokens), fresh(rt)
    errors, rungs = [], []
    for step in steps:
        ours = scores(rt, state, tokens[state.past : state.past + step])
        errors.append(relative_error(expected[state.past - 1], ours))
        rungs.append(rung(state))
    assert state.past == len(tokens)
    return errors, rungs


def rung(state: State) -> int:
    """KV capacity of the program that ran last."""
    return int(state.program.rpartition("_kv")[2])
