"""Model: a loaded model directory, and the options of an answer."""

from __future__ import annotations

import difflib
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict, Unpack

from dielet import profiling
from dielet.checkpoint.spec import ModelSpec
from dielet.errors import CapacityError, DamagedFile, MissingFile, UsageError
from dielet.generate.answer import Decoding, Gate, Request, Result, Stream
from dielet.generate.context import (
    KEEP,
    PREFIX_CACHE_MB,
    checked_keep,
    left_out,
    most_kept,
    prefix_limit,
    without,
)
from dielet.generate.prefix import PrefixCache, common_length
from dielet.generate.prompt_file import PromptFile
from dielet.generate.protocol import Runtime
from dielet.generate.sampling import Sampling, from_generation_config
from dielet.generate.stream import checked_stops
from dielet.generate.template import Message, check_unicode
from dielet.generate.text import (
    GENERATION_CONFIG,
    Text,
    give_back_freed_memory,
    json_object,
    read_files,
)

MANIFEST = "manifest.json"

Prompt = str | Sequence[Message] | Sequence[int]


class Options(TypedDict, total=False):
    """The options of an answer; None or left out means the default.

    max_new_tokens: the most tokens to choose; default: until the context is full.
    temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`; what is not given comes
        from the model's generation_config.json, as in transformers.
    seed: the same seed gives the same text; default: a fresh one, to be found in the result.
    stop: a string, or several, before which the answer is cut.
    system: the system message; only with a prompt that is a string, or messages without one.
    thinking: False switches the thinking of models that can think off; default: the template's.
    raw: continue the text of the prompt as it is, without the chat template.
    speculate: guess so many tokens from what the text repeats and check them in one pass: the
        same tokens, sooner where text repeats itself.  0, the default, is off.
    prompt_cache: a file for the keys and values of the prompt: what a prompt begins with and the
        file has is not computed again.  Written whole when the answer ends, if it has too little;
        one of another model is replaced, with a warning.
    context_shift: when the context is full, drop the oldest half of it and go on, instead of
        ending by "length"; a prompt that is too long is cut likewise.  The other half is computed
        again, so a token of a long answer costs one more prompt token.  Then max_new_tokens is,
        by default, what the context holds.
    keep: how many tokens at the beginning are never dropped; default: what the chat template puts
        before the first message of the user, the system message included, or else 4.
    """

    max_new_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    system: str | None
    thinking: bool | None
    raw: bool | None
    speculate: int | None
    prompt_cache: str | PathLike[str] | None
    context_shift: bool | None
    keep: int | None


MOST_GUESSES = 15  # with the last token, as many as one pass gives logits for
_TYPES = (("thinking", bool), ("raw", bool), ("system", str), ("context_shift", bool))
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


