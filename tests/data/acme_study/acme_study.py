"""A study from another package: `fanfold run acme`, and a command of its own, `fanfold acme near`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from fanfold import Case, Float, MaxTrials, Random, Space, Study
from fanfold.config import option
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
    ),
)
lab = replace(plugin, packages=("acme_instruments",))
