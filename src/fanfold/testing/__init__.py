"""A kit for those who test what they plug into Fanfold: a virtual clock, faults on demand, conformance suites."""

from fanfold.testing.clock import VirtualLoop, run_virtual
from fanfold.testing.executors import ExecutorConformance, Fault, FaultyExecutor, seeded_faults
from fanfold.testing.providers import ProviderConformance
from fanfold.testing.schedules import ScheduleConformance
from fanfold.testing.strategies import StrategyConformance
from fanfold.testing.studies import StudyConformance

__all__ = [
    "ExecutorConformance",
    "Fault",
    "FaultyExecutor",
    "ProviderConformance",
    "ScheduleConformance",
    "StrategyConformance",
    "StudyConformance",
    "VirtualLoop",
    "run_virtual",
    "seeded_faults",
]
