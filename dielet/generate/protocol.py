"""What generation asks of whatever executes the programs; `dielet.host` gives the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dielet.checkpoint.spec import ModelSpec

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]


class Logits(Protocol):
    """Scores of the next token, all finite, after one program execution."""

    @property
    def values(self) -> FloatArray:
        """float32 [vocab], a view that the next `forward` of the same runtime overwrites."""

    @property
    def argmax(self) -> int:
        """The best token; of equals the one with the lowest id."""


class State(Protocol):
    """The KV cache of one sequence."""

    @property
    def past(self) -> int:
        """Tokens in the cache."""

    @property
    def program_switches(self) -> int:
        """How often the next execution needed another program than the one before it."""

    def rewind(self, past: int) -> None:
        """Forget the tokens from position `past` on (0 <= past <= self.past)."""

    def read_panel(self, number: int) -> ByteArray:
        """A copy of keys and values of 32 positions from 32 * number on."""

    def restore(self, panels: Sequence[ByteArray], past: int) -> None:
        """Hold the first `past` tokens of the sequence that `panels` were read from, in order.

        They may be of another state of the same runtime, or of a runtime of the same identity.
        """


class Runtime(Protocol):
    """One loaded model.  Not thread-safe: `Model` takes care that executions queue up."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def max_seq_len(self) -> int:
        """Positions that one state can hold."""

    @property
    def chunk(self) -> int:
        """The most tokens that one `forward` takes."""

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes that one decode step reads."""

    @property
    def kv_format(self) -> str:
        """Number format of the caches."""

    @property
    def panel_bytes(self) -> int:
        """Bytes of the keys and values of 32 positions."""

    @property
    def identity(self) -> str:
        """Hash of all that decides the keys and values of given tokens, to the bit."""

    def new_state(self) -> State: ...

    def forward(self, state: Any, tokens: IntArray, want_logits: bool = True) -> Logits | None:
        """Execute one program over int32 `tokens` [1..chunk] and advance `state.past`.

        `state` is one that `new_state` of this runtime gave.

        Raises CapacityError before any work when they do not fit, NumericError when a logit
        is NaN or infinite.
        """

    def forward_all(self, state: Any, tokens: IntArray) -> Sequence[Logits]:
        """Like `forward`, for at most 16 tokens, with the logits of every one."""

    def read_bandwidth(self) -> float:
        """Measured read bandwidth of this machine in GB/s (1e9), once per process."""

    def memory_by_owner(self) -> Mapping[str, int]:
        """Bytes by owner; "kv" is the cache of one sequence at full length."""

    def close(self) -> None: ...
