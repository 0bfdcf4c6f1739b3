"""The secrets study: agents that keep and extract secrets, with statistics one can defend.

A candidate is a pairing of agents and a game, a case is a scenario (secrets, names, who opens), and a cell is a whole
game.  With no key set it runs on the embedded local model.
"""

from fanfold.plugins import Starter, StudyPlugin
from fanfold.studies.secrets.commands import commands
from fanfold.studies.secrets.config import SecretsConfig
from fanfold.studies.secrets.game import AgentSpec, Game, Scoring
from fanfold.studies.secrets.shown import presentation
from fanfold.studies.secrets.study import games, run_options, study

Config = SecretsConfig

__all__ = ["AgentSpec", "Config", "Game", "Scoring", "SecretsConfig", "games", "plugin", "run_options", "study"]

plugin = StudyPlugin(
    SecretsConfig,
    study,
    run_options,
    commands=commands,
    world="fanfold.studies.secrets.simulated:player",
    shown=presentation,
    starter=Starter(
        "Let models talk, and count who gives secrets away and who obtains them.",
        {"num_interactions": 10},
        model="models",
        offer={
            "pairings": "all",
            "messages_per_interaction": 5,
            "style": ["regular", "deceptive"],
            "judge": "PROVIDER/MODEL",
            "batch_service": "auto",
        },
    ),
)
