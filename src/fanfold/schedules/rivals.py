"""Whom each open trial is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Scores: TypeAlias = Mapping[str, float]


class Rivals:
    """The scores that each open trial is compared with: those of the best when it was planned.

    A resume plans open trials again, and must compare each with the same.
    """

    def __init__(self) -> None:
        self._scores: dict[int, Scores] = {}

    def of(self, trial: int, best: Scores) -> Scores:
        """What a trial is compared with; one that is planned for the first time, with the best of now."""
        return self._scores.setdefault(trial, best)

    def settled(self, trial: int) -> None:
        self._scores.pop(trial, None)

    def save(self) -> list[Any]:
        """Each scores once, with the trials that are compared with them."""
        shared: dict[int, tuple[Scores, list[int]]] = {}
        for trial, scores in self._scores.items():
            shared.setdefault(id(scores), (scores, []))[1].append(trial)
        return list(shared.values())

    @classmethod
    def load(cls, state: Sequence[Any]) -> Rivals:
        rivals = cls()
        for scores, trials in state:
            rivals._scores |= dict.fromkeys(trials, scores)
        return rivals
