"""The sequences of a batch: one KV cache each, decoded together where programs for that exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dielet.generate.answer import Gate
from dielet.host.runtime import Runtime
from dielet.image.options import HEAD_ROWS
from dielet.program.select import rung_for

F32 = NDArray[np.float32]
Tokens = NDArray[np.int32]


class Rows:
    """A batch of sequences on one runtime.

    Padding is never stored: each row's cache holds its real tokens, so each has its own past.
    columns: how wide the batch is with its padding, which is how its callers count.
    """

    # What transformers asks of a cache.
    is_compileable = False
    is_croppable = False
    is_linear = (False,)

    def __init__(self, runtime: Runtime, gate: Gate, count: int) -> None:
        self._runtime, self._gate = runtime, gate
        self.states = [runtime.new_state() for _ in range(count)]
        self.columns = 0

    def __len__(self) -> int:
        return len(self.states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that the batch has so far, padding included."""
        return self.columns

    def feed(self, tokens: Sequence[Tokens], keep: int) -> list[F32]:
        """Append int32 [n] tokens to every row: the logits after its last `keep`, f32 [k, vocab].

        k is `keep`, or fewer where a row has fewer tokens; 0 keeps all.  Raises CapacityError
        before any work when the tokens of a row do not fit.
        """
        for state, row in zip(self.states, tokens, strict=True):
            rung_for(self._runtime.manifest.kv_ladder, state.past, len(row))
        if self.columns and all(len(row) == 1 for row in tokens):
            return self._step(np.concatenate(tokens))
        return [self._prompt(number, row, keep or len(row)) for number, row in enumerate(tokens)]

    def _prompt(self, number: int, tokens: Tokens, keep: int) -> F32:
        """Row `number` goes on with `tokens`, in chunks as long as programs take."""
        runtime, state = self._runtime, self.states[number]
        at, chunk = 0, runtime.chunk
        silent = (
            max(0, len(tokens) - keep) if keep > 1 else 0
        )  # tokens whose logits nobody asks for
        found: list[F32] = []
        while at < len(tokens):
            if at < silent or keep == 1:
                end = min(at + chunk, silent or len(tokens))
                last = end == len(tokens)
                with self._gate.lock:
                    self._gate.check()
                    logits = runtime.forward(state, tokens[at:end], want_logits=last)
                    found += [] if logits is None else [logits.values.copy()]
            else:
                end = min(at + HEAD_ROWS, len(tokens))
                with self._gate.lock:
                    self._gate.check()
                    found += [
                        each.values.copy() for each in runtime.forward_all(state, tokens[at:end])
                    ]
            at = end
        return np.stack(found) if found else np.zeros((0, runtime.spec.vocab), np.float32)

    def _step(self, tokens: Tokens) -> list[F32]:
        """One more token for every row: as many rows at a time as there are programs for."""
        most = max(self._runtime.manifest.batch_sizes)
        found: list[F32] = []
        for first in range(0, len(tokens), most):
            states, part = self.states[first : first + most], tokens[first : first + most]
            with self._gate.lock:
                self._gate.check()
                together = self._runtime.forward_batch(states, part)
                found += [logits.values[None].copy() for logits in together]
        return found
