"""The actor: chooses the response that is shown and the temperature of each, and learns from groups of responses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.studies.critic.critic import Array, np

#: What the actor weighs of each response, and how much before it has learnt anything.
SIGNALS = {"expected": 27.0, "drawn": 3.0, "sd": 0.0, "fitness": 1.0, "coherence": 0.5, "tokens": 0.0, "unsafe": -4.0}
#: How far one update may move a choice's probability, and all choices together (in nats).
CLIP, KL_BOUND = 0.2, 0.03
EPOCHS, STEP = 8, 0.15
#: Nothing is quite impossible, so that probabilities can be compared.
LEAST_CHANCE = 1e-12
#: A group whose rewards hardly differ says nothing loudly.
LEAST_SPREAD = 0.1


@dataclass(frozen=True)
class Decision:
    """One choice among options as it was made, and the result of each option.

    `options` has a row of features for each; `before` their probabilities then; `terms` are (option, advantage,
    weight): what was seen counts 1, what was only expected less.
    """

    options: list[list[float]]
    before: list[float]
    blind: float
    terms: list[tuple[int, float, float]]


class ChoicePolicy:
    """Chooses among options by a softmax of a linear preference, mixed with a `blind` share of pure chance."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights: Array = np.array(weights, dtype=np.float64)

    def probabilities(self, options: Sequence[Sequence[float]], blind: float = 0.0) -> Array:
        mixed: Array = (1.0 - blind) * self._softmax(np.asarray(options), self.weights) + blind / len(options)
        return mixed

    def update(self, decisions: Sequence[Decision]) -> float:
        """Improve on a batch of decisions; gives how far the choices moved (mean KL divergence, within the bound).

        Ascends the clipped surrogate: a choice better than its group becomes more likely, a worse one less, neither
        further than the clip; then the whole step is shortened until the bound holds.
        """
        if not decisions:
            return 0.0
        start, weights = self.weights, self.weights
        scale = np.maximum(np.abs(start), 1.0)  # a large preference is moved in its own measure
        for _ in range(EPOCHS):
            slope = sum((self._slope(decision, weights) for decision in decisions), np.zeros_like(weights))
            weights = weights + STEP * scale * slope / len(decisions)
        step = weights - start
        # Feedback may come late: then the policy has moved already since the choices were made.
        bound = KL_BOUND + self._moved(decisions, start)
        while (moved := self._moved(decisions, start + step)) > bound:
            step = step / 2
        self.weights = start + step
        return moved

    @staticmethod
    def _softmax(options: Array, weights: Array) -> Array:
        logits = options @ weights
        powers = np.exp(logits - logits.max())
        shares: Array = np.maximum(powers / powers.sum(), LEAST_CHANCE)
        return shares

    def _mixed(self, decision: Decision, weights: Array) -> tuple[Array, Array]:
        soft = self._softmax(np.array(decision.options), weights)
        return soft, (1.0 - decision.blind) * soft + decision.blind / len(soft)

    def _slope(self, decision: Decision, weights: Array) -> Array:
        options = np.array(decision.options)
        soft, now = self._mixed(decision, weights)
        middle = soft @ options
        slope = np.zeros_like(weights)
        for option, advantage, weight in decision.terms:
            ratio = now[option] / decision.before[option]
            if ratio > 1.0 + CLIP if advantage > 0 else ratio < 1.0 - CLIP:
                continue
            share = (1.0 - decision.blind) * soft[option] / decision.before[option]
            slope += weight * advantage * share * (options[option] - middle)
        return slope

    def _moved(self, decisions: Sequence[Decision], weights: Array) -> float:
        total = 0.0
        for decision in decisions:
            before = np.array(decision.before)
            _, now = self._mixed(decision, weights)
            total += float((before * np.log(before / now)).sum())
        return max(0.0, total / len(decisions))  # never negative but for rounding


class Actor:
    """Two policies: which response is shown, from signals of each; and at which temperature responses are made."""

    def __init__(self, temperatures: Sequence[float], cues: int) -> None:
        self.temperatures = tuple(temperatures)
        self.shows = ChoicePolicy(list(SIGNALS.values()))
        self.warms = ChoicePolicy([0.0] * (len(self.temperatures) * (cues + 1)))

    def temperature_options(self, cues: Sequence[float]) -> list[list[float]]:
        """Each temperature with its own preference, which depends on the cues of the query."""
        context = [1.0, *cues]
        many = len(self.temperatures)
        return [[value * (row == i) for row in range(many) for value in context] for i in range(many)]

    def learn(self, shown: Sequence[Decision], warmed: Sequence[Decision]) -> tuple[float, float]:
        """Update both policies; gives how far each moved."""
        return self.shows.update(shown), self.warms.update(warmed)

    def state(self) -> dict[str, Any]:
        return {"shows": self.shows.weights.tolist(), "warms": self.warms.weights.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        self.shows, self.warms = ChoicePolicy(state["shows"]), ChoicePolicy(state["warms"])


def lesson(
    options: list[list[float]], before: list[float], blind: float, ahead: Sequence[float], trust: Sequence[float]
) -> Decision:
    """A choice of what to show as the actor learns from it, with the advantage of each option and what that rests on.

    What was shown (trust 1) counts in full, what was only expected as often as it would have been drawn.
    """
    terms = [(at, ahead[at], share * (1.0 if share == 1.0 else before[at])) for at, share in enumerate(trust)]
    return Decision(options, before, blind, terms)


def standing(fitness: float, best: float, mean: float) -> float:
    """How a prompt stands among others, as the actor weighs it: 0 is the mean, 1 the best."""
    return (fitness - mean) / max(best - mean, 0.05)


def pick(probabilities: Array, many: int, rng: random.Random) -> list[int]:
    """So many different options, drawn one after the other by their probabilities."""
    left = dict(enumerate(probabilities.tolist()))
    drawn: list[int] = []
    while left and len(drawn) < many:
        weights = list(left.values())
        option = rng.choices(list(left), weights if sum(weights) > 0 else None)[0]
        drawn.append(option)
        del left[option]
    return drawn


def advantages(rewards: Sequence[float]) -> list[float]:
    """How much better than its group each is, in units of the group's spread."""
    middle = sum(rewards) / len(rewards)
    spread = (sum((reward - middle) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    return [(reward - middle) / max(spread, LEAST_SPREAD) for reward in rewards]
