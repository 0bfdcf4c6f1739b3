"""The study of reinforcement learning: a policy learns any Gymnasium environment by PPO.

A candidate is a version of the policy with a block of episodes to play, a cell plays them, and the strategy learns.
All of it is in `fanfold.rl`; here is what the command line, the report and the web app need.
"""

from fanfold.plugins import Presentation, Starter, StudyPlugin, concluded
from fanfold.rl import shown
from fanfold.rl.config import RlConfig
from fanfold.rl.training import study_of
from fanfold.studies.rl.commands import commands

__all__ = ["RlConfig", "plugin"]

#: An environment that runs, to be replaced by one's own.
ENVIRONMENT = '''"""An environment: walk to the right end of a corridor.  Replace it by your own problem."""

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    def __init__(self, length=10):
        self.length = length
        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.length // 2))
        return self._observation(), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        arrived = self.place >= self.length
        return self._observation(), 1.0 if arrived else -0.1, arrived, False, {}

    def _observation(self):
        return np.array([self.place / self.length], np.float32)


def make_env(length=10):
    return gymnasium.wrappers.TimeLimit(Corridor(length), 50)
'''

plugin = StudyPlugin(
    RlConfig,
    study_of,
    lambda config: {"executor": config.executor},
    commands=commands,
    packages=("numpy", "gymnasium"),
    shown=Presentation(
        shown.headline,
        shown.block,
        shown.episodes,
        unit="block",
        chooses=True,
        brief=lambda value: shown.block(value).text,
        overview=shown.overview,
        evaluation=shown.evaluation,
        compare=lambda views: shown.compare(concluded(views)),
    ),
    starter=Starter(
        "Train a policy on an environment of your own, or on any of Gymnasium's.",
        {"env": "environment.py:make_env", "total_episodes": 2000},
        offer={"env_kwargs": {"length": 20}, "n_workers": 2, "timeout": 60.0, "max_failed_share": 0.1},
        files={"environment.py": ENVIRONMENT},
    ),
)
