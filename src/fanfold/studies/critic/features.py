"""What the critic sees of a prompt, a query and a response: a fixed list of numbers, most of them between 0 and 1.

Shape of the response (length, lists, tone, overlap with the query), cues of the query (what kind of question it is),
products of the two (a list suits one question and not another), and signed hash buckets of clauses, words and word
pairs.  The hash is CRC-32, which is the same on every machine and in every version of Python.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from fanfold.config import load_toml
from fanfold.prompting.genome import Genome
from fanfold.studies.critic.bank import clauses_of

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_HAN, _SOUTHEAST = "\u3400-\u4dbf\u4e00-\u9fff", "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNIT = re.compile(
    f"[{_HAN}]|[\u3041-\u309f]+|[\u30a0-\u30ff]+|[{_SOUTHEAST}]{{1,2}}|[^{_HAN}\u3041-\u30ff{_SOUTHEAST}]+"
)


_DATA = load_toml(Path(__file__).with_name("features.toml"))
COMMON, _WARM, _UNSURE, _FORMAL, _YOU, _REASON = (
    frozenset(_DATA[name].split()) for name in ("common", "warm", "unsure", "formal", "you", "reason")
)
#: What kind of question a query is, by words that people use for it.
_CUES = {name: re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE) for name, pattern in _DATA["cues"].items()}
CUES = (*_CUES, "question")


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text.casefold())


def units(text: str) -> list[str]:
    """The words of a text in lower case; where a script has no spaces, its signs instead.

    Of Chinese and Japanese these are the characters and runs of kana; of Thai, Lao, Burmese and Khmer pairs of letters.
    The critic's features are made of `words`: with other ones, runs begun before could not be replayed.
    """
    return [unit for word in words(text) for unit in ([word] if word.isascii() else _UNIT.findall(word))]


def content(text: str) -> set[str]:
    """The words that say what a text is about."""
    return {word for word in words(text) if word not in COMMON and len(word) > 2}


def overlap(query: str, response: str) -> float:
    """The share of the query's content words that the response takes up."""
    asked = content(query)
    return len(asked & content(response)) / len(asked) if asked else 0.0


def _share(found: Sequence[str], known: frozenset[str]) -> float:
    return sum(word in known for word in found) / len(found) if found else 0.0


def _any(text: str, pattern: str) -> float:
    return float(re.search(pattern, text) is not None)


#: Names of the shape features; the first `CROSSED` of them are multiplied with the cues of the query.
CROSSED = 12
SHAPE = (
    "length", "bullets", "steps", "warm", "formal", "unsure", "example", "figures", "reasons", "asks back", "exclaims",
    "first line short",
    "overlap", "sentence length", "you", "prose", "variety", "code block", "table", "json", "shouts", "finished",
)  # fmt: skip


def shape(query: str, response: str) -> list[float]:
    """What a response looks like, beside its query."""
    found = words(response)
    lines = [line.strip() for line in response.splitlines() if line.strip()]
    bullets = sum(re.match(r"[-*•]\s", line) is not None for line in lines)
    steps = sum(re.match(r"\(?\d{1,2}[.)]\s", line) is not None for line in lines)
    sentences = max(1, len(re.findall(r"[.!?](?:\s|$)", response)))
    letters = sum(character.isalpha() for character in response)
    whole = max(1, len(lines))
    return [
        min(1.5, math.log1p(len(found)) / 5.0),
        min(1.0, bullets / whole),
        min(1.0, steps / whole),
        min(1.0, 10 * _share(found, _WARM)),
        min(1.0, 10 * _share(found, _FORMAL)),
        min(1.0, 10 * _share(found, _UNSURE)),
        _any(response, r"(?i)\b(for example|for instance|e\.g\.|such as)"),
        min(1.0, 5 * sum(word[0].isdigit() for word in found) / max(1, len(found))),
        min(1.0, 10 * _share(found, _REASON)),
        float(response.rstrip().endswith("?")),
        min(1.0, 3 * response.count("!") / sentences),
        float(bool(lines) and len(words(lines[0])) <= 8),
        overlap(query, response),
        min(1.5, len(found) / sentences / 20.0),
        min(1.0, 10 * _share(found, _YOU)),
        float(len(lines) > 0 and bullets + steps == 0),
        len(set(found)) / max(1, len(found)),
        _any(response, r"```|^ {4}\S"),
        _any(response, r"\|.*\|"),
        _is_json(response),
        sum(character.isupper() for character in response) / max(1, letters),
        float(response.rstrip()[-1:] in set(".!?`)}]\"'")),
    ]


