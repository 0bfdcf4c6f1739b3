"""The workflow study: which order a defender of CAGE-2 should keep to, and policies that learn to keep to it by PPO.

In a search a candidate is a workflow and a cell its whole training; GP-UCB chooses.  With `mode="ppo"` there is one
policy: a candidate is a version of it with a block of episodes to play, a cell plays them, and the strategy learns.
"""

import os

# Before numpy is loaded: the networks are so small that a second thread costs more than it brings, and with one, sums
# have the same order on every machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from fanfold.plugins import Starter, StudyPlugin
from fanfold.rl.ppo import Ppo
from fanfold.studies.workflow.commands import commands
from fanfold.studies.workflow.config import SpaceSettings, WorkflowConfig
from fanfold.studies.workflow.shown import presentation
from fanfold.studies.workflow.study import run_options, study

Config = WorkflowConfig

__all__ = ["Config", "Ppo", "SpaceSettings", "WorkflowConfig", "plugin", "run_options", "study"]

plugin = StudyPlugin(
    WorkflowConfig,
    study,
    run_options,
    commands=commands,
    packages=("numpy", "numba", "gymnasium"),
    shown=presentation,
    starter=Starter(
        "Find the order in which to defend a network, and train a defender for it.",
        {"total_episodes": 20_000, "max_episodes_per_workflow": 2_000},
        offer={"red_agent": "MeanderAgent", "n_workers": 2, "mode": "ppo", "compliance_threshold": 0.9},
    ),
)
