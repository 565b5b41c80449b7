"""One answer: the decoding loop, behind an iterator of text."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import GEN_RUNNING, getgeneratorstate
from time import perf_counter

import numpy as np

from dielet import profiling
from dielet.errors import InternalError, UsageError
from dielet.generate.context import left_out, without
from dielet.generate.prefix import Prefix, PrefixCache, common_length
from dielet.generate.prompt_file import PromptFile
from dielet.generate.protocol import FloatArray, Runtime, State
from dielet.generate.receipt import Clock, Receipt, memory_by_owner, sha256
from dielet.generate.sampling import Sampler, Sampling
from dielet.generate.speculate import PromptLookup
from dielet.generate.stream import Detokenizer, StopStrings

STOP, LENGTH, STOP_STRING, CANCELLED = "stop", "length", "stop_string", "cancelled"


class Result:
    """A finished answer.

    text: all of it, special tokens and a stop string left out.
    tokens: every token chosen, the end-of-text token included.
    finish_reason: "stop" (the model ended it), "length" (max_new_tokens, or the context is full),
        "stop_string", or "cancelled".
    seed: what the sampler was seeded with; None when greedy.
    """

    def __init__(
        self,
        text: str,
        tokens: list[int],
        seed: int | None,
        receipt: Receipt,
        bandwidth: Callable[[], float],
    ) -> None:
        self.text = text
        self.tokens = tokens
        self.finish_reason = receipt.finish_reason
        self.seed = seed
        self._receipt = receipt
        self._bandwidth = bandwidth

    @cached_property
    def receipt(self) -> Receipt:
        """Speeds and sizes.  The first receipt of a process measures the bandwidth."""
        if self._receipt.read_gb_s is None:
            return self._receipt
        return self._receipt.with_bandwidth(self._bandwidth())

    def __repr__(self) -> str:
        return (
            f"Result({self.text!r:.60}, {len(self.tokens)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )


@dataclass(frozen=True)
class Request:
    """What an answer is made from; everything in it has been checked."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    stops: tuple[str, ...]
    encode_s: float
    speculate: int = 0  # tokens to guess and check in one pass; 0 for none
    keep: int | None = None  # first tokens that stay when the context is full; None: it ends there
    dropped: int = 0  # tokens that the prompt has lost already, since it did not fit
    prompt_file: PromptFile | None = None


