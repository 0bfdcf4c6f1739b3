"""The workflow study: policies that learn to defend CAGE-2 (or to do well in any Gymnasium environment) by PPO.

A candidate is a version of a policy with a block of episodes to play, a cell plays them, and the strategy learns.
"""

import os

# Before numpy is loaded: the networks are so small that a second thread costs more than it brings, and with one, sums
# have the same order on every machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from fanfold.studies.workflow.config import Config, how, study
from fanfold.studies.workflow.ppo import Ppo

__all__ = ["Config", "Ppo", "how", "study"]