class Model:
    """A model ready to answer.  Thread-safe; every answer has a KV cache of its own.

    Answers that are made at the same time take turns, program by program, and get the same tokens
    as one after the other.  `load` makes one; close it, or use it as a context manager, to free
    its memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        text: Text,
        directory: Path,
        sampling: Sampling | None = None,
        load_s: float = 0.0,
        prefix_cache_mb: int = 0,
    ) -> None:
        self.directory = directory
        self.text = text
        self.sampling = sampling or Sampling()
        self.load_s = load_s
        self._runtime = runtime
        self._gate = Gate()
        self._prefixes = PrefixCache(prefix_limit(prefix_cache_mb), runtime.panel_bytes)

    @property
    def spec(self) -> ModelSpec:
        return self._runtime.spec

    @property
    def max_seq_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._runtime.max_seq_len

    @property
    def runtime(self) -> Runtime:
        """What executes the programs.  Not thread-safe by itself."""
        return self._runtime

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """An iterator over the pieces of the answer; see `Options`.

        `prompt` is a string, a list of messages (dicts with role and content), or a list of
        token ids.  Options and lengths are checked here, before any work: UsageError, or
        CapacityError when the prompt is longer than the context.
        """
        return Stream(self.prepare(prompt, options))

    def generate(
        self,
        prompt: Prompt,
        *,
        callback: Callable[[str], bool | None] | None = None,
        **options: Unpack[Options],
    ) -> Result:
        """The whole answer; arguments as for `stream`.

        `callback` gets every piece of text; False from it ends the answer as "cancelled", and an
        exception ends it too and is passed on.
        """
        with self.stream(prompt, **options) as stream:
            for piece in stream:
                if callback is not None and callback(piece) is False:
                    break
        return stream.result

    def prepare(self, prompt: Prompt, options: Options) -> Decoding:
        """Check the options and prepare an answer: nothing is computed yet."""
        begin = perf_counter()
        prompt = prompt if isinstance(prompt, str) else _items(prompt)
        tokens = self.encode(prompt, options)
        keep, dropped = self._keep(prompt, tokens, options), 0
        if keep is not None:
            dropped = left_out(len(tokens), keep, self.max_seq_len)
            tokens = without(tokens, keep, dropped)
        stop, file = options.get("stop"), options.get("prompt_cache")
        request = Request(
            prompt=tuple(tokens),
            max_new_tokens=self._room(len(tokens), options.get("max_new_tokens"), keep is not None),
            sampling=self._settings(options),
            stops=checked_stops(() if stop is None else stop),
            speculate=_guesses(options.get("speculate")),
            keep=keep,
            dropped=dropped,
            prompt_file=None if file is None else PromptFile.open(file, self._runtime),
            encode_s=perf_counter() - begin,
        )
        text = self.text.detokenizer()
        return Decoding(self._runtime, self._gate, request, text, self.load_s, self._prefixes)

    def encode(self, prompt: Prompt, options: Options) -> list[int]:
        """The token ids of `prompt` under the chat template, or as it is for raw text and ids."""
        check_options(options)
        if isinstance(prompt, str):
            tokens = self._encode_text(prompt, options)
        elif (items := _items(prompt)) and isinstance(items[0], Mapping):
            tokens = self._encode_messages(items, options)
        else:
            tokens = _token_ids(items)
            for name in ("system", "thinking", "raw"):
                if options.get(name) is not None:
                    raise UsageError(
                        f"{name} has no meaning for a prompt of token ids; leave it out"
                    )
        if not tokens:
            raise UsageError("the prompt has no tokens; give at least one")
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self.spec.vocab:
            bad = low if low < 0 else high
            raise UsageError(
                f"token id {bad} is outside the model's vocabulary of {self.spec.vocab}; "
                "was it made with another tokenizer?"
            )
        return tokens

    def close(self) -> None:
        """Free the model's memory once the running program has ended."""
        if self._gate.close():
            self._prefixes.clear()
            self._runtime.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Model({str(self.directory)!r}, {self.spec.name or self.spec.model_type})"

    def _settings(self, options: Options) -> Sampling:
        given: dict[str, Any] = {
            name: value for name in _SAMPLING if (value := options.get(name)) is not None
        }
        return replace(self.sampling, **given)

    def _encode_text(self, prompt: str, options: Options) -> list[int]:
        check_unicode(prompt, "the prompt")
        raw = options.get("raw")
        if self.text.template is not None and not raw:
            return self._encode_messages([{"role": "user", "content": prompt}], options)
        # A model without a template is a base model, which continues text.
        why = "raw text goes without it" if raw else "this model has none"
        for name in ("system", "thinking") if raw else ("system",):
            if options.get(name) is not None:
                raise UsageError(f"{name} needs the chat template, but {why}; leave {name} out")
        with profiling.mark(self._runtime, "tokenize", before=True):
            return self.text.encode(prompt, special=True)

    def _encode_messages(self, messages: Sequence[Message], options: Options) -> list[int]:
        if options.get("raw"):
            raise UsageError("raw takes plain text, not messages; give the prompt as one string")
        system = options.get("system")
        if system is not None:
            check_unicode(system, "the system message")
            if messages[0].get("role") == "system":
                raise UsageError("system is given twice: as an option and as the first message")
            messages = [{"role": "system", "content": system}, *messages]
        with profiling.mark(self._runtime, "chat_template", before=True):
            text = self.text.chat_prompt(messages, options.get("thinking"))
        with profiling.mark(self._runtime, "tokenize", before=True):
            return self.text.encode(text, special=False)

    def _keep(self, prompt: Any, tokens: list[int], options: Options) -> int | None:
        """How many first tokens stay when the context is full; None where the answer ends then."""
        keep = options.get("keep")
        if not options.get("context_shift"):
            if keep is not None:
                raise UsageError("keep has no meaning without context_shift; leave it out")
            return None
        if keep is None:
            keep = min(max(KEEP, self._lead(prompt, tokens, options)), most_kept(self.max_seq_len))
        return checked_keep(keep, self.max_seq_len)

    def _lead(self, prompt: Any, tokens: list[int], options: Options) -> int:
        """How many tokens the template puts before the first words of the user; 0 without one."""
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        of_user = [at for at, m in enumerate(prompt) if _role(m) == "user"]
        if options.get("raw") or self.text.template is None or not of_user:
            return 0
        # They are what does not change with the words.
        others = (
            [*prompt[: of_user[0]], {**prompt[of_user[0]], "content": words}] for words in "0?"
        )
        return min(common_length(tokens, self._encode_messages(o, options)) for o in others)

    def _room(self, prompt: int, wanted: int | None, shifts: bool) -> int:
        """How many tokens to choose at most: the last one chosen needs no place in the cache."""
        if prompt > self.max_seq_len:
            raise CapacityError(
                f"the prompt has {prompt} tokens, but the context of this model holds "
                f"{self.max_seq_len}; shorten the prompt, drop its oldest part with context_shift, "
                "or compile with a larger max_seq_len"
            )
        room = self.max_seq_len - prompt + 1
        if shifts:
            room = self.max_seq_len if wanted is None else sys.maxsize
        if wanted is None:
            return room
        try:
            count = operator.index(wanted)
        except TypeError:
            raise UsageError(f"max_new_tokens is {wanted!r}; it must be a whole number") from None
        if isinstance(wanted, bool) or count < 1:
            raise UsageError(f"max_new_tokens is {wanted}; it must be 1 or more")
        return min(count, room)