class Gate:
    """Lets one program execution through at a time, and none once the model is closed.

        with gate.lock:
            gate.check()

    The lock itself is entered: an interrupt inside an `__enter__` of ours would leave it held.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._closed = False

    def check(self) -> None:
        """To be called with the lock held.  UsageError once the model is closed."""
        if self._closed:
            raise UsageError("the model is closed; load it again")

    def close(self) -> bool:
        """Wait for the running execution and let no other in; False when closed before."""
        with self.lock:
            was, self._closed = self._closed, True
        return not was


class Decoding:
    """The state of one answer.  `pieces` is the loop; the rest is what it leaves behind."""

    def __init__(
        self,
        runtime: Runtime,
        gate: Gate,
        request: Request,
        detokenizer: Detokenizer,
        load_s: float,
        prefixes: PrefixCache,
    ) -> None:
        self.request = request
        self.state: State | None = None
        self.on_end: Callable[[Decoding], None] | None = None
        self.tokens: list[int] = []
        self.cancelled = False
        self.result: Result | None = None
        self._runtime = runtime
        self._gate = gate
        self._detokenizer = detokenizer
        self._load_s = load_s
        self._prefixes = prefixes
        self._sequence = list(request.prompt)  # prompt and answer, but for what was dropped
        self._reused = 0
        self._dropped = request.dropped
        self._failed = False
        self._sampler = Sampler(request.sampling, runtime.spec.vocab, request.prompt)
        self._stops = StopStrings(request.stops)
        self._eos = frozenset(runtime.spec.eos_ids)
        self._clock = Clock(encode_s=request.encode_s)
        self._switches_before = 0
        self._last_logits: FloatArray | None = None
        self._text: list[str] = []

    def resume(self, state: State, held: Sequence[int]) -> None:
        """Go on from `state`, which holds the tokens `held`, as far as the prompt repeats them."""
        state.rewind(common_length(held, self._reusable()))
        self.state = state
        self._switches_before = state.program_switches

    def held(self) -> list[int]:
        """The tokens whose keys and values the state holds."""
        return [] if self.state is None else self._sequence[: self.state.past]

    def pieces(self) -> Generator[str, None, None]:
        """Text as it becomes final; every piece has at least one character."""
        reason = CANCELLED  # what an exception or a closed iterator leaves
        try:
            for token in self._choices():
                piece, ended = self._take(token)
                reason = ended or CANCELLED
                if piece:
                    yield piece
                if ended:
                    break
            piece, reason = self._flush(reason)
            if piece:
                yield piece
        except Exception:
            self._failed = True
            raise
        finally:
            self.end(reason)

    def end(self, reason: str) -> None:
        """Make the result, once, and let go of the KV cache."""
        if self.result is not None:
            return
        self._flush(reason)  # pieces that nobody asked for any more still belong to the text
        self._leave_prefix()
        self.result = Result(
            "".join(self._text),
            self.tokens,
            self._sampler.settings.seed,
            self._receipt(reason),
            partial(_measured, self._gate.lock, self._runtime.read_bandwidth),
        )
        if self.on_end is not None:
            self.on_end(self)
        self.state = None

    def _choices(self) -> Iterator[int]:
        """The tokens chosen, without end, until cancelled: prefill by chunks, then one by one."""
        state = self._begin()
        if not self._compute(state, decode=False):
            return
        yield self.tokens[-1]
        prompt = self.request.prompt
        guesser = PromptLookup((*prompt, self.tokens[-1])) if self.request.speculate else None
        while not self.cancelled:
            self._shift(state)
            guess = [] if guesser is None else guesser.guess(self._guessable(state))
            if guess:
                for token, logits in self._checked(state, guess):
                    self._chose(token, logits)
                    yield token
            elif self._compute(state, decode=True):
                yield self.tokens[-1]
            if guesser is not None:
                for token in self.tokens[len(guesser) - len(prompt) :]:
                    guesser.add(token)

    def _begin(self) -> State:
        """The state to start from, with as much of the prompt as is known from earlier."""
        begin = perf_counter()
        if self.state is None:
            with self._gate.lock:
                self._gate.check()
                self.state = self._runtime.new_state()
        state, reusable, file = self.state, self._reusable(), self.request.prompt_file
        if not self._traced():
            _restore(state, self._prefixes.find(reusable))
        if file is not None and common_length(file.tokens, reusable) > state.past:
            _restore(state, file.prefix(reusable))
        self._reused = state.past
        self._clock.begin_s = perf_counter() - begin
        return state

    def _reusable(self) -> tuple[int, ...]:
        """What can be taken over: all but the last token of the prompt, which gives the logits."""
        return self.request.prompt[:-1]

    def _compute(self, state: State, *, decode: bool) -> bool:
        """Run what the state does not hold yet and choose a token; False when cancelled before."""
        chunk = self._runtime.chunk
        for start in range(state.past, len(self._sequence), chunk):
            if self.cancelled:
                return False
            tokens = self._sequence[start : start + chunk]
            last = start + chunk >= len(self._sequence)
            self._execute(state, tokens, decode=decode, choose=last)
        return True

    def _shift(self, state: State) -> None:
        """Where the next token finds no room, drop old ones; those after them are computed anew."""
        keep = self.request.keep
        if keep is None or len(self._sequence) <= self._runtime.max_seq_len:
            return
        count = left_out(len(self._sequence), keep, self._runtime.max_seq_len)
        self._sequence = without(self._sequence, keep, count)
        self._dropped += count
        state.rewind(keep)

    def _leave_prefix(self) -> None:
        """Keep what was computed for later answers; nothing of one that failed."""
        state, file, prompt = self.state, self.request.prompt_file, self.request.prompt
        if state is None or self._failed:
            return
        held = self.held()
        if not self._traced():
            self._prefixes.put(held, state.read_panel)
        if file is not None and tuple(held[: len(prompt)]) == prompt:
            file.keep(prompt, state.read_panel, self._runtime)

    def _traced(self) -> bool:
        """A trace is of whole answers, so it does not depend on what ran before it."""
        return profiling.listener is not None

    def _guessable(self, state: State) -> int:
        """How many tokens may be guessed now: the answer and the context have to hold them."""
        if state.past < len(self._sequence) - 1:
            return 0  # more than the last token is to be computed, since old ones were dropped
        wanted = self.request.max_new_tokens - len(self.tokens) - 1
        room = self._runtime.max_seq_len - state.past - 1
        return max(0, min(self.request.speculate, wanted, room))

    def _checked(self, state: State, guess: list[int]) -> list[tuple[int, FloatArray]]:
        """Run the last token and the guesses in one pass: the tokens chosen, with their logits.

        A token is chosen after each guess that turned out right, exactly as it would have been
        without guessing, and one more after the first that did not; the cache forgets the rest.
        """
        ids = np.array([self.tokens[-1], *guess], dtype=np.int32)
        chosen: list[tuple[int, FloatArray]] = []
        with self._gate.lock:
            self._gate.check()
            begin = perf_counter()
            past = state.past
            for row, logits in enumerate(self._runtime.forward_all(state, ids)):
                with profiling.mark(self._runtime, "sample"):
                    chosen.append((self._sampler.choose(logits), logits.values.copy()))
                if row == len(guess) or chosen[-1][0] != guess[row]:
                    break
            state.rewind(past + len(chosen))
            seconds = perf_counter() - begin
        self._clock.add(decode=True, tokens=len(chosen), seconds=seconds)
        return chosen

    def _execute(self, state: State, tokens: Sequence[int], *, decode: bool, choose: bool) -> None:
        """Execute one program; `choose` also appends the next token.

        The gate is held for this long only: answers made at the same time take turns, and one
        that is never read to its end blocks nobody.
        """
        ids = np.array(tokens, dtype=np.int32)
        with self._gate.lock:
            self._gate.check()
            begin = perf_counter()
            logits = self._runtime.forward(state, ids, want_logits=choose)
            if choose:
                if logits is None:
                    raise InternalError("the program gave no logits although they were wanted")
                with profiling.mark(self._runtime, "sample"):
                    self._chose(self._sampler.choose(logits), logits.values)
            seconds = perf_counter() - begin
        self._clock.add(decode=decode, tokens=len(tokens), seconds=seconds)

    def _chose(self, token: int, logits: FloatArray) -> None:
        """Go on with `token`.  Its logits are copied: the next execution overwrites them."""
        self.tokens.append(token)
        self._sequence.append(token)
        if self._last_logits is None:
            self._last_logits = np.empty_like(logits)
        np.copyto(self._last_logits, logits)

    def _take(self, token: int) -> tuple[str, str]:
        """(text that `token` makes final, why the answer ends with it or "")."""
        if token in self._eos:
            return "", STOP  # it has no text of its own, even where it is not a "special" token
        with profiling.mark(self._runtime, "detokenize"):
            piece, met = self._stops.push(self._detokenizer.push(token))
        self._text.append(piece)
        if met:
            return piece, STOP_STRING
        return piece, LENGTH if len(self.tokens) >= self.request.max_new_tokens else ""

    def _flush(self, reason: str) -> tuple[str, str]:
        """(text held back until now, the reason): the last bytes may complete a stop string."""
        if reason == STOP_STRING:
            return "", reason
        piece, met = self._stops.push(self._detokenizer.finish())
        piece += self._stops.finish()
        self._text.append(piece)
        return piece, STOP_STRING if met else reason

    def _receipt(self, reason: str) -> Receipt:
        clock, count = self._clock, len(self.tokens)
        speed = clock.decode_tok_s(count)
        weight_bytes = self._runtime.weight_bytes_per_token
        switches = 0 if self.state is None else self.state.program_switches
        return Receipt(
            load_s=self._load_s,
            prompt_tokens=len(self.request.prompt),
            ttft_s=clock.ttft_s() if count else None,
            prefill_tok_s=clock.prefill_tok_s(),
            new_tokens=count,
            decode_tok_s=speed,
            program_switches=switches - self._switches_before,
            weight_bytes_per_token=weight_bytes,
            read_gb_s=None if speed is None else weight_bytes * speed / 1e9,
            share_of_bandwidth=None,
            peak_rss_bytes=memory_by_owner(self._owners()),
            decode_passes=clock.decode_passes,
            logits_sha256=None if self._last_logits is None else sha256(self._last_logits),
            finish_reason=reason,
            reused_tokens=self._reused,
            prefill_passes=clock.prefill_passes,
            dropped_tokens=self._dropped,
        )

    def _owners(self) -> dict[str, int]:
        """Bytes by owner; of the KV cache the part in use, for only that becomes resident."""
        owners = dict(self._runtime.memory_by_owner())
        past = 0 if self.state is None else self.state.past
        owners["kv"] = owners["kv"] * past // self._runtime.max_seq_len
        if self._prefixes.limit:
            owners["prefixes"] = self._prefixes.nbytes
        return owners


def _measured(lock: threading.Lock, bandwidth: Callable[[], float]) -> float:
    with lock:  # beside a running program it would measure too little
        return bandwidth()


def _restore(state: State, prefix: Prefix) -> None:
    if prefix.length > state.past:
        state.restore(prefix.panels, prefix.length)


class Stream:
    """The pieces of one answer, as they come; iterate over it, once.

    Nothing is computed before the first piece is asked for.  Leaving its `with` block, `close`,
    dropping the last reference, or the end of the process ends the answer at once.  Threads may
    share it: they take turns.
    """

    def __init__(self, decoding: Decoding) -> None:
        # Two objects, so that the loop does not refer to its handle: an answer that is dropped
        # half-way frees its KV cache then, not when the garbage collector comes by.
        self._decoding = decoding
        self._pieces = decoding.pieces()
        self._turn = threading.RLock()
        # Unlike a generator of itself, this also ends it before the interpreter is taken apart.
        weakref.finalize(self, _close, decoding, self._pieces, self._turn)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._turn:
            return next(self._pieces)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def prompt_tokens(self) -> int:
        return len(self._decoding.request.prompt)

    @property
    def result(self) -> Result:
        """The whole answer, once the iteration has ended or the stream is closed."""
        if self._decoding.result is None:
            raise UsageError(
                "the answer is not finished; iterate to its end or close it before asking for it"
            )
        return self._decoding.result

    def cancel(self) -> None:
        """End after the program that is running; the iteration still gives the text held back.

        Returns at once and may be called from another thread or a signal handler.
        """
        self._decoding.cancelled = True

    def close(self) -> None:
        """End now, or after the program that another thread is running for this answer.

        The result then has the text so far.
        """
        _close(self._decoding, self._pieces, self._turn)


def _close(decoding: Decoding, pieces: Generator[str, None, None], turn: threading.RLock) -> None:
    decoding.cancelled = True
    with turn:
        if getgeneratorstate(pieces) == GEN_RUNNING:
            return  # called from inside of it, by a signal handler: it ends by being cancelled
        pieces.close()
        decoding.end(CANCELLED)
