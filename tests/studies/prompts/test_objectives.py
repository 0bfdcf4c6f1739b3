"""What the objectives promise: cost is what a prompt costs to run, and several models are no further problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanfold.prompting.genome import Genome
from fanfold.stats import mcnemar
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.conclusion import _gain, interval_of
from fanfold.studies.prompts.objectives import by_problem, cost
from fanfold.types import Ok, Result, Trial

SIZES: dict[str, Any] = {"train": 8, "validation": 4, "held_out": 8, "examples": 4}


def result(scores: dict[str, float], **data: Any) -> Result[Genome]:
    outcomes = {case: Ok(score, {"said": "", "tokens": 1, **data}) for case, score in scores.items()}
    mean = sum(scores.values()) / len(scores)
    return Result(Trial(0, Genome.of("Say it.")), mean, outcomes)


@pytest.mark.slow
def test_cost_is_the_list_price_also_where_the_ledger_had_the_answer(tmp_path: Path) -> None:
    models = ("simulated/gpt-6-luna",)
    config = PromptsConfig(task="city", model=models, trials=6, objectives=("accuracy", "cost"), **SIZES)
    ledger = tmp_path / "a.db"
    paid = [cost(each) for each in study(config).run(ledger=ledger, run="first").results()]
    again = study(config).run(ledger=ledger, run="second")
    assert again.money.cost == 0 and [cost(each) for each in again.results()] == paid
    assert all(price < 0 for price in paid) and len(set(paid)) > 1


@pytest.mark.slow
def test_the_price_of_another_model_can_count() -> None:
    config = PromptsConfig(task="city", model=("simulated/gpt-6-luna",), trials=3, **SIZES)
    cheap, costly = (
        [cost(each) for each in study(settings).run().results()]
        for settings in (config, PromptsConfig(**{**vars(config), "price_as": "openai/gpt-6-sol"}))
    )
    assert all(more < less for more, less in zip(costly, cheap))
    local = study(PromptsConfig(task="city", objectives=("accuracy", "cost"), **SIZES))
    assert any("--price-as" in remark for remark in local.remarks)


@pytest.mark.parametrize("models", [("a/x", "b/y"), ("x", "y")], ids=["providers", "one server"])
def test_answers_of_several_models_to_a_problem_are_one_sample(models: tuple[str, ...]) -> None:
    scores = {f"p{n}@{model}": float(n % 3 > 0) for n in range(30) for model in models}
    first = {case: float(case[1:].partition("@")[0] in map(str, range(0, 30, 5))) for case in scores}
    several, alone = result(scores), result({f"p{n}": float(n % 3 > 0) for n in range(30)})
    assert len(by_problem(several)) == 30
    wide, narrow = interval_of(alone), interval_of(several)
    assert (narrow.low, narrow.high) == pytest.approx((wide.low, wide.high), abs=0.01)
    by_one = _gain(alone, result({f"p{n}": first[f"p{n}@{models[0]}"] for n in range(30)}))
    assert _gain(several, result(first))["gain_p"] == pytest.approx(by_one["gain_p"])


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_models_that_are_all_right_or_all_wrong_are_not_more_problems(score: float) -> None:
    alone = interval_of(result({f"p{n}": score for n in range(30)}))
    several = interval_of(result({f"p{n}@a/{model}": score for n in range(30) for model in "xyz"}))
    assert (several.estimate, several.low, several.high) == (alone.estimate, alone.low, alone.high)
    assert (alone.n, several.n, several.clusters) == (30, 90, 30)


def test_for_one_model_the_test_is_mcnemars() -> None:
    mine = {f"p{n}": float(n < 14) for n in range(20)}
    other = {f"p{n}": float(n > 10) for n in range(20)}
    wins, losses = (sum((mine[case] - other[case]) * sign > 0 for case in mine) for sign in (1, -1))
    gain = _gain(result(mine), result(other))
    assert gain["gain"] == pytest.approx((wins - losses) / 20)
    assert gain["gain_p"] == pytest.approx(mcnemar(wins, losses))


def test_an_id_with_an_at_sign_is_an_id() -> None:
    mails = {f"{name}@{host}": 1.0 for name, host in (("ann", "a.org"), ("ann", "b.org"), ("bo", "a.org"))}
    assert set(by_problem(result(mails))) == set(mails)
    assert set(by_problem(result({"a/1": 1.0, "a/2": 0.0}))) == {"a/1", "a/2"}
