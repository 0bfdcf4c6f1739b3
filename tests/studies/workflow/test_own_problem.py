"""A problem of one's own in Python: what is searched is always that problem."""

from __future__ import annotations

from typing import Any

import own_world
import pytest

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
