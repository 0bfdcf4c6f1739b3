"""A study as version 0.1 of Fanfold knew them: a module with `Config`, `study` and `how`."""

from dataclasses import dataclass

from acme_study import AcmeConfig, build


@dataclass(frozen=True)
class Config:
    """Nothing but the number of trials."""

    trials: int = 3


def study(config):
    return build(AcmeConfig(trials=config.trials))


def how(config):
    return {"executor": "async:5"}
