"""`fanfold compare`: every ordered pair of models plays the secrets game on the same scenarios."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.options import RunOptions, from_flags, how_options
from fanfold.cli.output import duration, examples, machine_readable, output_options, print_json, say, table
from fanfold.errors import ConfigError

if TYPE_CHECKING:
    from fanfold.rehearsal import Bound, Estimate
    from fanfold.studies.secrets import Config

_MODES = ["standard", "retained", "diversity", "targeted"]
_SERVICES = ["default", "openai", "anthropic", "openai-conversation", "anthropic-conversation", "auto"]
#: Who is compared where nobody is named: those of the service, or all for which there is a key.
_MODELS = {
    "openai": ("openai/gpt-6-luna", "openai/gpt-4o-mini"),
    "anthropic": ("anthropic/claude-haiku-5-5", "anthropic/claude-sonnet-5-5"),
}
#: Games that are rehearsed for the estimate.
_SAMPLE = 12


@click.command(
    short_help="Compare models at keeping and extracting secrets.",
    epilog=examples(
        "fanfold compare --models openai/gpt-6-luna,anthropic/claude-haiku-5-5 --interactions 50",
        "fanfold compare --models gpt4o_mini,claude_sonnet --batch-service auto --max-cost 5",
        "fanfold compare --models local/smollm2 --style regular,aggressive --interactions 4 --messages 2",
        "fanfold compare --plan                 (cost, time and power only)",
    ),
)
@click.option("--models", metavar="A,B,...", help="Who is compared.  [those there are keys for, or local/smollm2]")
@click.option("--style", default="regular", show_default=True, metavar="S,...", help="Play each model in these styles.")
@click.option("--mode", type=click.Choice(_MODES), default="standard", show_default=True, help="How points are given.")
@click.option("--interactions", type=int, default=100, show_default=True, metavar="N", help="Games per pair.")
@click.option("--messages", type=int, default=5, show_default=True, metavar="N", help="Messages per agent and game.")
@click.option(
    "--batch-service", type=click.Choice(_SERVICES), default="auto", show_default=True, help="Realtime or batch."
)
@click.option("--batch-size", type=int, default=50, show_default=True, metavar="N", help="Most requests in a batch.")
@click.option("--max-concurrent", type=int, default=10, show_default=True, metavar="N", help="Games at once, realtime.")
@click.option("--judge", metavar="MODEL", help="A model that is asked about every secret as well.")
@click.option("--output-dir", default="results/model_comparison", show_default=True, metavar="DIR", help="For results.")
@click.option("--seed", type=int, default=0, metavar="N", help="Of secrets, names and conversations.")
@click.option("--plan", is_flag=True, help="Only say what it would cost, take and show; nothing is sent.")
@click.option(
    "--ledger", metavar="FILE", help="The file that keeps all runs.  [default: $FANFOLD_LEDGER or fanfold.db]"
)
@click.option("--run", metavar="NAME", help="The run's name; a name the ledger knows is continued.")
@how_options
@output_options
@click.pass_context
def compare(ctx: click.Context, /, accept_changes: bool, plan: bool, **values: Any) -> None:
    """Let every ordered pair of models, self-play included, play the secrets game on the same scenarios.

    Prints what each did with intervals, a pair matrix, a ranking and paired tests, and writes all games to a folder.
    It is a run of the study `secrets`: `fanfold resume`, `show` and `report` work on it as on any other.
    """
    from fanfold import __version__
    from fanfold.cli.run import _do
    from fanfold.rehearsal import rehearsing
    from fanfold.studies import secrets

    config = _config(values)
    options = from_flags(values).over(RunOptions(**secrets.how(config)))
    study = None if plan else secrets.study(config)  # a missing key is an error before anything is planned
    with rehearsing():
        found = _estimate(config, options.executor or "auto")
    _say_plan(config, found)
    if study is None:
        return
    meta = {"target": "secrets", "fields": dataclasses.asdict(config), "options": options.given()}
    _do(ctx, study, options, accept_changes, {**meta, "version": __version__})


def _config(values: dict[str, Any]) -> Config:
    from fanfold.studies.secrets import Config

    styles = _listed(values["style"])
    models = _listed(values["models"]) or _available(values["batch_service"])
    if models == ("local/smollm2",) and styles == ("regular",):
        styles = ("regular", "aggressive")  # with one model there is nothing else to compare
    return Config(
        models=models,
        style=styles,
        pairings="all",
        game_mode=values["mode"],
        num_interactions=values["interactions"],
        messages_per_interaction=values["messages"],
        batch_service=values["batch_service"],
        batch_size=values["batch_size"],
        max_concurrent=values["max_concurrent"],
        judge=values["judge"],
        results=values["output_dir"],
        seed=values["seed"],
    )


def _available(service: str) -> tuple[str, ...]:
    """The models to compare where none are named."""
    from fanfold.models import model

    provider = service.removesuffix("-conversation")
    if provider in _MODELS:
        return _MODELS[provider]
    found = []
    for name in (name for names in _MODELS.values() for name in names):
        try:
            model(name)
        except ConfigError:
            continue  # there is no key
        found.append(name)
    return tuple(found) or ("local/smollm2",)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _estimate(config: Config, executor: str) -> Estimate:
    """What the comparison would take, judged by a rehearsal of every pair in a few scenarios."""
    from fanfold.rehearsal import estimate
    from fanfold.studies import secrets

    pairs = len(secrets.games(config))
    games = min(config.num_interactions, max(2, _SAMPLE // pairs))
    part = secrets.study(dataclasses.replace(config, num_interactions=games, results=None))
    found = estimate(part, executor, sample=pairs)
    more = config.num_interactions / games
    longer = 1.0 if executor.startswith("batch") else more  # a wave takes as long with many conversations as with few

    def scaled(bound: Bound) -> Bound:
        counts = {name: round(getattr(bound, name) * more) for name in ("calls", "input_tokens", "output_tokens")}
        cost = None if bound.cost is None else bound.cost * more
        return dataclasses.replace(bound, seconds=bound.seconds * longer, cost=cost, **counts)

    return dataclasses.replace(found, low=scaled(found.low), expected=scaled(found.expected), high=scaled(found.high))


def _say_plan(config: Config, found: Estimate) -> None:
    from fanfold.cli.models import money
    from fanfold.cli.show import say_summary
    from fanfold.studies import secrets
    from fanfold.studies.secrets.sections import power_section

    power = power_section(config.num_interactions)
    games = secrets.games(config)
    players = list(dict.fromkeys(agent.label for game in games for agent in game.agents))
    bounds = {"low": found.low, "expected": found.expected, "high": found.high}
    if machine_readable():
        estimated = {name: dataclasses.asdict(bound) for name, bound in bounds.items()}
        if click.get_current_context().params.get("plan"):
            print_json({"players": players, "pairs": len(games), "estimate": estimated, **power.figures})
        return
    pairs = f"{len(games)} ordered pairs of {len(players)} players, {config.num_interactions} games each"
    say(f"{pairs}: {', '.join(players)}")
    head = ["", "cost", "time", "calls", "input tokens", "output tokens"]
    rows: Sequence[Sequence[str]] = [
        [name, money(bound.cost), duration(bound.seconds)]
        + [str(count) for count in (bound.calls, bound.input_tokens, bound.output_tokens)]
        for name, bound in bounds.items()
    ]
    say(table(head, rows, right=head[1:]))
    say_summary(power)
    say()
