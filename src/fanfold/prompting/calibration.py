"""What a model prefers to answer whatever it is asked: told from its replies, and taken off by biases on tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from fanfold.calls import Reply
from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import Genome
from fanfold.schedules import PairedDropping
from fanfold.types import Ok, Result

#: Likely tokens that a reply lists in each place.
LISTED = 20
#: Replies to a prompt from which on its preference can be told, and how often a label seems to be right beside them.
LEAST, BESIDE = 4, 0.5
#: How often each label counts as seen before any answer is, and how often biases are adjusted to each other.
SEEN, ROUNDS = 3, 2
#: Letters from which on a token begins a label; a shorter one is also an article or the like, unless it is all of it.
LETTERS = 3
#: The largest bias: e to this power.
MOST = 10.0
#: Where an evaluation keeps how likely its reply was to begin in other ways.
OPENING = "opening"

#: The probability of each token that begins one label alone; under "" that of the likeliest token that begins none.
Opening: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Calibration:
    """For answers that are one of a few labels: which they are, and how often each is right.

    Over many inputs, a model should begin each label as often as it is right.  How much more or less likely it makes a
    label on average is a preference of model and prompt, not an answer to the input (batch calibration).  It is told
    from the replies that a search pays for anyway.
    """

    labels: tuple[str, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, labels: Sequence[str], answers: Iterable[str]) -> Self:
        """By the right answers of problems; a label that none of them has is rare, not impossible."""
        own = {_plain(label): SEEN for label in labels}
        counts = Counter(own) + Counter(answer for answer in map(_plain, answers) if answer in own)
        return cls(tuple(own), tuple(counts[label] / counts.total() for label in own))

    def opening(self, reply: Reply) -> dict[str, float] | None:
        """How likely a reply was to begin with which label; None where it does not say so, or with none at all."""
        first = next((place for place in reply.logprobs if place.token.strip()), None)
        if first is None:
            return None
        opening: dict[str, float] = {"": 0.0}
        for token, value in first.top.items():
            chance = math.exp(value)
            if self._begun(token) is None:
                opening[""] = max(opening[""], chance)
            else:
                opening[token] = chance
        return opening if len(opening) > 1 else None

    def calibrated(self, result: Result[Any]) -> Result[Any]:
        """A prompt scored on all problems, with its preference taken off, and what it would have scored so.

        No reply is needed for that: how likely each label was is known, and so is which one leads with the biases.
        """
        outcomes = {case: each for case, each in result.outcomes.items() if isinstance(each, Ok)}
        if not result.complete or len(outcomes) < len(result.outcomes):
            return result
        if not (biases := self._biases(outcomes.values())):
            return result
        genome: Genome = replace(genome_of(result), biases=tuple(sorted(biases.items())))
        scored = {case: Ok(self._score(each, biases), each.data, each.cost) for case, each in outcomes.items()}
        mean = math.fsum(each.score for each in scored.values()) / len(scored)
        return replace(result, trial=replace(result.trial, candidate=genome), score=mean, outcomes=scored)

    def scores(self, outcomes: Sequence[Ok]) -> list[float]:
        """What these outcomes of one prompt would have scored without its preference; as they are where it is not
        known.
        """
        biases = self._biases(outcomes)
        return [self._score(each, biases) if biases else each.score for each in outcomes]

    def _biases(self, outcomes: Iterable[Ok]) -> dict[str, float]:
        """By token, what makes each label as likely over all inputs as it is right; nothing where that is not known."""
        openings = [opening for each in outcomes if (opening := _opening(each)) is not None]
        if len(openings) < LEAST:
            return {}
        tokens = {token: label for each in openings for token in each if (label := self._begun(token)) is not None}
        rows = [self._of_labels(opening, tokens) for opening in openings]
        lifts = [0.0] * len(self.labels)
        for _ in range(ROUNDS):
            often = [0.0] * len(self.labels)
            for row in rows:
                lifted = [chance * math.exp(lift) for chance, lift in zip(row, lifts)]
                often = [sum + chance / math.fsum(lifted) for sum, chance in zip(often, lifted)]
            for place, share in enumerate(self.shares):
                lifts[place] += math.log(share * (len(rows) + BESIDE) / (often[place] + share * BESIDE))
        # None is lowered: a reply that is no label must not become likelier.
        least = min(lifts[label] for label in tokens.values())
        biases = {token: round(min(MOST, lifts[label] - least), 3) for token, label in tokens.items()}
        return {token: bias for token, bias in biases.items() if bias > 0}

    def _of_labels(self, opening: Opening, tokens: Mapping[str, int]) -> list[float]:
        """How likely each label is among the labels."""
        chances = [0.0] * len(self.labels)
        for token, chance in opening.items():
            if token:
                chances[tokens[token]] += chance
        return [chance / math.fsum(chances) for chance in chances]

    def _score(self, outcome: Ok, biases: Mapping[str, float]) -> float:
        """What an outcome would have scored if the tokens of its reply had had these biases."""
        opening = _opening(outcome)
        if opening is None:
            return outcome.score
        said = self._begun(max(opening, key=lambda token: opening[token]))
        says = self._begun(max(opening, key=lambda token: opening[token] * math.exp(biases.get(token, 0.0))))
        if says == said or says is None:
            return outcome.score
        return float(self.labels[says] == _plain(outcome.data["expected"]))

    def _begun(self, token: str) -> int | None:
        """The label that a token begins, if it is one alone."""
        text = _plain(token.lstrip())
        begun = [place for place, label in enumerate(self.labels) if text and label.startswith(text)]
        if len(begun) != 1 or (len(text) < LETTERS and text != self.labels[begun[0]]):
            return None
        return begun[0]


@dataclass(eq=False)
class CalibratedDropping(PairedDropping):
    """Compares prompts by what they score without the model's preference."""

    calibration: Calibration = Calibration((), ())

    def worth(self, outcomes: Sequence[Ok]) -> list[float]:
        return self.calibration.scores(outcomes)

    def tell(self, result: Result[Any]) -> None:
        super().tell(self.calibration.calibrated(result))


def _opening(outcome: Ok) -> Opening | None:
    return outcome.data.get(OPENING) if isinstance(outcome.data, Mapping) else None


def _plain(label: str) -> str:
    return label.strip().casefold()
