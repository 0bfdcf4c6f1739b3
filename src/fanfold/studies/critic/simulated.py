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

import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.encoding import derive_seed

TECHNICAL = (
    "database index", "network router", "tax return", "rental contract", "solar inverter", "heat pump", "spreadsheet",
    "soldering iron", "oscilloscope", "insurance policy", "pension plan", "backup server", "gear box", "microscope",
    "mortgage", "combustion engine", "circuit breaker", "patent application",
)  # fmt: skip
HOMELY = (
    "sourdough bread", "tomato plants", "knitted scarf", "puppy", "moving house", "birthday party", "guitar chords",
    "watercolours", "vegetable soup", "garden pond", "bird feeder", "picnic basket", "apple pie", "campfire",
    "origami", "herb garden", "lullaby", "kite",
)  # fmt: skip
SUBJECTS = TECHNICAL + HOMELY
WORDINGS: Mapping[str, tuple[str, ...]] = {
    "instruct": (
        "How do I get started with a {}?",
        "Walk me through my first {}.",
        "I want to set up a {} this weekend.",
        "What are the steps to take care of a {}?",
        "Getting a {} right: what comes first, what comes next?",
    ),
    "fact": (
        "What is a {}?",
        "Who came up with the {}?",
        "Is a {} expensive these days?",
        "Since when do people have a {}?",
        "Tell me the typical age of a {}.",
    ),
    "compare": (
        "Should I take a {} or a {}?",
        "What speaks for a {}, what for a {}?",
        "I am torn: {} on one side, {} on the other.",
        "What is the difference between a {} and a {}?",
    ),
    "comfort": (
        "My {} went wrong and I feel stupid.",
        "I am worried about my {}.",
        "I keep failing with the {}, it is embarrassing.",
        "Everybody laughs at my {}.",
    ),
    "create": (
        "Write a few lines about a {} for a card.",
        "I need a slogan with a {} in it.",
        "A {} walks into a bar: go on.",
        "Compose a toast to the {}.",
    ),
}
_READINGS = tuple(
    (kind, re.compile(".+".join(re.escape(part) for part in wording.split("{}")), re.IGNORECASE))
    for kind, wordings in WORDINGS.items()
    for wording in wordings
)

#: What a reader likes about a text, by kind of question and by subject.
TASTE: Mapping[str, Mapping[str, float]] = {
    "instruct": {"steps": 1.2, "points": 0.3, "short": -0.5, "figures": 0.4, "direct": -0.2},
    "fact": {"direct": 1.0, "short": 0.8, "steps": -0.6, "points": -0.4, "unsure": -0.3},
    "compare": {"points": 1.2, "unsure": 0.4, "short": -0.5, "steps": -0.3, "asks": 0.2},
    "comfort": {"warm": 1.1, "asks": 0.6, "steps": -0.4, "points": -0.7, "formal": -0.6},
    "create": {"vivid": 1.2, "steps": -0.8, "points": -0.7, "figures": -0.3, "short": 0.3},
    "technical": {"formal": 0.5, "figures": 0.4, "warm": -0.3},
    "homely": {"warm": 0.4, "example": 0.4, "formal": -0.5},
    "always": {"subject": 0.8, "wanders": -0.8},
}
STEEPNESS, MIDDLE = 1.6, 1.3
NOISE, CARELESS = 0.12, 0.05