def _is_json(text: str) -> float:
    if not text.lstrip().startswith(("{", "[")):
        return 0.0
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    return 1.0


def cues(query: str) -> list[float]:
    """What kind of question a query is, as far as its words show it; it may be of several kinds, or of none."""
    return [
        *(float(pattern.search(query) is not None) for pattern in _CUES.values()),
        float(query.rstrip().endswith("?")),
    ]


def _buckets(items: Iterable[str], many: int, salt: str) -> list[float]:
    """Signed counts of items in hash buckets, scaled so that long texts stay comparable."""
    counts, total = [0.0] * many, 0
    for item in items:
        code = zlib.crc32(f"{salt}:{item}".encode())
        counts[(code >> 1) % many] += 1.0 if code & 1 else -1.0
        total += 1
    return [count / math.sqrt(total) for count in counts] if total else counts


#: About what cues and looks are on average.  Their products are taken from there, so that what a product says is not
#: said by its factors already.
USUAL_CUE, USUAL_LOOK = 0.2, 0.25
#: How many hash buckets there are for the words of the query, the clauses of the prompt, and the response's words.
TOPICS, CLAUSES, GRAMS = 4, 4, 6
#: What `style` gives.
STYLE = (*SHAPE, *(f"gram {i}" for i in range(GRAMS)))
NAMES: tuple[str, ...] = (
    *SHAPE,
    *CUES,
    *(f"{cue} x {look}" for cue in CUES for look in SHAPE[:CROSSED]),
    *(f"topic {i}" for i in range(TOPICS)),
    *(f"clause {i}" for i in range(CLAUSES)),
    *STYLE[len(SHAPE) :],
)


def style(query: str, response: str) -> list[float]:
    """What a response contributes: its shape, and its words and word pairs."""
    return list(_style(query, response))


@functools.lru_cache(maxsize=256)  # a response is looked at when it comes, when it is chosen, and when it is judged
def _style(query: str, response: str) -> tuple[float, ...]:
    found = words(response)
    pairs = (f"{a} {b}" for a, b in itertools.pairwise(found))
    return (*shape(query, response), *_buckets([*found, *pairs], GRAMS, "gram"))


def situation(query: str) -> list[float]:
    """What a query contributes: its cues, and what it is about."""
    return list(_situation(query))


@functools.lru_cache(maxsize=256)
def _situation(query: str) -> tuple[float, ...]:
    return (*cues(query), *_buckets(content(query), TOPICS, "topic"))


def combined(prompt: Genome, situation: Sequence[float], style: Sequence[float]) -> list[float]:
    """The numbers that `NAMES` names, of a prompt, the situation it is in, and the style of what it brings forth.

    Linear in the style and in the situation (but for constants), so a mean of either stands for all of them.
    """
    asked, looks = situation[: len(CUES)], style[: len(SHAPE)]
    return [
        *looks,
        *asked,
        *((cue - USUAL_CUE) * (look - USUAL_LOOK) for cue in asked for look in looks[:CROSSED]),
        *situation[len(CUES) :],
        *_buckets(clauses_of(prompt), CLAUSES, "clause"),
        *style[len(SHAPE) :],
    ]


def features(prompt: Genome, query: str, response: str) -> list[float]:
    """The numbers that `NAMES` names, of one response."""
    return combined(prompt, situation(query), style(query, response))
