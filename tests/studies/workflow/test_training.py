"""Training as a study: the same curve on any number of workers and after any death, and an agent that has learnt."""

from __future__ import annotations

import copy
import csv
import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.rl.collect import Collect
from fanfold.rl.failures import TooManyFailures
from fanfold.rl.heads import Categories
from fanfold.rl.learner import Learner, LearningPlan
from fanfold.rl.policy import Mlp
from fanfold.rl.updates import updates as made_updates
from fanfold.running import Run
from fanfold.stop import MaxTrials
from fanfold.studies.workflow import Ppo, WorkflowConfig, run_options, study
from fanfold.studies.workflow.logs import compliance_of
from fanfold.tensors import about, unpack
from fanfold.types import Blob, Failed, Result, Trial

SMALL = WorkflowConfig(
    mode="ppo",
    total_episodes=900,
    episodes_per_update=200,
    block=50,
    growth=1.0,
    length=20,
    results=None,
    fresh_episodes=800,
)


@pytest.fixture(scope="module")
def reference() -> Run[Any]:
    return study(SMALL).run()


def curve(run: Run[Any], config: WorkflowConfig = SMALL) -> list[tuple[Any, ...]]:
    updates = made_updates(run.results())
    return [(each.number, each.episodes, each.mean_return, dict(each.lags)) for each in updates]


# ---------------------------------------------------------------- the same everywhere


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads:3", "processes:2"])
def test_the_learning_curve_does_not_depend_on_the_workers(executor: str, reference: Run[Any]) -> None:
    run = study(SMALL).run(executor)
    assert run.trace == reference.trace
    assert curve(run) == curve(reference)
    assert run.summary is not None and reference.summary is not None
    assert run.summary.figures["return"] == reference.summary.figures["return"]


@pytest.mark.slow
def test_another_seed_is_another_curve(reference: Run[Any]) -> None:
    assert curve(study(dataclasses.replace(SMALL, seed=1)).run()) != curve(reference)


@pytest.mark.slow
def test_staleness_is_bounded_by_the_blocks_in_flight(reference: Run[Any]) -> None:
    lags = {lag for *_, each in curve(reference) for lag in each}
    assert lags == {0, 1}, "four blocks of 50 under way are one update of 200"
    config = dataclasses.replace(SMALL, synchronous=True)
    assert {lag for *_, each in curve(study(config).run(), config) for lag in each} == {0}


_SCRIPT = """
import json, sys
from fanfold.stop import MaxTrials
from fanfold.studies.workflow import Config, study
study(Config(**json.loads(sys.argv[1]))).run("processes:2", ledger=sys.argv[2], run="killed")
"""


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_identical_learning_curve(tmp_path: Path) -> None:
    """Killed after the first snapshot, while blocks are under way."""
    config = dataclasses.replace(SMALL, total_episodes=6000)
    expected = study(config).run()
    ledger = tmp_path / "ledger.sqlite"
    plain = {name: value for name, value in dataclasses.asdict(config).items() if not isinstance(value, dict)}
    fields = json.dumps(plain)
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT, fields, str(ledger)])
    deadline = time.monotonic() + 50
    while snapshots(ledger) < 1 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed before its end"
    before = told(ledger)
    assert 50 <= before < 6000 / 50
    learner = study(config)
    resumed = learner.run("threads:2", ledger=ledger, run="killed")
    assert resumed.trace == expected.trace
    assert curve(resumed, config) == curve(expected, config)


def snapshots(ledger: Path) -> int:
    return count(ledger, "SELECT count(*) FROM snapshot")


def told(ledger: Path) -> int:
    return count(ledger, "SELECT count(*) FROM trial WHERE told IS NOT NULL")


def count(ledger: Path, sql: str) -> int:
    try:
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as connection:
            return int(connection.execute(sql).fetchone()[0])
    except sqlite3.OperationalError:  # it is not there yet
        return 0


# ---------------------------------------------------------------- workers that misbehave

CORRIDOR = WorkflowConfig(
    mode="ppo",
    env="gym_world:Corridor-v0",
    fresh_episodes=8,
    total_episodes=120,
    episodes_per_update=60,
    block=20,
    results=None,
    n_workers=2,
)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_an_episode_is_replaced_and_its_block_redone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = study(CORRIDOR).run()
    monkeypatch.setenv("FANFOLD_TEST_ONCE", str(tmp_path / "died"))
    monkeypatch.setenv("FANFOLD_TEST_DEED", "die")
    run = study(CORRIDOR).run(run_options(CORRIDOR)["executor"])
    assert (tmp_path / "died").exists()
    assert run.trace == undisturbed.trace


@pytest.mark.slow
def test_a_hung_environment_is_killed_by_its_timeout_and_its_episodes_are_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CORRIDOR, timeout=6.0)
    assert run_options(config) == {"executor": "processes:2"}
    monkeypatch.setenv("FANFOLD_TEST_ONCE", str(tmp_path / "hung"))
    monkeypatch.setenv("FANFOLD_TEST_DEED", "hang")
    run = study(config).run(run_options(config)["executor"])
    results = list(run.results())
    assert (tmp_path / "hung").exists() and all(result.score is not None for result in results)
    assert run.trace == study(CORRIDOR).run().trace
    assert sum(update.episodes for update in made_updates(results)) == 120


