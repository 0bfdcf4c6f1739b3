"""Workflows for an environment of one's own: any options, any environment, and a function that says what was kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import ConfigError
from fanfold.running import Run
from fanfold.studies.workflow import (
    Assignments,
    Orders,
    OwnProblem,
    SpaceSettings,
    WorkflowConfig,
    run_options,
    study,
)
from fanfold.types import Failed, Ok

OWN = WorkflowConfig(
    env="own_world:make_env",
    kept="own_world:kept_order",
    space=SpaceSettings("order", ("press", "oven", "belt")),
    total_episodes=1400,
    max_episodes_per_workflow=200,
    episodes_per_update=20,
    alignment_lambda=5.0,
    fresh_episodes=64,
    finale=0.2,
    results=None,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run[Any]:
    results = str(tmp_path_factory.mktemp("results"))
    return study(dataclasses.replace(OWN, results=results)).run(run="own")


@pytest.mark.slow
def test_the_best_order_of_an_own_problem_is_found_and_kept_to(run: Run[Any]) -> None:
    assert run.summary is not None
    figures = run.summary.figures
    assert figures["workflow"] == "press>oven>belt", "the most expensive machine first"
    assert figures["complies"] and figures["compliance"] > 0.9
    assert figures["return"] == pytest.approx(-4.0, abs=0.8), "3 and 1, if nothing is served twice"
    assert figures["rivals"] == {} and len(figures["beliefs"]) == 6
    assert list(Path(figures["folder"]).glob("workflow_*_agent.safetensors"))


def test_what_the_search_chose_and_what_the_finale_made_of_it_are_told_apart(run: Run[Any]) -> None:
    assert run.summary is not None
    figures = run.summary.figures
    assert 0 < figures["finale_episodes"] <= 0.2 * 1400 + 20
    assert set(figures["chosen"]) >= {"workflow", "trial", "return", "compliance"}
    last = list(run.results())[-1]
    assert last.trial.origin["finale"] is True and figures["chosen"]["trial"] != last.number


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads:2", "processes:2"])
def test_an_own_problem_comes_to_the_same_everywhere(run: Run[Any], executor: str) -> None:
    assert study(OWN).run(executor).trace == run.trace


@pytest.mark.parametrize(
    ("space", "kept", "best"),
    [
        (SpaceSettings("subset", ("press", "oven", "belt"), least=1, most=1), "kept_subset", None),
        (SpaceSettings("assignment", ("press", "oven", "belt"), ("first",)), "kept_shifts", "first=press"),
    ],
)
@pytest.mark.slow
def test_subsets_and_assignments_are_searched_too(space: SpaceSettings, kept: str, best: str | None) -> None:
    config = dataclasses.replace(OWN, space=space, kept=f"own_world:{kept}", total_episodes=900)
    done = study(config).run()
    assert done.summary is not None and done.summary.figures["trainings"] >= 3
    trained = {tuple(result.candidate["workflow"]) for result in done.results()}
    assert len(trained) >= 2
    assert best is None or done.summary.figures["workflow"] == best


def test_workflows_that_a_function_makes_the_same_are_one() -> None:
    same = dataclasses.replace(OWN.space, same="own_world:belt_last")
    arms = dataclasses.replace(OWN, space=same).workflows.arms
    assert arms == (("press", "oven", "belt"), ("oven", "press", "belt"))


def test_a_function_that_says_nonsense_fails_its_training_with_the_reason() -> None:
    config = dataclasses.replace(OWN, kept="own_world:broken", total_episodes=200)
    done = study(config).run()
    (outcome,) = next(iter(done.results())).outcomes.values()
    assert isinstance(outcome, Failed) and "give a share from 0 to 1" in outcome.message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kept": None}, "give space.options.*and kept"),
        ({"space": SpaceSettings()}, "give space.options"),
        ({"kept": "own_world:nothing"}, "has no .nothing."),
        ({"env": "own_world:nothing"}, "nothing"),
        ({"env": "cage2"}, "kept and space are for environments of your own"),
        ({"mode": "fixed"}, "without a workflow"),
        ({"mode": "fixed", "workflow": "press>oven"}, "missing: belt"),
        ({"mode": "ppo"}, "is for CAGE-2"),
        ({"space": SpaceSettings("order", tuple("abcdefghij")), "exhaustive": True}, "too many"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_episode(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        study(dataclasses.replace(OWN, **fields))


def test_an_expensive_workflow_is_kept_to_because_breaking_it_costs_more() -> None:
    config = dataclasses.replace(OWN, mode="fixed", workflow="belt>oven>press", total_episodes=200, finale=0.0)
    done = study(config).run(run_options(config)["executor"])
    assert [result.candidate["workflow"] for result in done.results()] == [["belt", "oven", "press"]]
    (outcome,) = next(iter(done.results())).outcomes.values()
    assert isinstance(outcome, Ok) and outcome.data["contested"] is None
    assert outcome.data["compliance"] > 0.9 and outcome.score < -5.0


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (lambda workflow: 1.0, r"kept is called with \(workflow, episode\), and .*<lambda> does not take that"),
        (0.5, r"kept must be a function of \(workflow, episode\), not 0.5"),
    ],
)
def test_a_function_that_cannot_judge_an_episode_is_refused(kept: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OwnProblem(Orders(("a", "b")), "CartPole-v1", kept)


def test_an_assignment_without_slots_is_refused_by_them() -> None:
    with pytest.raises(ConfigError, match="an assignment needs slots"):
        Assignments(("a", "b"))
