"""What `simulated/NAME` writes: the text it was shown with one number changed, enough to try things out for nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.prompting.writing import BEGIN, END

_QUOTED = re.compile(r'(?:now|1):\n"""\n(.*?)\n"""\n', re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


def writer(model: str, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any], rng: random.Random) -> str:
    """The first text of the request with a number changed by a little or a lot; without numbers, its lines mixed."""
    request = "\n".join(str(message.get("content", "")) for message in messages)
    quoted = _QUOTED.search(request)
    text = quoted[1] if quoted else request
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        lines = text.splitlines()
        rng.shuffle(lines)
        changed = "\n".join(lines)
    else:
        chosen = rng.choice(numbers)
        value = float(chosen[0]) * rng.choice((0.5, 0.8, 0.9, 1.1, 1.25, 2.0))
        whole = round(value) + (round(value) == float(chosen[0]))  # never the same number
        number = f"{value:.4g}" if "." in chosen[0] else str(whole)
        changed = text[: chosen.start()] + number + text[chosen.end() :]
    return f"{BEGIN}\n{changed}\n{END}"
