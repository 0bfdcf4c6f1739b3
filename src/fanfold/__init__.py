"""Fanfold evaluates populations of expensive candidates, fast and cheaply, and never pays twice for a finished one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanfold.errors import (
        ConfigError,
        FanfoldError,
        Interrupted,
        LedgerError,
        ReplayDivergence,
        RunLocked,
    )
    from fanfold.events import Progress
    from fanfold.executors import Executor
    from fanfold.ledger import Ledger, RunView
    from fanfold.mapping import map_parallel, run_parallel
    from fanfold.mapping import score_batch_parallel as score_batch_parallel
    from fanfold.run_result import Run
    from fanfold.schedule import Schedule
    from fanfold.schedules import AllCases, Halving, Racing
    from fanfold.space import Choice, Float, Int, Space
    from fanfold.stop import MaxCost, MaxEvaluations, MaxTime, MaxTrials, Plateau, Target
    from fanfold.strategies import Genetic, Random, Sweep
    from fanfold.strategy import Strategy
    from fanfold.studies.ask.api import ask
    from fanfold.studies.evolve.api import evolve
    from fanfold.study import Study
    from fanfold.types import Blob, Case, Failed, Ok, Result, Trial

__version__ = "0.1.0"

# Where each public name lives.  They are imported on first use, so that `import fanfold` costs next to nothing.
_HOMES = {
    "errors": ("ConfigError", "FanfoldError", "Interrupted", "LedgerError", "ReplayDivergence", "RunLocked"),
    "events": ("Progress",),
    "executors": ("Executor",),
    "ledger": ("Ledger", "RunView"),
    "mapping": ("map_parallel", "run_parallel", "score_batch_parallel"),
    "run_result": ("Run",),
    "schedule": ("Schedule",),
    "schedules": ("AllCases", "Halving", "Racing"),
    "space": ("Choice", "Float", "Int", "Space"),
    "stop": ("MaxCost", "MaxEvaluations", "MaxTime", "MaxTrials", "Plateau", "Target"),
    "strategies": ("Genetic", "Random", "Sweep"),
    "strategy": ("Strategy",),
    "studies.ask.api": ("ask",),
    "studies.evolve.api": ("evolve",),
    "study": ("Study",),
    "types": ("Blob", "Case", "Failed", "Ok", "Result", "Trial"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AllCases",
    "Blob",
    "Case",
    "Choice",
    "ConfigError",
    "Executor",
    "Failed",
    "FanfoldError",
    "Float",
    "Genetic",
    "Halving",
    "Int",
    "Interrupted",
    "Ledger",
    "LedgerError",
    "MaxCost",
    "MaxEvaluations",
    "MaxTime",
    "MaxTrials",
    "Ok",
    "Plateau",
    "Progress",
    "Racing",
    "Random",
    "ReplayDivergence",
    "Result",
    "Run",
    "RunLocked",
    "RunView",
    "Schedule",
    "Space",
    "Strategy",
    "Study",
    "Sweep",
    "Target",
    "Trial",
    "ask",
    "evolve",
    "map_parallel",
    "run_parallel",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"fanfold.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fanfold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
