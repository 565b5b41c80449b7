"""Numbers with the words that they count."""

from __future__ import annotations


def counted(number: float, one: str, more: str = "") -> str:
    """`1 slice`, `2 slices`; `more`: what follows other numbers, where an s is not all."""
    return f"{number:,.0f} {one if number == 1 else more or one + 's'}"


def verb(subject: str, one: str) -> str:
    """`waits`, or `wait` where the subject is several: engines' names are made of plain words."""
    return one.removesuffix("s") if subject.endswith("s") else one
