"""Hold compiled models against one in bf16, teacher-forced over a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.calibrate.inputs import Inputs
from dielet.calibrate.watch import WatchedRuntime

F32 = NDArray[np.float32]


@dataclass
class Agreement:
    """Sums over the positions of a text."""

    positions: int = 0
    same: int = 0
    kl: float = 0.0  # from the reference's distribution of the next token, in nats

    def add(self, reference: F32, best: int, ours: F32) -> None:
        """Log probabilities [vocab] of one position, and the reference's best token."""
        self.positions += 1
        self.same += int(ours.argmax()) == best
        self.kl += float(np.exp(reference) @ (reference - ours))

    @property
    def same_best_token(self) -> float:
        return self.same / self.positions

    @property
    def mean_kl(self) -> float:
        return self.kl / self.positions


def agreements(
    reference: WatchedRuntime,
    others: Sequence[WatchedRuntime],
    texts: Iterable[NDArray[np.int32]],
    inputs: Sequence[Inputs],
) -> list[Agreement]:
    """Each of `others` beside `reference`; `inputs` (the reference's first) see what enters."""
    found = [Agreement() for _ in others]
    runtimes = (reference, *others)
    for tokens in texts:
        walks = [rt.watch(tokens, seen.see) for rt, seen in zip(runtimes, inputs, strict=True)]
        for hidden in zip(*walks, strict=True):
            rows = [rt.logits(h) for rt, h in zip(runtimes, hidden, strict=True)]
            for logits in zip(*rows, strict=True):
                right, *ours = map(log_probabilities, logits)
                best = int(right.argmax())
                for agreement, mine in zip(found, ours, strict=True):
                    agreement.add(right, best, mine)
    return found


def log_probabilities(logits: F32) -> F32:
    below = logits - logits.max()
    below -= np.float32(np.log(np.exp(below).sum(dtype=np.float64)))
    return below
