"""`fanfold run rl` and `train`: the same everywhere and after any death; faults cost what they must, and are said."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import rl_world

from fanfold.errors import ConfigError
from fanfold.ledger import Ledger, RunView
from fanfold.metrics import metrics
from fanfold.plugins import find_study
from fanfold.rl import Agent, train
from fanfold.rl.failures import TooManyFailures
from fanfold.rl.training import Trained
from fanfold.rl.updates import _covered

SMALL: dict[str, Any] = {"total_episodes": 160, "episodes_per_update": 40, "block": 10, "fresh_episodes": 16}


@pytest.fixture(scope="module")
def walk() -> Trained:
    return train("rl_world:Once", **SMALL)


def same(one: Trained, other: Trained) -> bool:
    figures = [each.run.summary.figures for each in (one, other) if each.run.summary is not None]
    return one.run.trace == other.run.trace and figures[0]["return"] == figures[1]["return"]


def test_an_environment_of_ones_own_is_learnt(walk: Trained) -> None:
    assert walk.run.summary is not None
    assert walk.curve[-1][1] > walk.curve[0][1] and walk.curve[-1][0] == 160
    assert walk.run.summary.figures["return"] > 8
    assert walk.agent.act(np.array([0.0, 0.0], np.float32)) == 1
    assert [each.title for each in walk.run.summary.sections] == ["Final policy", "Learning curve"]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads:2", "processes:2"])
def test_results_are_the_same_on_every_executor(executor: str, walk: Trained) -> None:
    assert same(walk, train("rl_world:Once", executor=executor, **SMALL))


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["die", "exit", "hang"])
def test_a_worker_that_is_lost_is_replaced_and_changes_nothing(
    deed: str, walk: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_WORLD_ONCE", str(tmp_path / "once"))
    monkeypatch.setenv("RL_WORLD_DEED", deed)
    more = {"timeout": 4.0} if deed == "hang" else {}
    assert same(walk, train("rl_world:Once", executor="processes:2", **SMALL, **more))
    assert (tmp_path / "once").exists()


@pytest.mark.slow
def test_an_episode_that_always_ends_its_process_costs_that_episode() -> None:
    few = {"total_episodes": 24, "episodes_per_update": 12, "block": 2, "fresh_episodes": 1, "max_failed_share": 0.5}
    found = train("rl_world:Deadly", env_kwargs={"share": 0.05}, executor="processes:2", **few)  # type: ignore[arg-type]
    assert found.run.summary is not None
    figures = found.run.summary.figures
    assert 1 <= figures["failed_episodes"] <= 4 and figures["episodes"] < 24
    section = next(each for each in found.run.summary.sections if each.title == "Failed episodes")
    assert section.rows[0][0] == "worker-died"


@pytest.mark.slow
def test_a_fresh_episode_that_ends_its_process_costs_that_episode(tmp_path: Path) -> None:
    few = {"total_episodes": 8, "episodes_per_update": 8, "block": 4, "fresh_episodes": 14, "max_failed_share": 1.0}
    where = {"executor": "processes:2", "ledger": tmp_path / "runs.db", "run": "deadly", "max_failures": 8}
    found = train("rl_world:Deadly", env_kwargs={"share": 0.15}, **few, **where)  # type: ignore[arg-type]
    assert found.run.summary is not None
    figures = found.run.summary.figures
    assert 8 <= figures["fresh_episodes"] < 14 and figures["return"] > 0
    section = found.run.summary.sections[0]
    assert f"{figures['fresh_episodes']} fresh episodes ({14 - figures['fresh_episodes']} more failed)" in section.text
    with RunView.open(tmp_path / "runs.db", "deadly") as view:
        assert {each.key: each.value for each in metrics(view)}["held_out"] is None
    again = train("rl_world:Deadly", env_kwargs={"share": 0.15}, **few, **where)  # type: ignore[arg-type]
    assert again.run.summary is not None and again.run.progress.evaluations == found.run.progress.evaluations
    assert again.run.summary.figures["return"] == figures["return"]


def test_where_no_fresh_episode_could_be_played_no_score_is_made_up(tmp_path: Path) -> None:
    few = {"total_episodes": 16, "episodes_per_update": 16, "fresh_episodes": 2, "max_failed_share": 1.0}
    where = {"ledger": tmp_path / "runs.db", "run": "broken", "seed": 3}
    found = train("rl_world:Raises", env_kwargs={"share": 0.8}, **few, **where)  # type: ignore[arg-type]
    assert found.run.summary is not None and found.run.summary.figures["return"] is None
    assert found.run.summary.sections[0].brief == "None of the 2 fresh episodes could be played."
    with RunView.open(tmp_path / "runs.db", "broken") as view:
        assert {each.key: each.value for each in metrics(view)}["held_out"] is None


@pytest.mark.slow
def test_episodes_that_raise_are_counted_and_shown_with_how_to_see_one_again() -> None:
    found = train("rl_world:Raises", env_kwargs={"share": 0.05}, **SMALL)
    assert found.run.summary is not None
    figures = found.run.summary.figures
    assert 2 <= figures["failed_episodes"] <= 25 and figures["return"] > 8
    section = next(each for each in found.run.summary.sections if each.title == "Failed episodes")
    kind, count, _, steps, message, again = section.rows[0]
    assert kind == "ZeroDivisionError" and count == figures["failed_episodes"] and "broke down" in message
    version, seed = int(again.split()[4]), int(again.split()[6])
    agent = Agent.load(found.run, version=version)
    (episode,) = agent.play(episodes=1, seed=seed)
    assert episode.failed is not None and (episode.failed.step, episode.failed.message) == (steps, message)
    with pytest.raises(ConfigError, match="has no version 99"):
        Agent.load(found.run, version=99)


@pytest.mark.slow
def test_too_many_failures_end_the_run_with_the_commonest_error() -> None:
    with pytest.raises(
        TooManyFailures, match=r"of the latest \d+ episodes failed, most of them with ZeroDivisionError"
    ):
        train("rl_world:Raises", env_kwargs={"share": 0.4}, max_failed_share=0.1, **SMALL)
    kept = train("rl_world:Raises", env_kwargs={"share": 0.4}, **SMALL)
    assert kept.run.summary is not None and kept.run.summary.figures["failed_episodes"] > 40


@pytest.mark.slow
def test_a_run_that_ended_by_its_failures_continues_with_a_higher_limit(tmp_path: Path) -> None:
    more: dict[str, Any] = {"env_kwargs": {"share": 0.4}, "ledger": tmp_path / "runs.db", **SMALL}
    with pytest.raises(TooManyFailures, match=r"max_failed_share=0\.1, and with a higher one the run continues"):
        train("rl_world:Raises", run="it", max_failed_share=0.1, **more)
    lost = train("rl_world:Raises", run="it", **more)
    assert lost.run.summary is not None and lost.run.summary.figures["failed_episodes"] > 40
    assert same(lost, train("rl_world:Raises", run="whole", **more))


@pytest.mark.slow
def test_the_example_of_init_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starter = find_study("rl").starter
    assert starter is not None
    for name, text in starter.files.items():
        (tmp_path / name).write_text(text)
    found = train(**starter.settings)
    assert found.run.summary is not None and found.run.summary.figures["return"] > 0.25  # 0.3 is the best
    assert "curve" not in repr(found)


def test_a_run_of_steps_whose_first_episodes_fail_says_why() -> None:
    with pytest.raises(
        TooManyFailures, match="10 of the latest 10 episodes failed, most of them with ZeroDivisionError"
    ):
        train("rl_world:Raises", env_kwargs={"share": 1.0}, total_steps=300)


_SCRIPT = """
import json, sys
from fanfold.rl import train
train("rl_world:Walk", executor="processes:2", ledger=sys.argv[2], run="killed", **json.loads(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("further", [False, True])
def test_a_killed_run_resumes_to_the_identical_result(further: bool, walk: Trained, tmp_path: Path) -> None:
    settings = {**SMALL, "total_episodes": 1600}
    if further:
        walk.agent.save(tmp_path / "agent")
        settings["start"] = str(tmp_path / "agent")
    expected, ledger = train("rl_world:Walk", **settings), tmp_path / "ledger.db"
    command = [sys.executable, "-c", _SCRIPT, json.dumps(settings), str(ledger)]
    process = subprocess.Popen(command, cwd=Path(__file__).parent)
    deadline = time.monotonic() + 50
    while told(ledger) < 20 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed before its end"
    before = told(ledger)
    assert 20 <= before < 160
    assert same(expected, train("rl_world:Walk", executor="threads:2", ledger=ledger, run="killed", **settings))


class Shared(gymnasium.Env[Any, int]):
    """Its spaces belong to the class, as in many examples."""

    observation_space, action_space = gymnasium.spaces.MultiBinary(2), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return np.ones(2, np.int8), float(action), self.age == 5, False, {}


def test_a_run_resumes_although_the_spaces_of_a_class_were_sampled_from(tmp_path: Path) -> None:
    first = train(Shared, ledger=tmp_path / "runs.db", run="shared", **SMALL)
    for space in (Shared.observation_space, Shared.action_space):
        space._np_random = None  # as in another process
    assert same(first, train(Shared, ledger=tmp_path / "runs.db", run="shared", **SMALL))


def told(path: Path) -> int:
    if not path.exists():
        return 0
    try:
        with Ledger(path, readonly=True) as ledger:
            return sum(run.trials for run in ledger.runs())
    except Exception:  # it is being made
        return 0


def test_another_environment_under_the_same_name_is_not_resumed(tmp_path: Path) -> None:
    small = {**SMALL, "total_episodes": 40}
    train(lambda: rl_world.Walk(3), ledger=tmp_path / "runs.db", run="mine", **small)
    with pytest.raises(Exception, match="env"):
        train(lambda: rl_world.Walk(4), ledger=tmp_path / "runs.db", run="mine", **small)


def test_the_log_has_the_times_of_every_update(tmp_path: Path) -> None:
    found = train("rl_world:Walk", results=str(tmp_path), run="timed", **SMALL)
    rows = list(csv.DictReader((tmp_path / "timed" / "training_log.csv").open()))
    assert [int(row["Update"]) for row in rows] == [1, 2, 3, 4]
    assert int(rows[-1]["Total_Episodes"]) == 160 and int(rows[-1]["Total_Steps"]) == 1600
    spans = {trial: seconds for trial, _, _, seconds in found.run.view.times()}
    assert all(float(row["Collection_Time"]) > 0 and float(row["Update_Time"]) > 0 for row in rows)
    # Inline, blocks are played one after another: what they took in all is what the updates' collection took.
    learnt = [each.number for each in found.run.results() if each.candidate["learn"]]
    total = sum(float(row["Collection_Time"]) for row in rows)
    assert total == pytest.approx(sum(spans[trial] for trial in learnt), rel=0.05)
    assert sorted(each.name for each in (tmp_path / "timed").iterdir()) == [
        "agent.json",
        "agent.safetensors",
        "events.out.tfevents.1.fanfold",
        "experiment_config.json",
        "training_log.csv",
    ]


def test_pages_show_blocks_their_failures_and_runs_side_by_side(tmp_path: Path) -> None:
    ledger, shown = tmp_path / "runs.db", find_study("rl").shown
    flaky = {**SMALL, "total_episodes": 40, "env_kwargs": {"share": 0.3}}
    train("rl_world:Raises", ledger=ledger, run="whole", **flaky)
    with pytest.raises(TooManyFailures):
        train("rl_world:Raises", ledger=ledger, run="lost", max_failed_share=0.01, **flaky)
    assert shown.evaluation and shown.overview and shown.compare and shown.brief
    with RunView.open(ledger, "whole") as whole, RunView.open(ledger, "lost") as lost:
        row = next(whole.evaluations(failed=False))
        titles = [each.title for each in shown.evaluation(whole, row)]
        assert titles == ["Episodes", "Returns, from the worst episode to the best", "Failed episodes"]
        assert shown.brief(whole.trial(0).candidate) == "episodes 0 to 9 by version 0, to learn from"
        (live,) = shown.overview(lost)
        assert live.title == "Learning so far" and "episodes failed" in live.text and live.curves[0].points
        assert list(shown.overview(whole)) == []
        (side,) = shown.compare([whole, lost])
        assert [line[0] for line in side.rows] == ["whole"]


def test_seconds_in_which_several_blocks_were_played_count_once() -> None:
    assert _covered([(5.0, 1.0), (0.0, 2.0), (1.0, 2.0), (1.5, 0.1)]) == 4.0


def test_observations_that_do_not_fit_their_space_are_refused_before_the_first_block(tmp_path: Path) -> None:
    class Wider(rl_world.Walk):
        def _seen(self) -> Any:
            return np.zeros(3, np.float32)

    with pytest.raises(ConfigError, match=r"observed 3 numbers where its observation_space says 2"):
        train(Wider, ledger=tmp_path / "runs.db", **SMALL)
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"total_epsiodes": 3}, "did you mean 'total_episodes'"),
        ({"max_failed_share": 2.0}, "max_failed_share must be from 0 to 1"),
        ({"n_workers": 0}, "n_workers must be at least 1"),
        ({"learning_rate": 0.1}, r"no argument 'learning_rate': write ppo=\{'learning_rate': ...\}"),
        ({"policy": "MlpPolicy"}, "'MlpPolicy' is not a network: give the class of a torch.nn.Module, or name it"),
        ({"policy": 3}, "policy=3 is not a network"),
        (
            {"results": f"{__file__}/agents"},
            r"results='.*' cannot be written: .*test_rl_study.py is a file",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train("rl_world:Walk", **settings)


def test_a_folder_of_somebody_else_is_refused_before_anything_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).exists() and (mode, path) != (3, tmp_path))
    with pytest.raises(ConfigError, match=r"cannot be written: .* is not yours to write; name another folder"):
        train("rl_world:Walk", results=tmp_path / "a" / "b", ledger=tmp_path / "runs.db", **SMALL)
    assert not list(tmp_path.iterdir())


def test_a_tracker_sees_returns_and_lengths_as_they_come(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    few = {**SMALL, "total_episodes": 40}
    found = train("rl_world:Walk", track=[f"tensorboard:{tmp_path}"], run="seen", **few)
    shown = accumulator.EventAccumulator(str(tmp_path / "seen"))
    shown.Reload()
    returns = {event.step: event.value for event in shown.Scalars("scores/return")}
    told = {number: each.score for number, each in enumerate(found.run.results(), 1)}
    assert returns == pytest.approx(told)
    assert {event.value for event in shown.Scalars("scores/length")} == {10.0}