def load(
    directory: str | Path,
    threads: int | None = None,
    profiler: bool | None = None,
    prefix_cache_mb: int = PREFIX_CACHE_MB,
) -> Model:
    """Load a model directory made by `compile`.

    `threads` None uses one per core.  `profiler`: the model is always profiled (True), never
    (False), or when a session asks for it (None).  `prefix_cache_mb`: memory in MB (1e6) for keys
    and values that answers leave behind: a prompt that begins like an earlier one is computed
    from where they differ.  Raises MissingFile, or DamagedFile naming the file.
    """
    begin = perf_counter()
    directory = Path(directory)
    _check_directory(directory)
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"threads is {threads!r}; it must be a whole number, 1 or more")
    prefix_limit(prefix_cache_mb)
    # First, and in this thread: what follows goes into the holes that reading a tokenizer leaves.
    text, sampling = usable(read_files(directory), f"{directory}/")
    from dielet.host import load_runtime
    from dielet.host.memory import drop_code_pages

    runtime = load_runtime(directory, threads=threads, profiler=profiler)
    give_back_freed_memory()
    drop_code_pages("tokenizers", "numpy", "libcrypto", "libpython")  # 10 MB that loading took
    return Model(runtime, text, directory, sampling, perf_counter() - begin, prefix_cache_mb)


def usable(files: Mapping[str, bytes], where: str) -> tuple[Text, Sampling]:
    """What generation makes of a model's files, the weights apart.

    Raises DamagedFile naming the file that it cannot use, with `where` before its name.
    """
    text = Text.of(files, where)
    config = json_object(files, GENERATION_CONFIG, where)
    try:
        return text, from_generation_config(config, where + GENERATION_CONFIG)
    except UsageError as error:
        raise DamagedFile(f"{error}; correct it and compile again") from None


def is_model_directory(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def check_options(options: Mapping[str, Any]) -> None:
    """UsageError for an option that does not exist, or whose type nothing later would notice."""
    known = list(Options.__annotations__)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"options: {', '.join(known)}"
            raise UsageError(f"unknown option {name}; {hint}")
    for name, wanted in _TYPES:
        value = options.get(name)
        if value is not None and not isinstance(value, wanted):
            must = "True or False" if wanted is bool else "a string"
            raise UsageError(f"{name} is {value!r:.80}; it must be {must}")


def _check_directory(directory: Path) -> None:
    if is_model_directory(directory):
        return
    if not directory.exists():
        raise MissingFile(f"{directory} does not exist; make it with: dielet compile SRC -o DIR")
    raise MissingFile(
        f"{directory} is not a model directory (no {MANIFEST}); "
        f"compile it first: dielet compile {directory} -o DIR"
    )


def _guesses(wanted: int | None) -> int:
    if wanted is None:
        return 0
    if type(wanted) is not int or not 0 <= wanted <= MOST_GUESSES:
        raise UsageError(f"speculate is {wanted!r}; it must be from 0 to {MOST_GUESSES}")
    return wanted


def _items(prompt: Any) -> list[Any]:
    """The messages or token ids of a prompt that is no string."""
    if isinstance(prompt, Mapping):
        raise UsageError(
            f"the prompt is one dict, {prompt!r:.80}; give a list of messages, even of one"
        )
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray | memoryview):
        raise _neither(prompt)
    return list(prompt)


def _token_ids(items: Sequence[Any]) -> list[int]:
    ids = []
    for item in items:
        if isinstance(item, bool):
            raise _neither(item)
        try:
            ids.append(operator.index(item))
        except TypeError:
            raise _neither(item) from None
    return ids


def _role(item: object) -> object:
    return item.get("role") if isinstance(item, Mapping) else None


def _neither(found: object) -> UsageError:
    return UsageError(
        "the prompt is neither a string, nor messages (dicts), nor token ids (integers): "
        f"{found!r:.80} is none of them"
    )
