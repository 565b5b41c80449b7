"""The memory of prefixes, against a list of all sequences that searches token by token."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dielet.errors import UsageError
from dielet.generate.context import MOST_MB, prefix_limit
from dielet.generate.prefix import PANEL, PrefixCache, common_length

PANEL_BYTES = 4 * PANEL
MUCH = 1000 * PANEL_BYTES


def panel_of(tokens: Sequence[int]) -> Callable[[int], np.ndarray]:
    """Panels that hold the tokens themselves."""

    def panel(number: int) -> np.ndarray:
        piece = tokens[number * PANEL : (number + 1) * PANEL]
        return np.array([*piece, *[-1] * (PANEL - len(piece))], np.int32).view(np.uint8)

    return panel


def put(cache: PrefixCache, tokens: Sequence[int]) -> None:
    cache.put(tokens, panel_of(tokens))


def found(cache: PrefixCache, tokens: Sequence[int]) -> int:
    """How much of `tokens` is found, once it is known that the panels are those of them."""
    prefix = cache.find(tokens)
    if prefix.length:
        held = np.concatenate(prefix.panels).view(np.int32)
        assert held[: prefix.length].tolist() == list(tokens[: prefix.length])
    assert len(prefix.panels) == -(-prefix.length // PANEL)
    return prefix.length


# Texts that agree for a while: around the edges of panels, mostly.
TEXTS = st.builds(
    lambda same, other, more: [0] * same + [other] * more,
    st.sampled_from([0, 1, 5, 30, 31, 32, 33, 60, 63, 64, 65, 96, 100]),
    st.integers(1, 3),
    st.sampled_from([0, 1, 2, 31, 32, 33, 64, 70]),
)


@given(st.lists(st.tuples(st.booleans(), TEXTS), max_size=25))
def test_the_longest_known_beginning_is_found(steps: list[tuple[bool, list[int]]]) -> None:
    cache, texts = PrefixCache(MUCH, PANEL_BYTES), [[]]
    for keep, text in steps:
        assert found(cache, text) == max(common_length(text, known) for known in texts)
        if keep:
            put(cache, text)
            texts.append(text)
    # What several have in common is kept once.
    panels = {tuple(text[:end]) for text in texts for end in range(PANEL, len(text) + 1, PANEL)}
    ends = {tuple(text) for text in texts if len(text) % PANEL}
    longest = [e for e in ends if not any(e == p[: len(e)] for p in panels | ends - {e})]
    assert cache.nbytes == (len(panels) + len(longest)) * PANEL_BYTES


@given(st.integers(0, 6), st.lists(st.tuples(st.booleans(), TEXTS), max_size=40))
def test_the_limit_holds_at_every_moment(limit: int, steps: list[tuple[bool, list[int]]]) -> None:
    cache = PrefixCache(limit * PANEL_BYTES + 5, PANEL_BYTES)
    for keep, text in steps:
        if not keep:
            found(cache, text)
            continue

        def panel(number: int, text: list[int] = text) -> np.ndarray:
            assert cache.nbytes + PANEL_BYTES <= cache.limit
            return panel_of(text)(number)

        cache.put(text, panel)
        assert cache.nbytes <= cache.limit
        # Of the newest at least the beginning is there, as much as there is room for.
        assert found(cache, text) == min(len(text), limit * PANEL)


def test_what_was_used_longest_ago_makes_way() -> None:
    cache = PrefixCache(3 * PANEL_BYTES, PANEL_BYTES)
    for token in (1, 2, 3):
        put(cache, [token] * PANEL)
    assert found(cache, [1] * PANEL) == PANEL  # used: now 2 is the oldest
    put(cache, [4] * PANEL)
    assert [found(cache, [t] * PANEL) for t in (1, 2, 3, 4)] == [PANEL, 0, PANEL, PANEL]


def test_of_a_long_text_the_end_makes_way_first() -> None:
    cache = PrefixCache(4 * PANEL_BYTES, PANEL_BYTES)
    put(cache, [1] * 3 * PANEL)
    put(cache, [2] * 2 * PANEL)
    assert found(cache, [1] * 3 * PANEL) == 2 * PANEL
    assert found(cache, [2] * 2 * PANEL) == 2 * PANEL


def test_a_text_that_is_known_is_not_copied_again() -> None:
    cache = PrefixCache(MUCH, PANEL_BYTES)
    put(cache, range(70))
    cache.put(range(70), lambda number: pytest.fail("copied"))
    cache.put(range(40), lambda number: pytest.fail("copied"))
    copied = []
    cache.put(range(100), lambda number: copied.append(number) or panel_of(range(100))(number))
    assert copied == [2, 3]  # the third had 6 tokens until now


def test_memory_is_free_without_the_garbage_collector() -> None:
    class Panel(np.ndarray):
        pass

    panels: list[weakref.ref[Panel]] = []

    def panel(number: int) -> np.ndarray:
        made = np.zeros(PANEL_BYTES, np.uint8).view(Panel)
        panels.append(weakref.ref(made))
        return made

    gc.disable()
    try:
        cache = PrefixCache(3 * PANEL_BYTES, PANEL_BYTES)
        cache.put(range(96), panel)
        cache.put(range(200, 232), panel)
        assert [ref() is None for ref in panels] == [False, False, True, False]
        cache.clear()
        assert all(ref() is None for ref in panels)
        cache.put(range(96), panel)
        assert len(panels) == 4 and cache.nbytes == 0, "a closed model keeps nothing"
        dropped = PrefixCache(3 * PANEL_BYTES, PANEL_BYTES)
        dropped.put(range(96), panel)
        del dropped
        assert all(ref() is None for ref in panels)
    finally:
        gc.enable()


def test_threads_find_what_is_right() -> None:
    cache = PrefixCache(20 * PANEL_BYTES, PANEL_BYTES)
    failed: list[BaseException] = []

    def use(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(300):
                text = [0] * chance.randrange(90) + [chance.randrange(4)] * chance.randrange(90)
                if chance.random() < 0.5:
                    put(cache, text)
                found(cache, text)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads)
    assert cache.nbytes <= cache.limit


@pytest.mark.parametrize("bad", [-1, 1.5, "256", True, None, MOST_MB + 1, 256 << 20])
def test_a_limit_that_is_none(bad: object) -> None:
    with pytest.raises(UsageError) as error:
        prefix_limit(bad)
    assert str(error.value).startswith(f"prefix_cache_mb is {bad!r}; it must be a whole number of")
    assert str(MOST_MB) in str(error.value) and "\n" not in str(error.value)
    assert prefix_limit(0) == 0 and prefix_limit(MOST_MB) == MOST_MB * 10**6
