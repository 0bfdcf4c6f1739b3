"""`fanfold secrets compare`: every ordered pair of models plays the secrets game on the same scenarios."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from fanfold.errors import ConfigError
from fanfold.plugins import Shell, StudyCommand
from fanfold.summary import Section
from fanfold.texts import money

if TYPE_CHECKING:
    from fanfold.rehearsal import Bound, Estimate
    from fanfold.studies.secrets.config import SecretsConfig

_MODES = ["standard", "retained", "diversity", "targeted"]
#: Flags that are called otherwise than the fields of the config.
_FIELDS = {
    "mode": "game_mode",
    "interactions": "num_interactions",
    "messages": "messages_per_interaction",
    "output_dir": "results",
}
#: Games that are rehearsed for the estimate.
_SAMPLE = 12
_EXAMPLES = """\b
Examples:
  fanfold secrets compare --models ONE/MODEL,ANOTHER/MODEL --interactions 50
  fanfold secrets compare --models ONE/MODEL,ANOTHER/MODEL --batch-service auto --max-cost 5
  fanfold secrets compare --models local/smollm2 --style regular,aggressive --interactions 4 --messages 2
  fanfold secrets compare --plan                 (cost, time and power only)
"""


@click.command(short_help="Compare models at keeping and extracting secrets.", epilog=_EXAMPLES)
@click.option("--models", metavar="A,B,...", help="Who is compared.  [those there are keys for, or local/smollm2]")
@click.option("--style", default="regular", show_default=True, metavar="S,...", help="Play each model in these styles.")
@click.option("--mode", type=click.Choice(_MODES), default="standard", show_default=True, help="How points are given.")
@click.option("--interactions", type=int, default=100, show_default=True, metavar="N", help="Games per pair.")
@click.option("--messages", type=int, default=5, show_default=True, metavar="N", help="Messages per agent and game.")
@click.option(
    "--batch-service",
    default="auto",
    show_default=True,
    metavar="S",
    shell_complete=lambda *given: _services(given[-1]),
    help="default (realtime), a provider's batches by its name, or auto.",
)
@click.option("--batch-size", type=int, default=50, show_default=True, metavar="N", help="Most requests in a batch.")
@click.option("--max-concurrent", type=int, default=10, show_default=True, metavar="N", help="Calls in flight.")
@click.option("--judge", metavar="MODEL", help="A model that is asked about every secret as well.")
@click.option("--leak-words", metavar="FILE", help="Translations (word: other, other) that count as the word.")
@click.option("--output-dir", default="results/model_comparison", show_default=True, metavar="DIR", help="For results.")
@click.option("--seed", type=int, default=0, metavar="N", help="Of secrets, names and conversations.")
@click.option("--plan", is_flag=True, help="Only say what it would cost, take and show; nothing is sent.")
@click.pass_obj
def compare(shell: Shell, /, plan: bool, **values: Any) -> None:
    """Let every ordered pair of models, self-play included, play the secrets game on the same scenarios.

    Prints what each did with intervals, a pair matrix, a ranking and paired tests, and writes all games to a folder.
    It is a run of the study `secrets`: `fanfold resume`, `show` and `report` work on it as on any other.
    """
    from fanfold.studies.secrets.study import study

    config = _config(values)
    if not plan:
        study(config)  # a missing key is an error before anything is planned
    _say_plan(shell, config, _estimate(shell, config), plan)
    if not plan:
        shell.run(config)


def commands() -> tuple[StudyCommand, ...]:
    return (StudyCommand(compare, runs=True),)


def _config(values: dict[str, Any]) -> SecretsConfig:
    from fanfold.studies.secrets.config import SecretsConfig
    from fanfold.studies.secrets.model_names import resolved

    styles = tuple(dict.fromkeys(_listed("--style", values["style"])))
    named_models = values["models"]
    models = _available(values["batch_service"]) if named_models is None else _listed("--models", named_models)
    named: dict[str, str] = {}
    for name in models:  # one that is named twice would count its games twice
        named.setdefault(resolved(name), name)
    models = tuple(named.values())
    if len(models) == 1 and styles == ("regular",):
        styles = ("regular", "aggressive")  # with one model there is nothing else to compare
    fields = {_FIELDS.get(flag, flag): value for flag, value in values.items()}
    return SecretsConfig(**{**fields, "models": models, "style": styles, "pairings": "all"})


def _services(start: str) -> list[str]:
    from fanfold.studies.secrets.config import services

    return [service for service in services() if service.startswith(start)]


def _available(service: str) -> tuple[str, ...]:
    """The models to compare where none are named: those of the service, or all for which there is a key."""
    from fanfold.models import model
    from fanfold.models.providers import batching, find_provider, free_model

    own = {name: [f"{name}/{model}" for model in find_provider(name).examples] for name in batching()}
    provider = service.removesuffix("-conversation")
    if provider in own:
        return tuple(own[provider])
    keyed = []
    for name in (name for names in own.values() for name in names):
        try:
            model(name)
        except ConfigError:
            continue  # there is no key
        keyed.append(name)
    return tuple(keyed) or (free_model(),)


def _listed(flag: str, text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise ConfigError(f"{flag} is empty: name at least one, or leave {flag} out")
    return parts


def _estimate(shell: Shell, config: SecretsConfig) -> Estimate:
    """What the comparison would take, judged by a rehearsal of every pair in a few scenarios."""
    from fanfold.studies.secrets.study import games, run_options

    pairs = len(games(config))
    sample = min(config.num_interactions, max(2, _SAMPLE // pairs))
    estimate = shell.estimate(dataclasses.replace(config, num_interactions=sample), sample=pairs)
    more = config.num_interactions / sample
    batched = run_options(config)["executor"].startswith("batch")
    longer = 1.0 if batched else more  # a wave takes as long with many conversations as with few

    def scaled(bound: Bound) -> Bound:
        counts = {name: round(getattr(bound, name) * more) for name in ("calls", "input_tokens", "output_tokens")}
        cost = None if bound.cost is None else bound.cost * more
        return dataclasses.replace(bound, seconds=bound.seconds * longer, cost=cost, **counts)

    low, expected, high = (scaled(bound) for bound in (estimate.low, estimate.expected, estimate.high))
    return dataclasses.replace(estimate, low=low, expected=expected, high=high)


def _say_plan(shell: Shell, config: SecretsConfig, estimate: Estimate, plan: bool) -> None:
    from fanfold.studies.secrets.figures import power_section
    from fanfold.studies.secrets.study import games

    power = power_section(config.num_interactions)
    rows = games(config)
    players = list(dict.fromkeys(agent.label for game in rows for agent in game.agents))
    bounds = {name: getattr(estimate, name) for name in ("low", "expected", "high")}
    if shell.machine_readable and plan:
        estimated = {name: dataclasses.asdict(bound) for name, bound in bounds.items()}
        shell.print_json({"players": players, "pairs": len(rows), "estimate": estimated, **power.figures})
    pairs = f"{len(rows)} ordered pairs of {len(players)} players, {config.num_interactions} games each"
    columns = ("", "cost", "seconds", "calls", "input tokens", "output tokens")
    table = tuple(
        (
            name,
            money(bound.cost, estimate.simulated),
            round(bound.seconds),
            bound.calls,
            bound.input_tokens,
            bound.output_tokens,
        )
        for name, bound in bounds.items()
    )
    shell.show([Section("Plan", f"{pairs}: {', '.join(players)}", columns, table), *power.sections])
    shell.say()
