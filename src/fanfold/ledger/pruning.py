"""Which blobs of a run nothing needs any more."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fanfold.encoding import encode, references
from fanfold.types import Ok, Outcome, Result


class Pruner:
    """Follows a run and finds the blobs that it no longer needs.

    These stay: the blobs of open trials, of the best `keep` complete trials, and of the trials that the strategy
    `needs` (None: of all).  Of a told trial, data under the keys in `passing` go, because only its next case needed
    them; where outcomes continue each other, so does everything but the last outcome.  A failed evaluation may be made
    again, so a trial with a failure keeps everything.
    """

    def __init__(self, evaluate: Any, needs: Callable[[], Iterable[int] | None], keep: int) -> None:
        self._passing: Collection[str] = getattr(evaluate, "passing", ())
        self._continues = bool(getattr(evaluate, "continues", False))
        self._needs = needs
        self._keep = keep
        self._best: list[tuple[float, int]] = []
        self._open: dict[int, set[str]] = {}
        self._told: dict[int, set[str]] = {}
        self._forever: set[str] = set()
        self._loose: set[str] = set()
        #: What was pruned and not put again since.
        self.gone: set[str] = set()
        self._counts = (0, 0)
        self._news = False

    def asked(self, number: int, candidate: str) -> None:
        """A trial was asked, with this candidate as JSON."""
        self._counts = (number + 1, self._counts[1])
        self._open[number] = references(candidate)

    def evaluated(self, number: int, data: str) -> None:
        """An open trial has an outcome with this data as JSON."""
        if number in self._open:
            self._open[number] |= references(data)

    def recalled(self, number: int, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Ok) and outcome.data is not None:
                self.evaluated(number, encode(outcome.data))

    def told(self, order: int, result: Result[Any]) -> None:
        self._counts, self._news = (self._counts[0], order + 1), True
        digests = self._open.pop(result.number, set())
        if result.failures:
            self._forever |= digests
            return
        self._loose |= digests
        outcomes = [outcome.data for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
        stays: set[str] = set()
        for data in outcomes[-1:] if self._continues else outcomes:
            if isinstance(data, dict):
                data = {key: value for key, value in data.items() if key not in self._passing}
            stays |= references(encode(data))
        self._told[result.number] = stays
        if result.complete and result.score is not None:
            insort(self._best, (-result.score, result.number))
            del self._best[self._keep :]

    def unneeded(self, recorded: int, recorded_told: int) -> list[str]:
        """The digests that can go since the last time; none while a resume has not caught up with its record."""
        asked, told = self._counts
        if not self._news or asked < recorded or told < recorded_told:
            return []
        self._news = False
        needed = self._needs()
        numbers = set(self._told) if needed is None else {*needed, *(number for _, number in self._best)}
        self._told = {number: stays for number, stays in self._told.items() if number in numbers}
        digests = self._loose.difference(self._forever, *self._open.values(), *self._told.values())
        self._loose -= digests
        self.gone |= digests
        return sorted(digests)
