"""Guess the next tokens from the text itself: what followed the same few tokens last time.

Summaries, edits and code repeat what the prompt says.  A guess costs nothing to make, and several
tokens are checked in one pass over the weights; a wrong guess only wastes arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST, SHORTEST = 4, 2  # tokens that must agree before what followed is guessed again


class PromptLookup:
    """Finds the most recent earlier place where the last few tokens stood; long matches first."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        # By length of match: the last few tokens -> where, most recently, something followed them.
        self._places: dict[int, dict[tuple[int, ...], int]] = {
            size: {} for size in range(SHORTEST, LONGEST + 1)
        }
        for token in tokens:
            self.add(token)

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, token: int) -> None:
        """The text goes on with `token`."""
        place = len(self._tokens)
        for size, places in self._places.items():
            if place >= size:
                places[tuple(self._tokens[place - size :])] = place
        self._tokens.append(token)

    def guess(self, most: int) -> list[int]:
        """At most `most` tokens that may come next; none when nothing is repeated."""
        for size in range(LONGEST, SHORTEST - 1, -1):
            place = self._places[size].get(tuple(self._tokens[-size:]))
            if place is not None and len(self._tokens) >= size:
                return self._tokens[place : place + most]
        return []
