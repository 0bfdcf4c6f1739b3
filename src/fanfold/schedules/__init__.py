"""Schedules: which cases a trial runs next, and when its row is settled."""

from fanfold.schedules.acceptance import Acceptance
from fanfold.schedules.all_cases import AllCases
from fanfold.schedules.halving import Halving, last_rung
from fanfold.schedules.paired import PairedDropping
from fanfold.schedules.racing import Racing

__all__ = ["Acceptance", "AllCases", "Halving", "PairedDropping", "Racing", "last_rung"]
