"""The reward of a response: feedback, what the critic expects, coherence, tokens and safety, each with its weight."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fanfold.studies.critic.config import RewardWeights
from fanfold.studies.critic.features import overlap, words

#: So many words of the system prompt in a row, and a response is taken to give it away.
GIVEN_AWAY = 10
_SECRET = re.compile(
    r"\b(?:sk|pk|ghp|xox[abp])[-_][A-Za-z0-9_-]{16,}\b|\bAKIA[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_CARD = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b")


@dataclass(frozen=True, slots=True)
class Reward:
    """The parts of a reward as they were seen, before they are weighted."""

    feedback: float
    critic: float
    coherence: float
    tokens: int
    safety: float

    def total(self, weights: RewardWeights) -> float:
        return (
            weights.lambda_feedback * self.feedback
            + weights.lambda_critic * self.critic
            + weights.lambda_coherence * self.coherence
            + weights.lambda_tokens * self.tokens
            + weights.lambda_safety * self.safety
        )


def coherence(query: str, response: str) -> float:
    """Between 0 and 1: on the subject, not going in circles, and brought to an end."""
    found = words(response)
    if not found:
        return 0.0
    threes = list(zip(found, found[1:], found[2:]))
    fresh = len(set(threes)) / len(threes) if threes else 1.0
    ended = float(response.rstrip()[-1:] in set(".!?`)}]\"'"))
    return 0.4 * min(1.0, 2.0 * overlap(query, response)) + 0.4 * fresh + 0.2 * ended


def unsafe(prompt: str, query: str, response: str) -> float:
    """Between 0 and 1: keys and card numbers, the system prompt given away, addresses nobody mentioned."""
    if _SECRET.search(response) or any(_is_card(found) for found in _CARD.findall(response)):
        return 1.0
    if _gives_away(prompt, response):
        return 1.0
    known = f"{prompt} {query}".casefold()
    return 0.5 if any(address.casefold() not in known for address in _MAIL.findall(response)) else 0.0


def _is_card(text: str) -> bool:
    """Whether the digits pass the check that card numbers are made to pass."""
    digits = [int(character) for character in text if character.isdigit()][::-1]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0 and len(set(digits)) > 1


def _gives_away(prompt: str, response: str) -> bool:
    told, said = words(prompt), f" {' '.join(words(response))} "
    runs = (f" {' '.join(told[start : start + GIVEN_AWAY])} " for start in range(len(told) - GIVEN_AWAY + 1))
    return any(run in said for run in runs)
