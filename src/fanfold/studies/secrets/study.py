"""The study that a config describes: every pairing plays the same scenarios."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.identity import formerly
from fanfold.models.catalogue import defined
from fanfold.models.naming import runs_here
from fanfold.stop import MaxTrials
from fanfold.strategies import Sweep
from fanfold.studies.secrets.conclusion import SecretsConclusion
from fanfold.studies.secrets.config import SecretsConfig
from fanfold.studies.secrets.evaluator import GameEvaluator, named
from fanfold.studies.secrets.game import AgentSpec, Game
from fanfold.studies.secrets.model_names import remarks, resolved
from fanfold.studies.secrets.scenarios import scenarios
from fanfold.studies.secrets.translations import read_words
from fanfold.study import Study

#: Stands for the points of a failed game, which has none.
FAILED = -1e300


def games(config: SecretsConfig) -> tuple[Game, ...]:
    """The rows of the study: one pairing, or every ordered pair."""

    def spec(model: str, style: str) -> AgentSpec:
        return AgentSpec(model, style, config.manners[style], config.memory, config.context)

    players, styles = config.players, config.style or ("regular",)
    if config.pairings == "all":
        each = [spec(model, style) for model in players for style in styles]
        seats = [(first, second) for first in each for second in each]
    else:
        one = [spec(players[i % len(players)], styles[i % len(styles)]) for i in range(config.agents)]
        seats = [tuple(one)]  # type: ignore[list-item]
    return tuple(
        Game(
            agents,
            config.game_mode,
            config.rounds,
            config.messages_per_interaction,
            config.early_end,
            config.scoring,
            config.temperature,
            config.max_tokens,
        )
        for agents in seats
    )


def study(config: SecretsConfig) -> Study[Game]:
    """The study that a config describes."""
    rows = games(config)
    judge = None if config.judge is None else resolved(config.judge, config.base_url is not None)
    names = {spec.model for game in rows for spec in game.agents} | ({judge} if judge else set())
    for name in names:
        named(name, config.base_url, rows[0])  # an unknown model or a missing key is an error now, not in every game
    if config.results is not None:
        _check_folder(config.results)
    definitions = defined(*sorted(names))
    # Games take turns (see `run_options`); only where one game has more calls at once, these have to as well.
    in_flight = config.max_concurrent if config.together > config.max_concurrent else None
    return Study(
        Sweep(rows),
        GameEvaluator(
            config.base_url,
            judge,
            config.label == "either",
            config.results,
            in_flight,
            encode(definitions) if definitions else "",
            config.reasoning_effort,
        ),
        scenarios(
            config.num_interactions,
            config.agents,
            config.seed,
            secrets=config.secrets,
            names=config.names,
            targeted=config.game_mode == "targeted",
            target=config.targeted,
            aliases=config.aliases,
            translations=read_words(config.leak_words) if config.leak_words else None,
        ),
        stop=MaxTrials(len(rows)),
        seed=config.seed,
        aggregate=mean_of_played,
        failed_score=FAILED,
        name="secrets",
        conclude=SecretsConclusion(
            len(rows), config.results, config.seed, tuple(remarks(config.given)), config.cut_off
        ),
        remarks=tuple(_unused(config)),
    )


def _unused(config: SecretsConfig) -> Iterator[str]:
    """What was given and has no effect, which a run says when it begins."""
    for what, texts in (("secrets", config.secrets), ("names", config.names)):
        if len(texts) > config.agents:
            yield (
                f"only the first {config.agents} of {len(texts)} {what} are used, one for each agent, in every game; "
                f"without {what} each scenario has others"
            )
    if config.targeted and config.game_mode != "targeted":
        yield f"targeted is not used: it is of game_mode targeted, not {config.game_mode}"


@formerly("fanfold.studies.secrets.config.mean_of_played")
def mean_of_played(scores: Sequence[float]) -> float:
    """The mean points of the games that did not fail, which are counted apart; not a number where all did."""
    played = [score for score in scores if score != FAILED]
    return statistics.fmean(played) if played else math.nan


def run_options(config: SecretsConfig) -> dict[str, Any]:
    """Run options that follow from the config: which executor."""
    service = config.batch_service.removesuffix("-conversation")
    if service == "auto":
        remote = not all(map(runs_here, config.players))
        service = "auto" if remote and config.base_url is None else "default"
    if service == "default":
        return {"executor": f"async:{max(1, config.max_concurrent // config.together)}"}
    return {"executor": f"batch:{service}" + (f":{config.batch_size}" if config.batch_size else "")}


def _check_folder(folder: str) -> None:
    """That results can be written is known before anything is paid for; here nothing is made yet."""
    path = Path(folder)
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise ConfigError(f"results={folder!r} cannot be made: {path} is not a folder that can be written to")
