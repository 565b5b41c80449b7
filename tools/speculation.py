"""What prompt lookup gains: the same tokens, several per pass where the text repeats.

    python tools/speculation.py MODEL_DIR [GUESSES]

Greedy answers with and without, in turns; medians over rounds of the ratio of their speeds.
"""

from __future__ import annotations

import sys
from statistics import median

import dielet

ROUNDS, NEW_TOKENS = 5, 200
TEXT = """The lighthouse at Cape Ness was built in 1828. It stands on the cliffs of the north
coast, 122 metres above the sea. The tower is 20 metres high and made of stone from the local
quarry. The light was visible for 27 miles. The last keepers left the lighthouse in 1998, when it
was made automatic. Today it is watched from an office in the city. Visitors reach the lighthouse
by a ferry across the bay and a bus along an old road of 11 miles. There is a small cafe in the
old engine room, which is open all year and is run by a family who live there. In winter the road
is often closed by snow, and the family has to wait for weeks before supplies arrive."""
CODE = '''def area_of_circle(radius):
    """Return the area of a circle."""
    pi = 3.14159
    result = pi * radius * radius
    return result


def area_of_square(side):
    """Return the area of a square."""
    result = side * side
    return result


def area_of_triangle(base, height):
    """Return the area of a triangle."""
    result = base * height / 2
    return result
'''
PROMPTS = {
    "summarising": f"Summarize the following text in a few sentences, keeping its words:\n\n{TEXT}",
    "editing code": "Rename the variable `result` to `area` in this code and print the whole code:"
    f"\n\n```python\n{CODE}```",
    "a story": "Tell me a story about a dragon who learns to cook.",
}


def main() -> None:
    model = dielet.load(sys.argv[1])
    guesses = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    print("| prompt | tokens | tokens per pass | tokens/s without | with | gain |")
    print("|---|---|---|---|---|---|")
    for name, prompt in PROMPTS.items():
        chat = [{"role": "user", "content": prompt}]
        rows = []
        for _ in range(ROUNDS):
            options = {"max_new_tokens": NEW_TOKENS, "temperature": 0}
            plain = model.generate(chat, **options)
            guessed = model.generate(chat, speculate=guesses, **options)
            assert plain.tokens == guessed.tokens, f"{name}: guessing changed the answer"
            a, b = plain.receipt, guessed.receipt
            assert a.decode_tok_s and b.decode_tok_s and b.decode_passes
            per_pass = (len(guessed.tokens) - 1) / b.decode_passes
            rows.append((per_pass, a.decode_tok_s, b.decode_tok_s, b.decode_tok_s / a.decode_tok_s))
        per_pass, before, after, gain = (median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {len(plain.tokens)} | {per_pass:.2f} | {before:.0f} | {after:.0f} | "
              f"{gain:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