# ---------------------------------------------------------------- the learner


def begun(**more: Any) -> Learner:
    learner = Learner(LearningPlan(Mlp(4, Categories((2,))), 400, 100, 50, **more))
    learner.begin(3)
    return learner


def failed(block: Collect, number: int = 0) -> Result[Collect]:
    return Result(Trial(number, block), None, {"0": Failed("error", "no such luck")})


def test_a_block_that_fails_is_asked_for_again_in_halves_until_one_episode_is_to_blame() -> None:
    learner = begun(max_failed=0.01)
    first, second = learner.ask(2)
    learner.tell(failed(first))
    halves = learner.ask(2)
    assert [(each.first_episode, each.episodes, each.attempt) for each in halves] == [(0, 25, 1), (25, 25, 1)]
    assert second.first_episode == 50
    single = [dataclasses.replace(first, episodes=1, first_episode=number) for number in range(10)]
    for block in single[:9]:
        learner.tell(failed(block))
    with pytest.raises(TooManyFailures, match=r"10 of the latest 10 .* most of them with error: no such luck"):
        learner.tell(failed(single[9]))


def test_what_is_asked_does_not_depend_on_how_much_is_asked_for_at_once() -> None:
    one, many = begun(), begun()
    assert [*one.ask(1), *one.ask(4), *one.ask(100)] == list(many.ask(105))
    assert one.ask(1) == [], "nothing more until blocks come back"


@pytest.mark.slow
def test_a_saved_learner_goes_on_as_if_nothing_had_happened(reference: Run[Any]) -> None:
    """Saved and loaded after every tell, between updates too, and with a failed block waiting."""
    straight, restored = copy.deepcopy(study(SMALL).strategy), copy.deepcopy(study(SMALL).strategy)
    assert isinstance(straight, Learner) and isinstance(restored, Learner)
    straight.begin(9)
    restored.begin(9)
    for number, result in enumerate(each for each in reference.results() if each.candidate["learn"]):
        block = straight.ask(1)
        assert encode(block) == encode(restored.ask(1))
        if not block:
            break
        revived = dataclasses.replace(result, trial=Trial(number, block[0]))
        for learner in (straight, restored):
            learner.tell(failed(block[0], number) if number == 2 else revived)
        state = restored.save()
        restored = copy.deepcopy(study(SMALL).strategy)
        assert isinstance(restored, Learner)
        restored.begin(10)
        restored.seed = 9
        restored.load(state)
        assert restored.save() == straight.save()
    assert straight.version >= 4


@pytest.mark.slow
def test_a_held_out_block_that_fails_is_asked_for_again_of_the_same_policy(reference: Run[Any]) -> None:
    learner = copy.deepcopy(study(SMALL).strategy)
    assert isinstance(learner, Learner)
    learner.begin(0)
    for number, result in enumerate(each for each in reference.results() if each.candidate["learn"]):
        learner.tell(dataclasses.replace(result, trial=Trial(number, learner.ask(1)[0])))
    plays = list(learner.ask(100))
    assert len(plays) == 4 * 4 and not any(play.learn for play in plays)
    assert len({(play.weights.digest, play.greedy) for play in plays}) == 4
    for play in plays:
        learner.tell(failed(play))
    learner.load(learner.save())
    halves = list(learner.ask(100))
    assert sorted({(play.first_episode, play.episodes) for play in halves})[:2] == [(0, 25), (25, 25)]
    assert {(play.weights.digest, play.greedy) for play in halves} == {(p.weights.digest, p.greedy) for p in plays}
    assert len(halves) == 2 * len(plays) and all(play.attempt == 1 for play in halves)


@pytest.mark.slow
def test_a_training_that_was_stopped_is_scored_as_far_as_it_came() -> None:
    run = dataclasses.replace(study(SMALL), stop=MaxTrials(6)).run()
    assert run.summary is not None
    assert run.summary.figures["policy"] == "the last that played, sampled"
    assert run.summary.figures["fresh_episodes"] == 800 and run.summary.figures["updates"] == 1


def test_a_recorded_block_is_known_again() -> None:
    import msgspec

    (block,) = begun(context=()).ask(1)
    kept = {block.weights.digest: block.weights.read()}
    revived = msgspec.convert(decode(encode(block), kept.__getitem__), Collect)
    assert revived == block and revived.weights.read() == block.weights.read()
    assert isinstance(revived.weights, Blob)


# ---------------------------------------------------------------- what comes of it


