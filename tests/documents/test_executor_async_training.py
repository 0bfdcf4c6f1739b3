"""Everything `executor_async_training.md` shows runs, with only program names changed and fewer episodes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shlex
import subprocess
import sys
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import DOCUMENTS, Block, blocks_of, filled, run
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.ledger import Ledger
from fanfold.legacy import executor_async_train_workflow_rl as legacy
from fanfold.legacy.executor_async_train_workflow_rl import Episode, collect_single_episode, command, initial_policy
from fanfold.rl.collect import Collect
from fanfold.studies.workflow import Config
from fanfold.studies.workflow.collect import Cage2Collector, context_of
from fanfold.studies.workflow.orders import UNITS, show
from fanfold.types import Blob, Case

ROOT = Path(__file__).parents[2]
DOCUMENT = DOCUMENTS / "executor_async_training.md"
#: The document's programs and ours; docs/migration-workflow.md has the same table.
PROGRAMS = {
    "python workflow_rl/executor_async_train_workflow_rl.py": f"python -m {legacy.__name__}",
    "bash run_executor_async_training.sh": f"bash {ROOT}/examples/run_executor_async_training.sh",
}
#: Fewer episodes than the document's; every other number is left as it stands.
FEWER = {"--total-episodes 100000": "--total-episodes 600"}
#: What the tests add: less of what comes after training.
LESS = ["--fresh-episodes", "32", "--run", "documented"]

SHELL = blocks_of(DOCUMENT, "bash")
TRAINING = [block for block in SHELL if "executor_async_train" in block.text or "run_executor" in block.text]


def words_of(block: Block) -> list[str]:
    """The command of a block with the program that takes the place of the document's; comments and `cd` left out."""
    text = block.text.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith(("#", "cd "))]
    (line,) = (" ".join(line.split()) for line in lines if line.strip())
    for theirs, ours in (*PROGRAMS.items(), *FEWER.items()):
        line = line.replace(theirs, ours)
    return shlex.split(line)


def environment() -> dict[str, str]:
    """The programs of this installation first; and what the shell script reads."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "TOTAL_EPISODES": "600"}


def test_every_command_of_the_document_is_one_of_ours_or_of_its_repository() -> None:
    others = [block.text.strip() for block in SHELL if block not in TRAINING]
    assert others == ["git log --oneline -15"]
    assert len(TRAINING) == 4


@pytest.mark.slow
@pytest.mark.parametrize("block", TRAINING, ids=lambda block: f"line {block.line}")
@pytest.mark.timeout(300)
def test_the_documents_commands_train(block: Block, tmp_path: Path) -> None:
    words = words_of(block)
    done = subprocess.run([*words, *LESS], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    with Ledger(tmp_path / "fanfold.db", readonly=True) as ledger:
        info = ledger.run("documented")
        results = list(ledger.results(info.id))
    fields = info.meta["fields"]
    assert fields["n_workers"] == 100 and fields["total_episodes"] == 600 and fields["episodes_per_update"] == 100
    if "--compliance-threshold" in words or words[0] == "bash":
        assert fields["compliance_threshold"] == 0.95
        assert fields["alignment_lambda"] == 30.0
        assert fields["max_episodes_per_workflow"] == 500
        assert fields["red_agent"] == "B_lineAgent"
    assert results and all(result.score is not None for result in results)
    folder = tmp_path / "results" / "workflow" / "documented"
    assert list(folder.glob("*.csv")) and (folder / "experiment_config.json").exists()
    agent = next(folder.rglob("*.safetensors"))
    episode = collect_single_episode(agent.read_bytes(), 3, show(results[0].candidate["workflow"]))
    assert episode.length == 100, "an agent that was trained is a policy that plays"


@pytest.mark.slow
def test_the_flow_of_episodes_is_the_documents() -> None:
    (block,) = blocks_of(DOCUMENT, "python")
    policy, episodes = initial_policy(), itertools.count()
    elided = {
        "executor.submit(collect_single_episode, ...)": "executor.submit(collect_single_episode, policy, next(n))"
    }
    names: dict[str, Any] = {"as_completed": as_completed, "collect_single_episode": collect_single_episode}
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as executor:
        left = run(filled(block.text, elided), {**names, "executor": executor, "policy": policy, "n": episodes})
    futures: list[Future[Episode]] = left["futures"]
    assert len(futures) == 100
    played = [future.result() for future in futures]
    assert [episode.number for episode in played] == list(range(100))
    assert left["episode"].number in range(100)
    here = collect_single_episode(policy, 17)
    assert played[17].total_reward == here.total_reward
    assert np.array_equal(played[17].observations, here.observations)
    assert len({episode.actions.tobytes() for episode in played}) == 100, "every episode has its own luck"


# -- what stands behind it ---------------------------------------------------------------------------------------------


def test_an_episode_is_the_one_that_the_study_plays() -> None:
    policy = initial_policy(show(UNITS), hidden=16)
    episode = collect_single_episode(policy, 5, show(UNITS), "MeanderAgent", seed=9)
    collector = Cage2Collector(game=Config(mode="ppo", red_agent="MeanderAgent").game, workflow=UNITS)
    outcome = collector(Collect(0, Blob.of(policy), 5, 1, context_of(UNITS)), Case("0", None, 9))
    assert outcome.data["returns"] == pytest.approx([episode.total_reward])
    assert outcome.data["fixes"] == [episode.fixes]
    assert outcome.data["kept"][0] == pytest.approx((episode.compliance or 0) * episode.fixes)
    assert episode.observations.shape == (100, 52) and episode.rewards.shape == episode.actions.shape == (100,)
    assert not episode.observations[0].any(), "nothing is seen before the first step"


def test_a_policy_for_another_workflow_or_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="it should have 77 inputs"):
        collect_single_episode(initial_policy(), 0, show(UNITS))
    with pytest.raises(ConfigError, match="safetensors"):
        collect_single_episode(b"no policy at all")
    with pytest.raises(ConfigError, match="did you mean 'B_lineAgent'"):
        collect_single_episode(initial_policy(), red_agent="BlineAgent")


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 64))
def test_what_is_searched_does_not_depend_on_the_cores_of_the_machine(workers: int, cores: int) -> None:
    def study_of(cores: int) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(legacy, "usable_cores", lambda: cores)
            words = command(["--n-workers", str(workers), "--seed", "3"])
        place = words.index("--executor")
        used = words[place + 1]
        assert used == (f"processes:{min(workers, cores)}" if min(workers, cores) > 1 else "inline")
        return words[:place] + words[place + 2 :]

    assert study_of(cores) == study_of(1)
    assert "--in-flight" in study_of(1)


def test_what_is_said_is_left_as_it_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--n-workers", "4", "--in-flight", "1", "--executor", "ray:4", "--red-agent", "MeanderAgent"]
    words = command(given)
    assert words[:2] == ["run", "workflow"]
    assert {(words[i], words[i + 1]) for i in range(2, len(words), 2)} == {
        (given[i], given[i + 1]) for i in range(0, len(given), 2)
    }
    assert command(["--total-episodes", "5"]) == ["run", "workflow", "--total-episodes", "5"]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n-workers", "many"], "--n-workers must be a whole number"),
        (["--n-workers", "0"], "n_workers must be at least 1"),
        (["--total-episode", "5"], "total-episodes"),
        (["--red-agent", "B_line"], "did you mean"),
        (["--compliance-threshold", "95"], "between 0 and 1"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert legacy.main(words) == 2
    err = capsys.readouterr().err
    assert message in err.replace("\n", " "), err
