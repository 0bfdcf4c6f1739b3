"""Every study says what its runs came to: a headline, its candidates and its cells, read from a ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanfold.ledger import RunView
from fanfold.plugins import find_study

RUNS = {
    "secrets": {"models": ("simulated/talker", "simulated/keeper"), "num_interactions": 4, "results": None},
    "workflow": {"total_episodes": 100, "max_episodes_per_workflow": 100, "fresh_episodes": 16, "results": None},
    "neuro": {"trials": 3, "population": 2, "epochs": 1, "rungs": 1, "max_batches": 2, "results": None},
}
SAYS = {
    "secrets": ("secrets revealed in", "standard, rounds: 1", "points: "),
    "workflow": ("on fresh episodes, compliance", "visit 0, at most 100 episodes", "compliance"),
    "neuro": ("test accuracy", "conv ", "accuracy"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_shown_as_data(name: str, tmp_path: Path) -> None:
    plugin = find_study(name)
    config = plugin.config(**RUNS[name])
    run = plugin.build(config).run(
        ledger=str(tmp_path / "a.db"), run="first", executor="inline" if name != "secrets" else "async:2"
    )
    with RunView.open(tmp_path / "a.db", "first") as view:
        summary, trial, evaluation = view.summary(), view.trial(0), next(view.evaluations())
        shown = plugin.shown
        assert summary is not None and shown.headline and shown.candidate and shown.cell
        headline, candidate, cell = SAYS[name]
        assert headline in (shown.headline(summary.figures) or "")
        assert candidate in shown.candidate(trial.candidate).text
        section = shown.cell(evaluation.data)
        assert cell in section.text or cell in [row[0] for row in section.rows]
    run.ledger.close()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_without_a_result_has_no_headline(name: str) -> None:
    shown = find_study(name).shown
    assert shown.headline is not None and shown.headline({}) is None
