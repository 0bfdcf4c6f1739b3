"""A study from another package: `fanfold run acme`, and a command of its own, `fanfold acme near`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from fanfold import Case, Float, MaxTrials, Random, Space, Study, drawings
from fanfold.config import option
from fanfold.ledger import EvaluationRow, RunView, TrialRow
from fanfold.plugins import Presentation, Shell, StudyCommand, StudyPlugin
from fanfold.summary import Check, Section, Summary


@dataclass(frozen=True)
class AcmeConfig:
    """Which anvil is looked for, and for how long."""

    weight: float = option(0.5, "the weight of the best anvil")
    trials: int = option(6, "anvils to try")


def evaluate(candidate: Mapping[str, float], case: Case) -> float:
    return -abs(candidate["weight"] - case.data)


async def conclude(run: Any, go: Any) -> Summary:
    return Summary({"off_by": -run.best.score})


def build(config: AcmeConfig) -> Study[Any]:
    space = Space({"weight": Float(0.0, 1.0)})
    stop = MaxTrials(config.trials)
    return Study(Random(space), evaluate, [config.weight], stop=stop, name="acme", conclude=conclude)


@click.command(short_help="Look for an anvil near a weight.")
@click.option("--weight", type=float, required=True, metavar="W", help="The weight to look near.")
@click.pass_obj
def near(shell: Shell, weight: float) -> None:
    """Say what is looked for, then run the study."""
    config = replace(AcmeConfig(), weight=weight)
    shell.show([Section("Order", f"an anvil of weight {weight}")])
    shell.run(config)


def calibrate(config: AcmeConfig) -> Iterable[Section]:
    return [Section("Scales", f"good for {config.trials} anvils")]


def overview(view: RunView) -> Iterable[Section]:
    """Every anvil so far, as points."""
    rows = list(view.trials(which="told", blobs=False))
    points = [{"x": row.candidate["weight"], "y": row.score, "trial": row.number} for row in rows]
    return [Section("All anvils", drawings=(drawings.scatter(points, x="weight", y="score"),))]


def trial(view: RunView, row: TrialRow) -> Iterable[Section]:
    dot = {"name": "this anvil", "value": row.candidate["weight"]}
    drawn = drawings.intervals([dot], unit="weight", low=0.0, high=1.0)
    return [Section("On the scales", f"an anvil of {row.candidate['weight']:.3f}", drawings=(drawn,))]


def evaluation(view: RunView, row: EvaluationRow) -> Iterable[Section]:
    yield Section("Thud", f"{row.case}: {row.score:.2f}")


plugin = StudyPlugin(
    AcmeConfig,
    build,
    run_options=lambda config: {"executor": f"threads:{min(2, config.trials)}"},
    commands=lambda: (StudyCommand(near, runs=True),),
    calibrate=calibrate,
    checks=lambda: [Check("anvils", True, "none here")],
    shown=Presentation(
        headline=lambda figures: f"the anvil is off by {figures['off_by']:.2f}",
        candidate=lambda candidate: Section("Anvil", f"an anvil of {candidate['weight']:.3f}"),
        text=lambda candidate: f"Weight:\n{candidate['weight']:.3f}",
        brief=lambda candidate: f"{candidate['weight']:.3f} kg of iron",
        scale=(-1.0, 0.0),
        overview=overview,
        trial=trial,
        evaluation=evaluation,
        compare=lambda views: [Section("Anvils compared", f"{len(views)} forges")],
    ),
)
lab = replace(plugin, packages=("acme_instruments",))
