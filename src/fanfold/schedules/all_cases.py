"""The plain schedule: every trial runs every case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.schedule import Plan, Schedule
from fanfold.types import Case, Trial


@dataclass(frozen=True)
class AllCases(Schedule):
    """Runs all cases of a trial at once and never drops one, so every row is complete."""

    remembers = False

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        yield cases
        return None
