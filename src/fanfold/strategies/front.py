"""Which of the results of a search are best on each case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from msgspec import to_builtins

from fanfold.types import Ok, Result


class CaseFront:
    """The complete results of a search, and which of them are best on each case.

    A result is on the front if it is best on a case, alone or beside others, and no other result is best on all of its
    cases and more.
    """

    def __init__(self) -> None:
        self.results: dict[int, Result[Any]] = {}
        self._scores: dict[int, dict[str, float]] = {}
        self._wins: dict[int, frozenset[str]] | None = None
        self._paired: set[tuple[int, int]] = set()
        #: What was tried with a part of a result and not accepted.
        self.tried: dict[tuple[int, str], tuple[Any, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self.results)

    def add(self, result: Result[Any]) -> None:
        self.results[result.number] = result
        self._scores[result.number] = {
            case: outcome.score for case, outcome in result.outcomes.items() if isinstance(outcome, Ok)
        }
        self._wins = None

    def save(self) -> dict[str, Any]:
        """The results by their numbers, the pairs that were given, and what was tried."""
        tried = [(number, part, [to_builtins(one) for one in own]) for (number, part), own in self.tried.items()]
        return {"results": list(self.results), "paired": sorted(self._paired), "tried": tried}

    def load(self, state: Mapping[str, Any], told: Callable[[int], Result[Any]]) -> None:
        for number in state["results"]:
            self.add(told(number))
        self._paired = {(a, b) for a, b in state["paired"]}
        self.tried = {(number, part): tuple(own) for number, part, own in state["tried"]}

    @property
    def best(self) -> Result[Any]:
        """The result with the highest score, of equals the first."""
        return max(self.results.values(), key=lambda result: (result.score or 0.0, -result.number))

    @property
    def top(self) -> float:
        """The highest score on any case."""
        return max((score for scores in self._scores.values() for score in scores.values()), default=0.0)

    @property
    def wins(self) -> dict[int, frozenset[str]]:
        """The members of the front by number, and the cases each is best on."""
        if self._wins is None:
            best: dict[str, float] = {}
            for scores in self._scores.values():
                for case, score in scores.items():
                    best[case] = max(score, best.get(case, score))
            wins = {
                number: frozenset(case for case, score in scores.items() if score == best[case])
                for number, scores in self._scores.items()
            }
            self._wins = {number: own for number, own in wins.items() if own and not self._covered(number, wins)}
        return self._wins

    def _covered(self, number: int, wins: Mapping[int, frozenset[str]]) -> bool:
        own = wins[number]
        return any(
            own < other or (own == other and self._standing(rival) > self._standing(number))
            for rival, other in wins.items()
            if rival != number
        )

    def _standing(self, number: int) -> tuple[float, int]:
        return self.results[number].score or 0.0, -number

    def draw(self, rng: Random) -> Result[Any]:
        """A member, its chance in proportion to the number of cases it is best on."""
        wins = self.wins
        if not wins:
            return self.best
        numbers = sorted(wins)
        return self.results[rng.choices(numbers, [len(wins[number]) for number in numbers])[0]]

    def pair(self) -> tuple[Result[Any], Result[Any]] | None:
        """The two members, the better first, that are best on the most different cases; every two are given once."""
        wins = self.wins
        pairs = [
            (min(len(wins[a] - wins[b]), len(wins[b] - wins[a])), -a, -b)
            for a in wins
            for b in wins
            if a < b and (a, b) not in self._paired
        ]
        gain, a, b = max(pairs, default=(0, 0, 0))
        if not gain:
            return None
        self._paired.add((-a, -b))
        first, second = sorted((-a, -b), key=self._standing, reverse=True)
        return self.results[first], self.results[second]
