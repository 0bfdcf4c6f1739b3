"""A problem of one's own in Python: what is searched is always that problem."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import own_world
import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.studies.workflow import Config, Orders, OwnProblem, SpaceSettings, study

SPACE = Orders(own_world.MACHINES)
PROBLEM = OwnProblem(SPACE, own_world.make_env, own_world.kept_order)


def small(**fields: Any) -> Config:
    return Config(total_episodes=60, max_episodes_per_workflow=30, fresh_episodes=8, results=None, **fields)


def test_one_workflow_of_an_own_problem_is_trained() -> None:
    done = study(small(mode="fixed", workflow="belt>oven>press"), PROBLEM).run()
    assert {tuple(result.candidate["workflow"]) for result in done.results()} == {("belt", "oven", "press")}
    with pytest.raises(ConfigError, match="missing: belt"):
        study(small(mode="fixed", workflow="oven>press"), PROBLEM)
    with pytest.raises(ConfigError, match="no unit type 'belt'"):
        study(small(mode="fixed", workflow="belt>oven>press"))


@pytest.mark.parametrize(
    ("fields", "space", "says"),
    [
        ({"mode": "ppo"}, SPACE, "not for this problem: use another mode, or fanfold.rl.train"),
        ({"mode": "fixed"}, SPACE, "needs the workflow to train"),
        ({"exhaustive": True}, Orders(tuple("abcdefghij")), "too many workflows"),
        ({}, Orders, r"must be Orders\(...\), Subsets"),
        ({}, own_world.MACHINES, r"must be Orders\(...\), Subsets"),
    ],
)
def test_nothing_else_is_learnt_than_the_problem(fields: dict[str, Any], space: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        study(small(**fields), OwnProblem(space, own_world.make_env, own_world.kept_order))


def test_what_a_space_has_no_use_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="contested: there is no option 'belts'; did you mean 'belt'"):
        Orders(own_world.MACHINES, contested=(("belts", "oven"),))
    with pytest.raises(ConfigError, match="slots belong to kind='assignment', and kind='order' has none"):
        SpaceSettings(options=("ann", "bob"), slots=("monday",))
    with pytest.raises(ConfigError, match="least and most belong to kind='subset'"):
        SpaceSettings("assignment", ("ann", "bob"), ("monday",), most=1)


@pytest.mark.parametrize("option", [{"red_agent": "SleepAgent"}, {"grain": "hosts"}, {"memory": True}, {"length": 30}])
def test_what_belongs_to_cage_2_is_refused_beside_an_own_environment(option: dict[str, Any]) -> None:
    (name,) = option
    space = SpaceSettings("order", SPACE.options)
    settings: dict[str, Any] = {"env": "own_world:make_env", "kept": "own_world:kept_order", "space": space}
    with pytest.raises(ConfigError, match=f"{name}=.* CAGE-2.*leave it out"):
        small(**settings, **option)
    with pytest.raises(ConfigError, match=f"{name}=.* CAGE-2.*leave it out"):
        small(env="own_world:make_env", mode="ppo", **option)
    with pytest.raises(ConfigError, match=f"{name}=.* CAGE-2.*leave it out"):
        study(small(**option), PROBLEM)
    resumed = Config.formerly({**settings, **option})
    assert Config(**resumed) == Config(**Config.formerly(settings)), "a run in which it did nothing continues"


def test_a_space_says_what_is_wrong_with_its_function_same() -> None:
    def nothing(workflow: Any) -> Any:
        return None

    def fails(workflow: Any) -> Any:
        raise KeyError("belt")

    def another(workflow: Any) -> Any:
        return workflow[:2]

    def reversed_(workflow: Any) -> Any:
        return workflow[::-1]

    for function, says in (
        (nothing, r"`same` gave None for \S+: it must give a workflow"),
        (fails, r"`same` raised KeyError: 'belt' \(test_own_problem.py, line \d+\)"),
        (another, r"`same` gave .* for \S+: workflow '\S+' \(missing: "),
        (reversed_, r"`same` makes \S+ of (\S+), and \1 of that: one workflow must"),
    ):
        with pytest.raises(ConfigError, match=says):
            study(small(), OwnProblem(Orders(SPACE.options, same=function), own_world.make_env, own_world.kept_order))


def test_a_search_without_a_compliant_policy_shows_how_compliance_rose(tmp_path: Path) -> None:
    flags = ["--env", "own_world:make_env", "--kept", "own_world:kept_subset", "--space.kind", "subset"]
    flags += ["--space.options", "press,oven,belt", "--total-episodes", "60", "--max-episodes-per-workflow", "10"]
    flags += ["--compliance-threshold", "0.999", "--fresh-episodes", "8", "--results", "none"]
    ending = CliRunner().invoke(cli, ["run", "workflow", *flags, "--ledger", str(tmp_path / "runs.db")]).output
    assert "Best score so far" not in ending


@pytest.mark.parametrize(
    ("size", "weight", "says"),
    [
        (
            0.01,
            30.0,
            r"times the largest return in an episode, so returns may hardly .*: try --alignment-lambda 0\.\d+\.$",
        ),
        (100.0, 30.0, r"times the largest .*, and most trainings did not comply: try --alignment-lambda \d+\.$"),
        (1.0, 5.0, None),
    ],
)
def test_a_penalty_of_another_size_than_the_returns_is_said_at_the_end(
    size: float, weight: float, says: str | None
) -> None:
    class Priced(own_world.Workshop):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, reward, *rest = super().step(action)
            return seen, size * reward, *rest  # type: ignore[return-value]

    done = study(small(alignment_lambda=weight), OwnProblem(SPACE, Priced, own_world.kept_order)).run()
    assert done.summary is not None
    text = done.summary.sections[0].text
    assert re.search(says, text) if says else "--alignment-lambda" not in text
