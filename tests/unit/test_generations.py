"""A genetic search ends by its rules of convergence, and its generations can be read from its results."""

from __future__ import annotations

from typing import Any

import pytest

from fanfold import Study
from fanfold.errors import ConfigError
from fanfold.space import Float, Space
from fanfold.strategies import Genetic
from fanfold.strategies.generations import Convergence, Generations, GenerationTimes
from fanfold.testing import StrategyConformance
from fanfold.types import Case, Result, Trial

SPACE = Space(x=Float(0.0, 1.0))


def searched(until: Convergence, generations: int = 9) -> tuple[list[Result[Any]], Generations]:
    def score(candidate: dict[str, float], case: Case) -> float:
        return 1.0 - (candidate["x"] - 0.5) ** 2

    strategy = Genetic(SPACE, population=6, elites=2, generations=generations, until=Generations(until, 2))
    run = Study(strategy, score).run()
    with run.ledger:
        results = list(run.results())
    return results, Generations.of(results, until, 2)


def test_a_search_ends_after_the_generation_that_converged() -> None:
    results, found = searched(Convergence(generations=3))
    assert [record.number for record in found.records] == [1, 2, 3]
    assert found.reason == "generation limit: 3"
    assert len(results) == 6 + 4 + 4 and [record.elites for record in found.records] == [0, 2, 2]


def test_the_target_ends_it_and_without_rules_it_goes_through_all_generations() -> None:
    assert len(searched(Convergence(target=0.0))[0]) == 6
    results, found = searched(Convergence(), generations=4)
    assert found.reason is None and len(found.records) == 4
    assert found.best is not None and found.best.score == max(result.score or 0.0 for result in results)
    bests = [record.best or 0.0 for record in found.records]
    assert bests == sorted(bests) and bests[-1] == found.best.score


def test_every_candidate_says_in_which_generation_it_was_born_only_where_there_are_rules() -> None:
    results, _ = searched(Convergence(generations=2))
    assert [(result.trial.origin or {})["generation"] for result in results] == [1] * 6 + [2] * 4
    plain = Genetic(SPACE)
    plain.begin(0)
    assert "generation" not in plain.origin(plain.ask(1)[0])


def test_a_watcher_is_told_of_every_generation_when_it_is_complete() -> None:
    seen: list[tuple[int, float]] = []
    strategy = Genetic(SPACE, population=6, elites=2, until=Generations(Convergence(generations=3), 2))
    times = GenerationTimes(lambda generation, figures: seen.append((generation, figures["evaluations"])))
    with Study(strategy, lambda candidate, case: candidate["x"]).run(watch=times).ledger:
        assert seen == [(1, 6), (2, 4), (3, 4)]
    assert all(times.figures(generation)["evaluation_time"] >= 0.0 for generation in (1, 2, 3))


@pytest.mark.parametrize(
    ("rule", "scores", "reason"),
    [
        (Convergence(patience=2), (0.5, 0.5, 0.5), "patience"),
        (Convergence(plateau=2, plateau_gain=0.1), (0.5, 0.55, 0.6), "plateau"),
        (Convergence(stagnation=1, stagnation_gain=0.2), (0.5, 0.6), "stagnation"),
        (Convergence(diversity=0.3), (0.5,), "diversity"),
    ],
)
def test_a_rule_says_why_and_not_a_generation_too_early(
    rule: Convergence, scores: tuple[float, ...], reason: str
) -> None:
    fold, seen = Generations(rule, apart=lambda results: [0.2] * len(results)), []
    for number, score in enumerate(scores):
        for place in range(2):
            fold.tell(Result(Trial(2 * number + place, {"x": float(place)}), score, {}))
        seen.append(fold.close())
    assert seen[:-1] == [None] * (len(scores) - 1)
    assert seen[-1] is not None and seen[-1].startswith(reason)


def test_a_generation_in_which_everything_failed_ends_the_search() -> None:
    fold = Generations(Convergence())
    fold.tell(Result(Trial(0, {}), None, {}))
    assert (fold.close() or "").startswith("failure") and fold.best is None


def test_a_steady_search_has_no_generations_to_end_by() -> None:
    with pytest.raises(ConfigError, match="steady"):
        Genetic(SPACE, steady=True, until=Generations(Convergence()))


class TestGeneticWithRules(StrategyConformance):
    def make(self) -> Genetic:
        return Genetic(SPACE, population=5, until=Generations(Convergence(patience=2, generations=4), 2))
