"""Reinforcement learning on the engine: environments, policies, collection of episodes, and learners.

A candidate is a version of a policy with a block of episodes to play (`collect.Collect`), a cell plays them
(`collect.Collector`), and the strategy learns from what it is told (`learner.Learner`).
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Before numpy is loaded: the networks are so small that a second thread costs more than it brings, and with one, sums
# have the same order on every machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if TYPE_CHECKING:
    from fanfold.rl.agent import Agent as Agent
    from fanfold.rl.config import RlConfig as RlConfig
    from fanfold.rl.exports import export as export
    from fanfold.rl.making import Environment as Environment
    from fanfold.rl.ppo import Ppo as Ppo
    from fanfold.rl.training import Trained as Trained
    from fanfold.rl.training import train as train

_HOMES = {
    "Agent": "agent",
    "Environment": "making",
    "Ppo": "ppo",
    "RlConfig": "config",
    "Trained": "training",
    "export": "exports",
    "train": "training",
}
__all__ = ["Agent", "Environment", "Ppo", "RlConfig", "Trained", "export", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
