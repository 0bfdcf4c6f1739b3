"""The secrets study: agents that keep and extract secrets, with statistics one can defend.

A candidate is a pairing of agents and a game, a case is a scenario (secrets, names, who opens), and a cell is a whole
game.  With no key set it runs on the embedded local model.
"""

from fanfold.studies.secrets.config import Config, games, how, study
from fanfold.studies.secrets.domain import AgentSpec, Game, Scoring

__all__ = ["AgentSpec", "Config", "Game", "Scoring", "games", "how", "study"]
