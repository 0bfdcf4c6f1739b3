"""How alike texts are, by the words they share; and prompts that show an input the examples most like it."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

#: What a piece of a word counts beside the word itself, and its letters.
PIECE, LETTERS = 0.5, 3


def most_alike(text: str, others: Sequence[str], count: int) -> list[int]:
    """The places of the `count` texts that are most like this one, the most alike last.

    Words and pieces that few of the texts have count more (tf-idf, cosine).
    """
    rarity, known = _collection(tuple(others))
    own = _weighted(_pieces(text), rarity, math.log(1 + len(others)))
    alike = []
    for place, weights in enumerate(known):
        shared = sum(weight * own[piece] for piece, weight in weights.items() if piece in own)
        alike.append((shared, -place))
    return [-place for _, place in sorted(alike, reverse=True)[:count]][::-1]


@functools.lru_cache(maxsize=128)  # the same examples serve many inputs
def _collection(texts: tuple[str, ...]) -> tuple[dict[str, float], list[dict[str, float]]]:
    """How rare each piece is among some texts, and what the pieces of each text weigh."""
    known = [_pieces(text) for text in texts]
    having = Counter(piece for pieces in known for piece in pieces)
    rarity = {piece: math.log(1 + len(texts) / count) for piece, count in having.items()}
    return rarity, [_weighted(pieces, rarity, math.log(1 + len(texts))) for pieces in known]


def _weighted(pieces: Counter[str], rarity: dict[str, float], rarest: float) -> dict[str, float]:
    weights = {
        piece: (1 + math.log(times)) * rarity.get(piece, rarest) * (PIECE if piece[0] == "~" else 1.0)
        for piece, times in pieces.items()
    }
    length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {piece: weight / length for piece, weight in weights.items()}


@functools.lru_cache(maxsize=4096)
def _pieces(text: str) -> Counter[str]:
    words = re.findall(r"\w+", text.lower())
    pieces = Counter(words)
    for word in words:
        edged = f"^{word}$"
        pieces.update(f"~{edged[at : at + LETTERS]}" for at in range(len(edged) - LETTERS + 1))
    return pieces


def filled(template: Mapping[str, Any], input: str) -> str:
    """A prompt that was recorded as a template, with this input.

    It is what stands `before` and `after` the input, with `{input}` where the latter repeats it.  Where the prompt
    shows the examples `nearest` to the input, these come after `before`, and what stands between them and the input is
    its `lead`.
    """
    examples, lead = template.get("examples", ()), template.get("lead", "")
    chosen = most_alike(input, [shown for shown, _ in examples], template["nearest"]) if examples else ()
    shown = "".join(examples[at][1] for at in chosen)
    after = template["after"].replace("{input}", input)
    return f"{template['before']}{shown}{lead}{input}{after}"
