"""The study also breeds plain lists of words, and ends by rules of convergence, when it is asked to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanfold.prompting.words import WordRates, first_words
from fanfold.strategies.generations import Convergence
from fanfold.studies import prompts


def words(**changes: Any) -> prompts.PromptsConfig:
    own: dict[str, Any] = {
        "form": "words",
        "model": ("simulated/any",),
        "population": 6,
        "trials": 30,
        "train": 6,
        "validation": 4,
    }
    return prompts.PromptsConfig(
        **{**own, "held_out": 4, "examples": 0, "until": Convergence(generations=2), **changes}
    )


@pytest.mark.slow
def test_a_search_of_words_runs_to_its_conclusion(tmp_path: Path) -> None:
    run = prompts.study(words()).run("async:4", ledger=tmp_path / "runs.db")
    with run.ledger:
        heads = [result.candidate["instruction"][0].split() for result in run.results()]
    assert len(heads) == 6 + 3 and all(3 <= len(head) <= 50 for head in heads)
    assert run.summary is not None and run.summary.figures["winner"]["text"]


def test_the_first_prompts_are_made_of_the_seeds_or_of_random_words() -> None:
    def first(config: prompts.PromptsConfig) -> list[tuple[str, str]]:
        strategy = prompts.study(config).strategy
        strategy.begin(0)
        return [(strategy.origin(each)["by"], each.head()) for each in strategy.ask(4)]  # type: ignore[union-attr]

    assert {by for by, _ in first(words())} == {"seed crossover"}
    assert {by for by, _ in first(words(words=WordRates(random=True)))} == {"random words"}
    own = first(words(seeds=("Answer the question now.", "Think step by step.")))
    assert own[:2] == [("seed", "Answer the question now."), ("seed", "Think step by step.")]
    assert own[2][0] == "seed crossover"
    assert len(set(first_words())) == 50


@pytest.mark.parametrize("form", ["clauses", "words"])
def test_either_form_ends_by_the_rules_of_convergence(form: Any) -> None:
    run = prompts.study(words(form=form, until=Convergence(target=0.0))).run("async:4")
    with run.ledger:
        assert run.progress.told == 6
