"""Workflows for an environment of one's own: any options, any environment, and a function that says what was kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import own_world
import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.rl import Agent
from fanfold.rl.collect import Collect
from fanfold.running import Run
from fanfold.strategies import Sweep
from fanfold.studies.workflow import (
    Assignments,
    Orders,
    OwnProblem,
    SpaceSettings,
    WorkflowConfig,
    run_options,
    study,
)
from fanfold.studies.workflow.own import EpisodesFailed, KeptCollector
from fanfold.study import Study
from fanfold.tensors import pack
from fanfold.types import Blob, Failed, Ok

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


@pytest.mark.slow
def test_the_policy_of_the_best_workflow_is_an_agent(run: Run[Any]) -> None:
    assert run.summary is not None
    for agent in (Agent.load(run), Agent.load(Path(run.summary.figures["folder"]))):
        assert agent.card["workflow"] == "press>oven>belt" and agent.act(np.array([0, 1, 1], np.int8)) == 1
        assert [episode.total for episode in agent.play(episodes=2, greedy=True)] == [-4.0, -4.0]
    with pytest.raises(ConfigError, match="is of many trainings, and keeps one version"):
        Agent.load(run, version=2)


def test_a_run_without_a_policy_has_no_agent() -> None:
    done = Study(Sweep([1, 2]), lambda candidate, case: float(candidate)).run(run="numbers")
    with pytest.raises(ConfigError, match=r"'numbers' has no agent. A run of `rl` has one, and a search for workflows"):
        Agent.load(done)


def test_what_the_search_chose_and_what_the_finale_made_of_it_are_told_apart(run: Run[Any]) -> None:
    assert run.summary is not None
    figures = run.summary.figures
    assert 0 < figures["finale_episodes"] <= 0.2 * 1400 + 20
    assert set(figures["chosen"]) >= {"workflow", "trial", "return", "compliance"}
    last = list(run.results())[-1]
    assert last.trial.origin["finale"] is True and figures["chosen"]["trial"] != last.number


def test_the_end_of_a_search_shows_the_workflow_that_it_chose(tmp_path: Path) -> None:
    ledger = ["--ledger", str(tmp_path / "runs.db")]
    flags = ["--env", "own_world:make_env", "--kept", "own_world:kept_order", "--space.options", "press,oven,belt"]
    flags += ["--total-episodes", "200", "--max-episodes-per-workflow", "40", "--fresh-episodes", "8"]
    ending = CliRunner().invoke(cli, ["run", "workflow", *flags, "--run", "own", "--results", "none", *ledger]).output
    shown = CliRunner().invoke(cli, ["show", "own", *ledger]).output
    assert "Best workflow" in ending and "visit 0" not in ending, "a training of another may have a higher return"
    assert "Best workflow" in shown and "Best: " not in shown


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
    config = dataclasses.replace(OWN, kept="own_world:broken", total_episodes=200, n_workers=2)  # not tried here first
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


def raising(workflow: Any, episode: Any) -> float:
    raise KeyError("press")


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (raising, r"`kept` raised KeyError: 'press' \(test_own.py, line \d+\)"),
        (lambda workflow, episode: None, "`kept` said None: give a share"),
        (lambda workflow, episode: "y" * len(episode.actions), "`kept` said 'yyy.*: give a share"),
        (lambda workflow, episode: [0.5] * len(episode.actions), r"`kept` said \[0.5, .*: give a share"),
        (lambda workflow, episode: [True], r"of 1 steps of an episode of \d+: give a share"),
    ],
)
def test_a_function_that_judges_wrongly_is_refused_before_the_first_training(kept: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        study(OWN, OwnProblem(Orders(("press", "oven")), "own_world:make_env", kept))


@pytest.mark.parametrize("share", [0.25, np.float32(0.25), np.array(0.25)])
def test_a_share_may_be_any_number_of_numpy(share: Any) -> None:
    config = dataclasses.replace(OWN, total_episodes=100, max_episodes_per_workflow=100, finale=0.0)
    done = study(config, OwnProblem(Orders(("a", "b")), "own_world:make_env", lambda workflow, episode: share)).run()
    assert done.summary is not None and done.summary.figures["compliance"] == 0.25


class Alone(own_world.Workshop):
    """Of which there can be one at a time."""

    there = 0

    def __init__(self) -> None:
        if Alone.there:
            raise OSError("address already in use")
        Alone.there += 1
        self.closed = False

    def close(self) -> None:
        Alone.there -= not self.closed
        self.closed = True


def make_alone() -> Any:
    return gymnasium.wrappers.TimeLimit(Alone(), 8)


def test_workflows_are_learnt_where_there_can_be_one_environment_at_a_time() -> None:
    config = dataclasses.replace(OWN, total_episodes=200)
    done = study(config, OwnProblem(OWN.space.space, make_alone, own_world.kept_order)).run()
    assert done.summary is not None and not done.failures
    assert Alone.there == 0


class Plant(gymnasium.Env[Any, Any]):
    """Observes parts of several kinds, and takes numbers in a range of their own."""

    observation_space = gymnasium.spaces.Dict(
        {
            "shift": gymnasium.spaces.Discrete(3, start=1),
            "gauges": gymnasium.spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
            "switches": gymnasium.spaces.Tuple(
                [gymnasium.spaces.MultiBinary(2), gymnasium.spaces.MultiDiscrete([3, 4], start=[5, 0])]
            ),
        }
    )
    action_space = gymnasium.spaces.Box(np.array([10, 100], np.float32), np.array([20, 200], np.float32))

    def __init__(self) -> None:
        self.log: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        return {
            "shift": 1 + self.age % 3,
            "gauges": np.arange(4.0).reshape(2, 2) + self.age,
            "switches": (np.array([1, self.age % 2], np.int8), np.array([5 + self.age % 3, self.age % 4])),
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self.age += 1
        return self._seen(), float(action.sum()), self.age == 5, False, {}


def test_an_episode_is_judged_as_the_environment_saw_it() -> None:
    judged: list[Any] = []

    def kept(workflow: Any, episode: Any) -> bool:
        judged.append(episode)
        return True

    study(OWN, OwnProblem(Orders(("a", "b")), Plant, kept))
    episode, plant = judged[0], Plant()
    for plant.age, seen in enumerate(episode.observations):
        wanted = plant._seen()
        assert seen["shift"] == wanted["shift"] and (seen["gauges"] == wanted["gauges"]).all()
        assert all((mine == its).all() for mine, its in zip(seen["switches"], wanted["switches"], strict=True))
    assert len(episode.observations) == 5 and all(action in Plant.action_space for action in episode.actions)
    assert episode.actions.sum(axis=1) == pytest.approx(episode.rewards)


def test_choices_that_begin_elsewhere_and_masks_are_as_the_environment_has_them() -> None:
    class Shifted(own_world.Workshop):
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
            return super().reset(**more)[0], {"action_mask": [1, 1, 1]}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, reward, *over, _ = super().step(action - 5)
            return seen, reward, *over, {"action_mask": [1, 1, 1]}  # type: ignore[return-value]

    judged: list[Any] = []
    study(OWN, OwnProblem(Orders(("a", "b")), Shifted, lambda workflow, episode: judged.append(episode) or True))
    assert set(judged[0].actions.tolist()) <= {5, 6, 7} and judged[0].observations.shape == (len(judged[0].actions), 3)


def test_what_was_inferred_about_an_environment_is_said() -> None:
    class Filmed(own_world.Workshop):
        observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)

        def _seen(self) -> Any:
            return np.full((16, 16, 3), self.steps, np.uint8)

        def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
            super().reset(**more)
            return self._seen(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self._seen(), *super().step(action)[1:]  # type: ignore[return-value]

    pictures, limit = study(OWN, OwnProblem(Orders(("a", "b")), Filmed, lambda workflow, episode: 1.0)).remarks
    assert "observes pictures, and they are learnt as plain numbers" in pictures
    assert "an episode that does not end by itself is cut off after 10,000 steps" in limit


class Fragile(own_world.Workshop):
    """Breaks down in some episodes, and whenever the belt is served first."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < 0.05 or (self.waiting.all() and int(action) == 2):
            raise RuntimeError("the belt broke")
        return super().step(action)


