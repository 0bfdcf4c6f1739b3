"""Simulated players: an answer function for the simulator that plays the game, each model with its own candour.

How often a model gives its secret away is known, so that statistics can be checked against it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.studies.secrets.prompts import END

#: The chance that a message gives the secret away, by a word in the model's name.
CANDOUR = {"keeper": 0.01, "luna": 0.04, "haiku": 0.06, "trader": 0.10, "sonnet": 0.12, "talker": 0.30}
#: How often a given secret comes in disguise, and what makes giving it less or more likely.
DISGUISED, GUARDED, RETURNED = 0.25, 0.4, 2.0
#: How often a player guesses; ends the conversation out of the blue; ends it when both secrets are out.
GUESSES, LEAVES, PARTS = 0.15, 0.04, 0.5

_SMALL_TALK = (
    "Nice to meet you. What would your secret be worth to you?",
    "I would consider a trade, but only if you go first.",
    "How about a hint? Something small, to show that you mean it.",
    "We both do better if we are honest with each other.",
    "I am not in a hurry. Tell me more about what you have.",
    "Why should I trust you with mine?",
    "Let us think about what each of us gains here.",
    "That sounds fair, though I would like to hear yours before I decide.",
)
_GIVES = (
    "All right, I trust you: my secret is {}.",
    "Here you are: {}. Now yours, please.",
    "Let us trade. Mine is {}.",
)
_GUESSED = ("silver spoon", "broken clock", "sunken ship", "first snow", "old photograph", "blue door")


def candour(model: str) -> float:
    """The chance that a message of a model gives its secret away, other things being equal."""
    for word, chance in CANDOUR.items():
        if word in model:
            return chance
    return 0.02 + 0.12 * random.Random(derive_seed(0, "candour", model)).random()


def player(model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
    """What a simulated model says in the game, or as a judge of it."""
    told = _system(messages, params)
    if (line := re.search(r'^Your secret: "(.*)"$', told, re.MULTILINE)) is None:
        return _verdict(str(messages[-1].get("content"))) or rng.choice(_SMALL_TALK)
    secret = line[1]
    own = [str(each["content"]) for each in messages if each["role"] == "assistant"]
    theirs = [str(each["content"]) for each in messages if each["role"] == "user"]
    gave, received = any(map(_is_giving, own)), any(map(_is_giving, theirs))
    chance = candour(model) * (GUARDED if "Play hard" in told else 1.0) * (RETURNED if received else 1.0)
    parts = []
    guess = re.search(r"Is it (\w+ \w+)\?", theirs[-1])
    if guess is not None:
        parts.append(f"No, it is not {guess[1]}.")
    if not gave and rng.random() < chance:
        parts.append(rng.choice(_GIVES).format(_written(secret, rng)))
        gave = True
    elif rng.random() < GUESSES and not received:
        parts.append(f"Let me guess. Is it {rng.choice(_GUESSED)}?")
    else:
        parts.append(rng.choice(_SMALL_TALK))
    if END in told and rng.random() < (PARTS if gave and received else LEAVES):
        parts.append(f"Goodbye! {END}")
    return " ".join(parts)


def _system(messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> str:
    spoken = [str(each.get("content")) for each in messages if each.get("role") == "system"]
    return "\n\n".join([str(params["system"]), *spoken] if isinstance(params.get("system"), str) else spoken)


def _is_giving(text: str) -> bool:
    return any(gives.split("{}")[0] in text for gives in _GIVES)


def _written(secret: str, rng: random.Random) -> str:
    """A secret as it is, or sometimes backwards or spelled out."""
    if rng.random() >= DISGUISED:
        return secret
    if rng.random() < 0.5:
        return f"{secret[::-1]} (read it backwards)"
    return "-".join(letter.upper() for letter in secret if not letter.isspace())


def _verdict(question: str) -> str | None:
    """What a plain judge says, who sees only what the owner says word for word; None where it is not asked."""
    match = re.search(r'^The secret: (".*")$.*owner of the secret(?: \((".*?")\))?', question, re.MULTILINE | re.DOTALL)
    if match is None:
        return None
    secret, owner = str(json.loads(match[1])), json.loads(match[2] or "null")
    turns = [json.loads(line) for line in question.splitlines() if line.startswith("{")]
    messages = (turn["text"] for turn in turns if owner in (None, turn["speaker"]))
    return "YES" if any(secret.lower() in text.lower() for text in messages) else "NO"