@pytest.mark.slow
def test_cage2_is_learnt_and_the_agent_and_its_log_are_kept(tmp_path: Path) -> None:
    config = WorkflowConfig(mode="ppo", total_episodes=2_000, length=30, results=str(tmp_path))
    run = study(config).run(run="mine")
    assert run.summary is not None
    figures = run.summary.figures
    updates = curve(run, config)
    assert updates[-1][2] > updates[0][2] / 2, "less than half of the first loss"
    low, high = figures["return_interval"]
    assert low < figures["return"] < high and figures["fresh_episodes"] == 4096
    assert figures["return"] > updates[0][2] / 2
    assert figures["episodes"] == 2_000 and figures["episodes_per_cpu_second"] > 0
    assert [section.title for section in run.summary.sections] == [
        "Final policy",
        "Learning curve",
        "An episode",
        "Files",
    ]
    folder = tmp_path / "mine"
    data = (folder / "agent.safetensors").read_bytes()
    assert unpack(data)["policy.0.weight"].shape == (config.game.bits, 64) and about(data)["env"] == "cage2"
    rows = list(csv.DictReader((folder / "training_log.csv").open()))
    assert len(rows) == len(updates) and int(rows[-1]["Total_Episodes_Sampled"]) == 2_000
    assert [float(row["Env_Reward"]) for row in rows] == pytest.approx([each[2] for each in updates], rel=1e-4)
    assert json.loads((folder / "experiment_config.json").read_text())["length"] == 30
    assert sorted(each.name for each in folder.iterdir()) == [
        "agent.json",
        "agent.safetensors",
        "events.out.tfevents.1.fanfold",
        "experiment_config.json",
        "training_log.csv",
    ]


@pytest.mark.slow
def test_a_workflow_is_learnt_to_be_kept_to() -> None:
    order = "user>enterprise>op_server>op_host>defender"
    config = WorkflowConfig(mode="ppo", total_episodes=6_000, length=30, workflow=order, alignment="rate", results=None)
    run = study(config).run()
    assert run.summary is not None
    figures = run.summary.figures
    low, high = figures["compliance_interval"]
    assert low <= figures["compliance"] <= high
    first, *_, last = made_updates(run.results())
    assert compliance_of(first) is not None and compliance_of(last) is not None
    bonuses = [sum(block["bonus"] for block in each.blocks) / each.episodes for each in (first, last)]
    assert bonuses[1] > bonuses[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "episodes", "correction", "bar"),
    [
        ("gym_world:Corridor-v0", 1_500, "ratio", 18),
        pytest.param("CartPole-v1", 600, "ratio", 90, marks=pytest.mark.slow),
        pytest.param("CartPole-v1", 600, "vtrace", 90, marks=pytest.mark.slow),
    ],
)
def test_other_environments_are_learnt(env: str, episodes: int, correction: Any, bar: float) -> None:
    config = WorkflowConfig(
        mode="ppo",
        env=env,
        total_episodes=episodes,
        episodes_per_update=50,
        block=25,
        in_flight=2,
        fresh_episodes=8,
        results=None,
        ppo=Ppo(correction=correction, minibatch=256),
    )
    updates = curve(study(config).run(), config)
    assert updates[0][2] < 30
    assert np.mean([each[2] for each in updates[-3:]]) > bar


# ---------------------------------------------------------------- the options


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"red_agent": "B_linAgent"}, "did you mean 'B_lineAgent'"),
        ({"total_episodes": 0}, "total_episodes must be at least 1"),
        ({"workflow": "user>enterprise"}, "user"),
        ({"workflow": "balanced", "env": "CartPole-v1", "mode": "ppo"}, "is for CAGE-2"),
        ({"env": "CartPole-v1"}, "give space.options.*or train one policy with mode='ppo'"),
        ({"workflow": "balanced"}, "mode='fixed' or mode='ppo'"),
        ({"workflow": "balanced", "mode": "fixed", "exhaustive": True}, "a choice among all"),
        ({"mode": "ppo", "exhaustive": True}, "leave one of them out"),
        ({"compliance_threshold": 1.0}, "between 0 and 1"),
        ({"patience_updates": 0}, "patience_updates must be at least 1"),
        ({"ppo": Ppo(correction="vtrace")}, "only mode='ppo' has"),
    ],
)
def test_options_that_cannot_work_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkflowConfig(**fields)


@pytest.mark.parametrize("name", ["B_lineAgent", "b_line"])
def test_red_agents_have_their_documented_names(name: str) -> None:
    assert WorkflowConfig(red_agent=name).reds == ("b_line",)
    assert (
        WorkflowConfig(red_agent="RedMeanderAgent").reds
        == WorkflowConfig(red_agent="MeanderAgent").reds
        == ("meander",)
    )


def test_workers_decide_where_blocks_are_played() -> None:
    assert run_options(WorkflowConfig()) == {"executor": "inline"}
    assert run_options(WorkflowConfig(n_workers=3)) == {"executor": "processes:3"}
    assert WorkflowConfig(mode="ppo", n_workers=2).window == WorkflowConfig(mode="ppo", n_workers=4).window == 4
    assert (
        WorkflowConfig().window == WorkflowConfig(n_workers=2).window == 2 and WorkflowConfig(n_workers=5).window == 5
    )
    assert os.environ.get("OPENBLAS_NUM_THREADS")
