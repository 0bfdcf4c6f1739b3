"""Our own studies pass through the suite that others use, and share one floor plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fanfold.studies
from fanfold.plugins import Presentation, StudyPlugin, described, find_study, presentation_of, studies
from fanfold.testing import StudyConformance

OURS = ("ask", "critic", "evolve", "functions", "neuro", "prompts", "rl", "secrets", "workflow")
FLOOR_PLAN = ("__init__", "config", "study", "evaluator", "conclusion", "shown")
REVIEWS = Path(__file__).parents[2] / "examples" / "reviews.jsonl"
ROOMS = Path(fanfold.studies.__path__[0])


class Ours(StudyConformance):
    name = ""

    @property
    def plugin(self) -> StudyPlugin[Any]:  # type: ignore[override]
        return find_study(self.name)


class TestAsk(Ours):
    name, small = "ask", {"source": str(REVIEWS), "prompt": "Translate: {text}", "model": ["simulated/gpt-6-luna"]}


class TestEvolve(Ours):
    name, small = (
        "evolve",
        {
            "file": [str(REVIEWS.with_name("evolve_solver.py"))],
            "evaluator": str(REVIEWS.with_name("evolve_score.py")),
            "writer": "simulated/writer",
            "calls": 8,
        },
    )


class TestFunctions(Ours):
    name, small = "functions", {"trials": 12, "population": 4}


class TestPrompts(Ours):
    name, small = (
        "prompts",
        {"model": ["simulated/gpt-6-luna"], "trials": 6, "population": 4, "train": 6, "held_out": 6},
    )


class TestCritic(Ours):
    name, small = "critic", {"model": "simulated/critic", "feedback": "simulated", "total": 8, "bootstrap_queries": 3}


class TestSecrets(Ours):
    name, small = "secrets", {"models": ["simulated/gpt-talker"], "num_interactions": 4, "messages_per_interaction": 2}


class TestRl(Ours):
    name, small = "rl", {"total_episodes": 40, "fresh_episodes": 16, "results": None}


EPISODES = {"episodes_per_update": 20, "max_episodes_per_workflow": 40, "fresh_episodes": 16, "length": 20}


@pytest.mark.slow
class TestWorkflow(Ours):
    name, small = "workflow", {"mode": "fixed", "total_episodes": 40, **EPISODES}


@pytest.mark.slow
class TestNeuro(Ours):
    name, small = (
        "neuro",
        {
            "trials": 3,
            "population": 2,
            "epochs": 1,
            "rungs": 1,
            "engine": "threads",
            "concurrent": 1,
            "baselines": "no",
        },
    )


def test_every_installed_study_of_ours_is_checked() -> None:
    suites = {kind.name for kind in Ours.__subclasses__()}
    assert suites == {name for name, entry in studies().items() if entry.value.startswith("fanfold.")} == set(OURS)


@pytest.mark.parametrize("study", [name for name in OURS if name not in ("functions", "rl")])
def test_every_study_has_the_same_floor_plan(study: str) -> None:
    """But `functions`, which is one short module, and `rl`, whose rooms are in `fanfold.rl`."""
    assert [name for name in FLOOR_PLAN if not (ROOMS / study / f"{name}.py").is_file()] == []


def test_no_study_looks_at_where_it_runs() -> None:
    looking = [path.name for path in ROOMS.rglob("*.py") if "fanfold.context" in path.read_text()]
    assert looking == []


def test_a_run_of_a_study_that_is_not_installed_is_shown_as_plain_values() -> None:
    assert presentation_of({"target": "gone"}) == presentation_of({}) == Presentation()
    assert presentation_of({"target": "/tmp/my_study.py:study"}) == Presentation()
    assert presentation_of({"target": "prompts"}).candidate is not None


def test_a_value_that_a_study_cannot_read_is_shown_as_it_is() -> None:
    assert described(find_study("prompts").shown.candidate, {"role": "of another version"}) is None
    assert described(None, 1) is None
