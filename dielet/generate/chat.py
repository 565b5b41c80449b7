"""A conversation: the messages so far, and the KV cache of what the next prompt repeats."""

from __future__ import annotations

from typing import Unpack

from dielet.generate.answer import Decoding, Stream
from dielet.generate.protocol import State
from dielet.generate.session import Model, Options, check_options


class Chat:
    """Turns on one model.  `options` are those of `Model.stream`, the same for every turn.

    A prompt repeats the turns before it, so the keys and values of its longest known beginning
    are kept from turn to turn.  One turn at a time: ask the next one when an answer has ended.
    """

    def __init__(self, model: Model, **options: Unpack[Options]) -> None:
        check_options(options)
        self.messages: list[dict[str, str]] = []
        self._model = model
        self._options = options
        self._state: State | None = None
        self._held: list[int] = []  # the tokens whose keys and values the state holds

    def ask(self, text: str) -> Stream:
        """The answer to the next message.

        Question and answer join the conversation when the answer ends, however it ends; a turn
        that gives no token (a full context, cancelled at once) leaves the conversation as it was.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        decoding = self._model.prepare(messages, self._options)

        def keep(ended: Decoding) -> None:
            if ended.result is not None and ended.result.tokens:
                answer = {"role": "assistant", "content": ended.result.text}
                self.messages = [*messages, answer]
            self._state, self._held = ended.state, ended.held()

        decoding.on_end = keep
        state, self._state = self._state, None  # two turns never share a state
        if state is not None:
            decoding.resume(state, self._held)
        return Stream(decoding)

    def reset(self) -> None:
        """Forget the conversation."""
        self.messages = []
        self._state = None
        self._held = []
