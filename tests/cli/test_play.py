"""`fanfold run rl` on an environment in a file, and `fanfold play` of what it trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fanfold.studies.rl import ENVIRONMENT


@pytest.mark.slow
def test_an_environment_in_a_file_is_trained_on_and_played(
    fanfold: Callable[..., Result], as_json: Callable[..., Any], folder: Path
) -> None:
    (folder / "corridor_of_mine.py").write_text(ENVIRONMENT)
    few = ["--total-episodes", "200", "--episodes-per-update", "40", "--fresh-episodes", "8", "--quiet"]
    env = ["--env", "corridor_of_mine.py:make_env", "--env-kwargs", '{"length": 6}']
    fanfold("run", "rl", *env, *few, "--run", "mine", "--results", "agents")
    shown = as_json("play", "agents/mine", "--episodes", "3")
    assert len(shown["episodes"]) == 3 and all(each["failed"] is None for each in shown["episodes"])
    assert as_json("play", "mine", "--episodes", "3") == shown
    text = fanfold("rl", "play", "mine", "--text", "--episodes", "1").output
    assert "step 1: action" in text and "episode 0 (seed 0): return" in text
    again = as_json("play", "mine", "--version", "1", "--seed", "12345")
    assert [each["seed"] for each in again["episodes"]] == [12345]
    assert "Learning curve" in fanfold("show", "mine").output
    assert as_json("rl", "export", "mine", "-o", "model", "--format", "onnx") == ["model/agent.onnx"]
    assert (folder / "model" / "agent.onnx").stat().st_size > 1000
    assert "no pictures" in fanfold("play", "mine", "--video", "pictures", code=2).output


def test_what_cannot_be_played_is_refused(fanfold: Callable[..., Result]) -> None:
    assert "there is no agent in 'nothing'" in fanfold("play", "nothing", code=2).output
    assert "did you mean 'CartPole-v1'" in fanfold("run", "rl", "--env", "CartPol-v1", code=2).output
    assert "must be a table in JSON" in fanfold("run", "rl", "--env-kwargs", "a=1", code=2).output
