"""How much longer the steps of a tokenizer.json may make a text: told before any text is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MOST_GROWTH = 4096  # times as long, by all replacements one after the other
MOST_ADDED = 4096  # tokens put around a text, or characters before it
_MOST_COPIES = 4  # of the text, in the templates


def amplification(normalizer: Any, decoder: Any, post_processor: Any) -> str:
    """What of these parts, as read from JSON, makes texts too long; "" when nothing does."""
    for name, part in (("normalizer", normalizer), ("decoder", decoder)):
        growth = 1.0
        for step in _steps(part):
            growth *= _growth(step)
            added = step.get("prepend")
            if isinstance(added, str) and len(added) > MOST_ADDED:
                return (
                    f"its {name} puts {len(added)} characters before a text (at most {MOST_ADDED})"
                )
        if growth > MOST_GROWTH:
            return f"its {name} may make a text {growth:.3g} times as long"
    copies, added_tokens = 1, 0
    for step in _steps(post_processor):
        if isinstance(single := step.get("single"), list):
            special = step.get("special_tokens")
            for piece in filter(_is_object, single):
                added_tokens += _ids(piece, special if isinstance(special, dict) else {})
            copies *= max(1, sum("Sequence" in piece for piece in filter(_is_object, single)))
    if added_tokens > MOST_ADDED:
        return f"its template puts {added_tokens} tokens around a text (at most {MOST_ADDED})"
    return f"its template repeats a text (more than {_MOST_COPIES}x)" * (copies > _MOST_COPIES)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """`part` and all steps in it that are sequences of steps."""
    inside = [part]
    while inside:
        step = inside.pop()
        if isinstance(step, dict):
            yield step
            inside += step.values()
        elif isinstance(step, list):
            inside += step


def _growth(step: dict[str, Any]) -> float:
    """Times as long as before that a replacement makes a text of what it replaces."""
    pattern, content = step.get("pattern"), step.get("content")
    if not isinstance(pattern, dict) or not isinstance(content, str):
        return 1.0
    text = pattern.get("String")
    if isinstance(text, str) and text:
        return max(1.0, len(content) / len(text))
    return 1.0 + len(content)  # it may match nothing, between any two characters


def _ids(piece: dict[str, Any], special: dict[str, Any]) -> int:
    token = piece.get("SpecialToken")
    known = special.get(str(token.get("id"))) if isinstance(token, dict) else None
    ids = known.get("ids") if isinstance(known, dict) else None
    return len(ids) if isinstance(ids, list) else 0


def _is_object(piece: Any) -> bool:
    return isinstance(piece, dict)
