"""A planted preference: a simulated writer and a simulated reader whose taste is known, to measure the study against.

The writer (`respond`) does what its system prompt asks for most of the time, less reliably the warmer it is sampled,
and it has habits of its own: how-to questions tempt it to write steps whatever the prompt says.  Warm sampling makes it
vivid, and lets it wander off.  Prompts that contradict themselves are resolved by chance.

The reader (`preference`) judges the text that was written, never the prompt.  What is liked depends on the kind of the
question (steps for instructions, one direct line for facts, points side by side for comparisons, warmth for worries,
liveliness for writing) and on its subject (figures and formality for technical ones, friendliness for homely ones), so
no fixed prompt is best for all.  Kinds are recognised by the reader's own table of wordings: of about one query in
seven the words that `features` knows do not show the kind, and of others they suggest a wrong one as well.  Subjects
are recognised by whole words, which `features` sees only through four hash buckets.  So the critic can learn much of
the taste but not all of it.

Feedback is the preference plus normal noise, and one time in twenty the reader does not look and gives a random score.
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fanfold.config import load_toml
from fanfold.encoding import derive_seed

_WORLD = load_toml(Path(__file__).with_name("simulated.toml"))
TECHNICAL = tuple(_WORLD["technical"])
SUBJECTS = (*TECHNICAL, *_WORLD["homely"])
WORDINGS: Mapping[str, Sequence[str]] = _WORLD["wordings"]
TASTE: Mapping[str, Mapping[str, float]] = _WORLD["taste"]
_READINGS = tuple(
    (kind, re.compile(".+".join(re.escape(part) for part in wording.split("{}")), re.IGNORECASE))
    for kind, wordings in WORDINGS.items()
    for wording in wordings
)

STEEPNESS, MIDDLE = 1.6, 1.3
NOISE, CARELESS = 0.12, 0.05


def planted_queries(many: int, seed: int = 0) -> list[str]:
    """So many questions of all kinds on all subjects, in random order; the same for the same seed."""
    rng = random.Random(derive_seed(seed, "planted queries"))
    queries = []
    for number in range(many):
        kind = list(WORDINGS)[number % len(WORDINGS)]
        wording = rng.choice(WORDINGS[kind])
        queries.append(wording.format(*rng.sample(SUBJECTS, wording.count("{}"))))
    rng.shuffle(queries)
    return queries


@functools.lru_cache(maxsize=4096)
def kind_of(query: str) -> str:
    """What kind of question the reader takes a query for."""
    return next((kind for kind, reading in _READINGS if reading.fullmatch(query.strip())), "fact")


@functools.lru_cache(maxsize=4096)
def subjects_of(query: str) -> tuple[str, ...]:
    """The planted subjects that a query is about, or its last words."""
    found = tuple(subject for subject in SUBJECTS if re.search(rf"\b{subject}\b", query, re.IGNORECASE))
    return found or (" ".join(query.split()[-2:]).strip("?.!,") or "it",)


# -- the writer -------------------------------------------------------------------------------------------------------


def respond(model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
    """An answer function for the simulator: what the writer says to the last message under its system prompt."""
    system = " ".join(str(m["content"]) for m in messages if m["role"] in ("system", "developer"))
    system = system or str(params.get("system") or "")
    query = next((str(m["content"]) for m in reversed(messages) if m["role"] == "user"), "")
    temperature = float(params.get("temperature", 0.7) or 0.0)
    return _write(query, _resolved(_intents(system, kind_of(query), temperature, rng), rng), temperature, rng)


def _intents(system: str, kind: str, temperature: float, rng: random.Random) -> set[str]:
    obedience = 0.95 - 0.25 * temperature
    asked = {
        intent
        for pattern, intent, heard in _WORLD["asks"]
        if re.search(pattern, system, re.I) and _chance(obedience * heard, rng)
    }
    habits = {intent for intent, share in _WORLD["habits"][kind].items() if _chance(share, rng)}
    vivid = {"vivid"} if _chance(0.35 * max(0.0, temperature - 0.4), rng) else set()
    return asked | habits | vivid


def _resolved(intents: set[str], rng: random.Random) -> set[str]:
    """Without contradictions: of each group that excludes itself, one at random stays."""
    for group in (("steps", "points", "prose"), ("short", "long"), ("warm", "formal")):
        meant = sorted(intents.intersection(group))
        if len(meant) > 1:
            intents = intents.difference(meant) | {rng.choice(meant)}
    return intents


def _chance(share: float, rng: random.Random) -> bool:
    return rng.random() < share


def _write(query: str, intents: set[str], temperature: float, rng: random.Random) -> str:
    subjects = subjects_of(query)

    def say(sentence: str) -> str:
        return sentence.format(s=rng.choice(subjects))

    sentences = 2 if "short" in intents else 8 if "long" in intents else 4
    body = [say(rng.choice(_WORLD["vivid"] if "vivid" in intents else _WORLD["plain"])) for _ in range(sentences)]
    if "formal" in intents:
        body.insert(1, "Regarding the details, the following shall therefore apply accordingly.")
    if "unsure" in intents:
        body.append("Perhaps it depends on the case, which might be different here.")
    if "figures" in intents:
        body.append(say(f"Count on {rng.randint(2, 9)} to {rng.randint(10, 90)} units for a {{s}}."))
    if "example" in intents:
        body.append(say("For example, a {s} of a friend lasted for years."))
    wandering = 0.05 + 0.3 * max(0.0, temperature - 0.5)
    body += [rng.choice(_WORLD["wandering"]) for _ in range(2) if _chance(wandering, rng)]
    parts = [say("In short: the {s}, yes.")] if "direct" in intents else []
    if "warm" in intents:
        parts.append("I am glad you ask, and do not worry, you will do great.")
    if "steps" in intents or "points" in intents:
        items = [say(action) for action in rng.sample(_WORLD["actions"], min(len(_WORLD["actions"]), sentences))]
        items += body[sentences:]
        marks = (f"{i}." for i in range(1, 20)) if "steps" in intents else ("-" for _ in range(20))
        parts += [f"{mark} {item}" for mark, item in zip(marks, items)]
    else:
        parts.append(" ".join(body))
    if "asks" in intents:
        parts.append("What would you like to try first?")
    return "\n".join(parts)


# -- the reader -------------------------------------------------------------------------------------------------------


def qualities(query: str, response: str) -> dict[str, float]:
    """What the reader notices in a text, each between 0 and 1."""
    lines = [line for line in response.splitlines() if line.strip()] or [""]
    many = len(response.split())
    subjects = subjects_of(query)
    return {
        "steps": sum(bool(re.match(r"\d+\.", line)) for line in lines) / len(lines),
        "points": sum(line.startswith("- ") for line in lines) / len(lines),
        "short": max(0.0, min(1.0, (60 - many) / 40)),
        "warm": float("glad" in response or "worry" in response),
        "formal": float("therefore" in response or "accordingly" in response),
        "vivid": min(1.0, response.count("!") / 3),
        "unsure": float("erhaps" in response or "might" in response),
        "figures": float(bool(re.search(r"\d+ to \d+", response))),
        "example": float("example" in response),
        "direct": float(lines[0].startswith("In short") or (many < 20 and len(lines) == 1)),
        "asks": float(response.rstrip().endswith("?")),
        "subject": sum(subject in response for subject in subjects) / len(subjects),
        "wanders": min(1.0, sum(sentence in response for sentence in _WORLD["wandering"]) / 2),
    }


def preference(query: str, response: str) -> float:
    """How much the reader really likes a response to a query, between 0 and 1."""
    if not response.strip():
        return 0.0
    seen = qualities(query, response)
    technical = sum(subject in TECHNICAL for subject in subjects_of(query)) / len(subjects_of(query))
    tastes = ((kind_of(query), 1.0), ("technical", technical), ("homely", 1.0 - technical), ("always", 1.0))
    liked = sum(share * weight * seen[quality] for name, share in tastes for quality, weight in TASTE[name].items())
    return 1.0 / (1.0 + math.exp(-STEEPNESS * (liked - MIDDLE)))


def planted_feedback(query: str, response: str, seed: int = 0) -> float:
    """What the reader says: the preference, blurred; always the same about the same text under the same seed."""
    rng = random.Random(derive_seed(seed, "planted feedback", query, response))
    if rng.random() < CARELESS:
        return rng.random()
    return min(1.0, max(0.0, preference(query, response) + rng.gauss(0.0, NOISE)))