#: What words in a system prompt ask for, and how strongly they are heard.
_ASKS: tuple[tuple[str, str, float], ...] = (
    (r"numbered|step by step|\b1\. ", "steps", 1.0),
    (r"bullet|: - ", "points", 1.0),
    (r"prose|without lists", "prose", 1.0),
    (r"short sentences|every word|briefly|leave out|fourteen lines", "short", 0.9),
    (r"thorough|beginners|reasons", "long", 0.9),
    (r"warm|encourag|friend\b", "warm", 1.0),
    (r"formal|precise|specialist", "formal", 1.0),
    (r"playful|vivid", "vivid", 1.0),
    (r"not sure|both sides", "unsure", 0.9),
    (r"numbers|quantit", "figures", 1.0),
    (r"example\b", "example", 1.0),
    (r"answer itself|matter-of-fact", "direct", 0.9),
    (r"with a question", "asks", 1.0),
)
#: What the writer tends to without being asked.
_HABITS: Mapping[str, Mapping[str, float]] = {
    "instruct": {"steps": 0.25},
    "fact": {"direct": 0.2, "figures": 0.15},
    "compare": {"points": 0.2, "unsure": 0.15},
    "comfort": {"warm": 0.2},
    "create": {"vivid": 0.15},
}


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


def kind_of(query: str) -> str:
    """What kind of question the reader takes a query for."""
    return next((kind for kind, reading in _READINGS if reading.fullmatch(query.strip())), "fact")


def subjects_of(query: str) -> list[str]:
    found = [subject for subject in SUBJECTS if re.search(rf"\b{subject}\b", query, re.IGNORECASE)]
    return found or [" ".join(query.split()[-2:]).strip("?.!,") or "it"]


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
        for pattern, intent, heard in _ASKS
        if re.search(pattern, system, re.I) and _chance(obedience * heard, rng)
    }
    habits = {intent for intent, share in _HABITS[kind].items() if _chance(share, rng)}
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


_PLAIN = (
    "A {s} needs some attention at the beginning.",
    "Most people see the {s} as a matter of habit.",
    "The {s} depends on the place and the season.",
    "One looks at the {s} from the outside first.",
    "Much about a {s} is easier than it seems.",
    "The rest follows from the purpose of the {s}.",
    "Some parts of a {s} wear out sooner than others.",
    "A look at the {s} of a neighbour tells a lot.",
)
_ACTIONS = (
    "Choose a quiet place for the {s}.", "Collect what the {s} needs.", "Check the {s} once more.",
    "Let the {s} rest.", "Compare the {s} with the plan.", "Write down what changed.", "Repeat it the next day.",
)  # fmt: skip
_VIVID = (
    "Oh, the {s} hums like a summer night!", "Picture a {s} dancing through silver rain!",
    "The {s} laughs, and the whole street laughs along!", "A {s} glitters where yesterday only dust was!",
)  # fmt: skip
_WANDERING = ("Trains were late that winter.", "My uncle collects stamps from islands.", "The harbour smells of tar.")


def _write(query: str, intents: set[str], temperature: float, rng: random.Random) -> str:
    subjects = subjects_of(query)

    def say(sentence: str) -> str:
        return sentence.format(s=rng.choice(subjects))

    sentences = 2 if "short" in intents else 8 if "long" in intents else 4
    body = [say(rng.choice(_VIVID if "vivid" in intents else _PLAIN)) for _ in range(sentences)]
    if "formal" in intents:
        body.insert(1, "Regarding the details, the following shall therefore apply accordingly.")
    if "unsure" in intents:
        body.append("Perhaps it depends on the case, which might be different here.")
    if "figures" in intents:
        body.append(say(f"Count on {rng.randint(2, 9)} to {rng.randint(10, 90)} units for a {{s}}."))
    if "example" in intents:
        body.append(say("For example, a {s} of a friend lasted for years."))
    wandering = 0.05 + 0.3 * max(0.0, temperature - 0.5)
    body += [rng.choice(_WANDERING) for _ in range(2) if _chance(wandering, rng)]
    parts = [say("In short: the {s}, yes.")] if "direct" in intents else []
    if "warm" in intents:
        parts.append("I am glad you ask, and do not worry, you will do great.")
    if "steps" in intents or "points" in intents:
        items = [say(action) for action in rng.sample(_ACTIONS, min(len(_ACTIONS), sentences))]
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
        "wanders": min(1.0, sum(sentence in response for sentence in _WANDERING) / 2),
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
