"""The contract of a strategy as a test suite: subclass it, say how to make the strategy, and let pytest collect it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from fanfold.encoding import decode, derive_seed, encode
from fanfold.snapshots import Unsaved, saves, take_over
from fanfold.strategy import Strategy
from fanfold.types import Failed, Ok, Outcome, Result, Trial

#: Given the number of a trial: None lets it be scored, "fail" fails it, "drop" drops it with its score.
Fate = Callable[[int], str | None]


class StrategyConformance:
    """Checks everything the docstring of `Strategy` promises, on a few dozen trials per check.

        class TestMine(StrategyConformance):
            def make(self) -> Strategy:
                return Mine(...)

    `make` gives a fresh strategy before `begin`; `score` may be overridden where the default, a fixed pseudo-random
    number per candidate, does not suit.
    """

    #: How many trials each check goes through; raise it above two generations of a strategy that has generations.
    trials = 60
    #: How many results are outstanding at most while a check runs.
    open_trials = 8
    #: False for a strategy that uses no randomness: then nothing is asserted about different seeds.
    seeds_differ = True

    def make(self) -> Strategy[Any]:
        """A fresh strategy, before `begin`."""
        raise NotImplementedError("override make() to return the strategy to check")

    def score(self, candidate: Any) -> float:
        """The score of a candidate; the same each time."""
        return derive_seed(0, encode(candidate)) / 2**63

    def test_two_asks_give_what_one_ask_for_both_gives(self) -> None:
        split = self._search(lambda strategy, n: [*strategy.ask(n // 3), *strategy.ask(n - n // 3)])
        single = self._search(lambda strategy, n: [c for _ in range(n) for c in strategy.ask(1)])
        assert split == self._search()
        assert single == self._search()

    def test_an_ask_never_gives_more_than_asked_for(self) -> None:
        def ask(strategy: Strategy[Any], n: int) -> Sequence[Any]:
            candidates = strategy.ask(n)
            assert len(candidates) <= n
            return candidates

        assert self._search(ask), "the first ask must give at least one candidate"

    def test_an_ask_for_none_gives_nothing_and_changes_nothing(self) -> None:
        def ask(strategy: Strategy[Any], n: int) -> Sequence[Any]:
            assert list(strategy.ask(0)) == []
            return strategy.ask(n)

        assert self._search(ask) == self._search()

    def test_the_same_seed_gives_the_same_search(self) -> None:
        assert self._search(seed=7) == self._search(seed=7)

    def test_different_seeds_give_different_searches(self) -> None:
        if self.seeds_differ:
            assert self._search(seed=7) != self._search(seed=8)

    def test_candidates_can_be_kept_and_read_back(self) -> None:
        for text in self._search():
            assert encode(decode(text)) == text

    def test_failed_and_dropped_results_are_tolerated(self) -> None:
        fates: list[Fate] = [
            lambda number: "fail",
            lambda number: "fail" if number < self.trials // 2 else None,
            lambda number: "fail" if number % 3 == 0 else None,
            lambda number: (None, "fail", "drop")[number % 3],
            lambda number: "drop",
        ]
        for fate in fates:
            assert self._search(fate=fate) == self._search(fate=fate)

    def test_results_may_be_told_in_any_order(self) -> None:
        for position in (-1, 1):  # the newest first; the second oldest first
            asked = self._search(tell_first=position)
            assert len(asked) == len(self._search())
            assert asked == self._search(tell_first=position)

    def test_a_copy_made_before_begin_is_independent(self) -> None:
        original = self.make()
        twin = copy.deepcopy(original)
        late = copy.deepcopy(original)
        first, second = _Search(self, original, seed=1), _Search(self, twin, seed=2)
        while first.step() | second.step():  # not `or`: both move, in turn
            pass
        assert first.asked == self._search(seed=1)
        assert second.asked == self._search(seed=2)
        assert self._search(strategy=late, seed=1) == first.asked

    def test_a_saved_search_continues_as_if_it_had_not_been_interrupted(self) -> None:
        """Where it has `save` and `load`: an heir that takes over after every few tells asks the same."""
        search = _Search(self, self.make(), seed=1)
        while search.step() and saves(search.strategy):
            heir = self.make()
            heir.begin(1)
            try:
                take_over(heir, search.strategy.save(), search.told.__getitem__)
            except Unsaved:
                return
            search.strategy = heir
        assert not saves(search.strategy) or search.asked == self._search()

    def _search(
        self,
        ask: Callable[[Strategy[Any], int], Sequence[Any]] = lambda strategy, n: strategy.ask(n),
        *,
        seed: int = 1,
        strategy: Strategy[Any] | None = None,
        fate: Fate = lambda number: None,
        tell_first: int = 0,
    ) -> list[str]:
        search = _Search(self, strategy or self.make(), seed=seed, ask=ask, fate=fate, tell_first=tell_first)
        while search.step():
            pass
        return search.asked


class _Search:
    """A little engine: fills the window with one ask, tells some of what is open, and so on; `asked` is the trace."""

    def __init__(
        self,
        suite: StrategyConformance,
        strategy: Strategy[Any],
        *,
        seed: int,
        ask: Callable[[Strategy[Any], int], Sequence[Any]] = lambda strategy, n: strategy.ask(n),
        fate: Fate = lambda number: None,
        tell_first: int = 0,
    ) -> None:
        self.asked: list[str] = []
        self.strategy = strategy
        self.told: dict[int, Result[Any]] = {}
        self._suite = suite
        self._ask = ask
        self._fate = fate
        self._tell_first = tell_first
        self._open: list[Trial[Any]] = []
        strategy.begin(seed)

    def step(self) -> bool:
        """One ask and a few tells; False when the search is over or long enough."""
        free = min(self._suite.open_trials - len(self._open), self._suite.trials - len(self.asked))
        for candidate in self._ask(self.strategy, free):
            self._open.append(Trial(len(self.asked), candidate))
            self.asked.append(encode(candidate, "a candidate"))
        if not self._open:
            return False
        # Between one and all of what is open, so that asks of every size come up.
        for _ in range(1 + len(self.asked) % len(self._open)):
            position = self._tell_first if len(self._open) > 1 else 0
            result = self._result(self._open.pop(position))
            self.told[result.number] = result
            self.strategy.tell(result)
        return True

    def _result(self, trial: Trial[Any]) -> Result[Any]:
        fate = self._fate(trial.number)
        score = self._suite.score(trial.candidate)
        outcome: Outcome = Failed("error", "made to fail by the conformance suite") if fate == "fail" else Ok(score)
        return Result(
            trial, None if fate == "fail" else score, {"case": outcome}, "lagging" if fate == "drop" else None
        )
