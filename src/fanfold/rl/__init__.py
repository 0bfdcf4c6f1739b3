"""Reinforcement learning on the engine: environments, policies, collection of episodes, and learners.

A candidate is a version of a policy with a block of episodes to play (`collect.Collect`), a cell plays them
(`collect.Collector`), and the strategy learns from what it is told (`learner.Learner`).
"""

import os

# Before numpy is loaded: the networks are so small that a second thread costs more than it brings, and with one, sums
# have the same order on every machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
