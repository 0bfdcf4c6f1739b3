"""A kit for those who test what they plug into Fanfold: a virtual clock, faults on demand, conformance suites."""

from fanfold.testing.clock import VirtualLoop, run_virtual
from fanfold.testing.executors import ExecutorConformance, FaultyExecutor
from fanfold.testing.schedules import ScheduleConformance
from fanfold.testing.strategies import StrategyConformance

__all__ = [
    "ExecutorConformance",
    "FaultyExecutor",
    "ScheduleConformance",
    "StrategyConformance",
    "VirtualLoop",
    "run_virtual",
]
