"""Every study says the same figures everywhere: in `fanfold runs`, `fanfold show`, the metrics and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.ledger import RunView
from fanfold.report.pages.overview import overview
from fanfold.report.pages.parts import ShownRun


def told(*words: str) -> Any:
    result = CliRunner().invoke(cli, [*words, "--json"], prog_name="fanfold")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_counts_agree_between_shell_and_page_in_every_study(world: Path) -> None:
    listed = {run["name"]: run for run in told("runs", "--ledger", str(world)) if "belongs_to" not in run["meta"]}
    assert {"functions", "prompts", "critic", "secrets", "workflow", "neuro", "ask", "evolve", "shaky"} <= set(listed)
    for name, run in listed.items():
        facts = told("show", name, "--ledger", str(world))
        with RunView.open(world, name) as view:
            page = overview(ShownRun(view))
        figures = {metric["key"]: metric["value"] for metric in page["metrics"]}
        for key in ("trials", "evaluations", "failures", "reused", "best"):
            if key == "best" and page["unit"] != "candidate":
                assert key not in figures, "no row is better than another"
                continue
            assert facts[key] == figures[key], (name, key)
            assert key == "reused" or run[key] == facts[key], (name, key)
        counts = page["progress"]
        assert (counts["told"], counts["evaluations"], counts["failures"], counts["reused"]) == (
            *(facts["trials"], facts["evaluations"], facts["failures"], facts["reused"]),
        ), name
        shown = CliRunner().invoke(cli, ["show", name, "--ledger", str(world)]).output
        assert page["cost_text"] in " ".join(shown.split()), name