def rarely(workflow: Any, episode: Any) -> list[bool | None]:
    marks = own_world.kept_order(workflow, episode)
    return [*marks, 1 / (len(marks) - 3)][:-1]  # type: ignore[list-item]


def test_a_function_that_cannot_judge_some_episodes_is_named_in_the_failure() -> None:
    config = dataclasses.replace(OWN, total_episodes=200, finale=0.0)
    done = study(config, OwnProblem(OWN.space.space, own_world.make_env, rarely)).run()
    (outcome,) = next(iter(done.results())).outcomes.values()
    assert isinstance(outcome, Failed)
    assert "`kept` raised ZeroDivisionError: division by zero (test_own.py, line" in outcome.message


def test_episodes_that_fail_are_counted_and_said_and_cost_no_training() -> None:
    config = dataclasses.replace(OWN, total_episodes=200, kept=None, env="cage2", space=SpaceSettings())
    belt_first = OwnProblem(Orders(("press", "oven", "belt")), Fragile, lambda workflow, episode: 0.5)
    done = study(config, belt_first).run()
    assert done.summary is not None and not done.failures
    figures = done.summary.figures
    assert figures["failed_episodes"] > 10 and figures["failure"] == "RuntimeError: the belt broke"
    assert "episodes failed and were left out, most with RuntimeError" in done.summary.sections[0].text


def test_a_policy_that_the_environment_does_not_survive_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    played = KeptCollector.watch

    def watch(self: Any, candidate: Any, *others: Any) -> Any:
        if candidate.greedy:
            raise EpisodesFailed("all 32 episodes failed")
        return played(self, candidate, *others)

    monkeypatch.setattr(KeptCollector, "watch", watch)
    config = dataclasses.replace(OWN, total_episodes=200, max_episodes_per_workflow=100)
    results = list(study(config).run().results())
    outcomes = [outcome for result in results for outcome in result.outcomes.values()]
    assert outcomes and all(isinstance(outcome, Ok) and not outcome.data["greedy"] for outcome in outcomes)


def test_a_look_without_an_episode_says_why() -> None:
    class Broken(own_world.Workshop):
        def step(self, action: Any) -> Any:
            raise RuntimeError("no licence")

    config = dataclasses.replace(OWN, total_episodes=100, kept=None, env="cage2", space=SpaceSettings())
    collector = config.collector_for(OwnProblem(Orders(("a", "b")), Broken, lambda workflow, episode: 1.0))
    assert isinstance(collector, KeptCollector)
    weights = collector.network(8).initial(0)
    block = Collect(0, Blob.of(pack(weights)), 0, 4)
    with pytest.raises(EpisodesFailed, match="all 4 episodes failed, with RuntimeError: no licence"):
        collector.watch(block, weights, range(4), 0, 0.9)


def test_an_assignment_without_slots_is_refused_by_them() -> None:
    with pytest.raises(ConfigError, match="an assignment needs slots"):
        Assignments(("a", "b"))
