"""The workflow study: which order, subset or assignment a policy should keep to, and policies that learn it by PPO.

In a search a candidate is a workflow and a cell its training, or a part of it; a surrogate chooses.  Workflows are
those of CAGE-2, or of a problem of the user (`OwnProblem`).  With `mode="ppo"` there is one policy for CAGE-2.
"""

import os

# Before numpy is loaded: the networks are so small that a second thread costs more than it brings, and with one, sums
# have the same order on every machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from fanfold.plugins import Starter, StudyPlugin
from fanfold.rl.ppo import Ppo
from fanfold.studies.workflow.commands import commands
from fanfold.studies.workflow.config import SpaceSettings, WorkflowConfig
from fanfold.studies.workflow.own import OwnProblem
from fanfold.studies.workflow.shown import presentation
from fanfold.studies.workflow.spaces import Assignments, Orders, Subsets
from fanfold.studies.workflow.study import run_options, study

Config = WorkflowConfig

__all__ = [
    "Assignments",
    "Config",
    "Orders",
    "OwnProblem",
    "Ppo",
    "SpaceSettings",
    "Subsets",
    "WorkflowConfig",
    "plugin",
    "run_options",
    "study",
]

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
