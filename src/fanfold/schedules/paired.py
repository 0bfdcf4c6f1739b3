"""Paired dropping: a trial that falls behind the best so far on the cases that both ran is left."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, check_whole
from fanfold.schedule import Plan, Schedule
from fanfold.schedules.rivals import Rivals
from fanfold.snapshots import packed, unpacked
from fanfold.types import Case, Dropped, Failed, Ok, Result, Trial


@dataclass(eq=False)
class PairedDropping(Schedule):
    """Drops a candidate that is `margin` behind the best on the cases both ran, or behind at all half way through.

    For small budgets: it drops sooner than `Racing`, and promises nothing about how often it is wrong.  Cases come in
    an order drawn for each trial, in chunks of `step`: in one order for all, a case that only the best got right would
    keep everybody out.  Before there is a best, a candidate that scores nothing
    on its first chunk is dropped, except the very first.  A dropped candidate gets the best's mean plus its own mean
    difference to it.  A failed case drops its candidate without a score.
    """

    step: int = 4
    margin: float = 2.0
    _seed: int = field(default=0, init=False, repr=False)
    _best: float = field(default=-math.inf, init=False, repr=False)
    _leader: Mapping[str, float] = field(default_factory=dict, init=False, repr=False)
    _open: Rivals = field(default_factory=Rivals, init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole(self.step, "step of PairedDropping")
        if not self.margin > 0:
            raise ConfigError(f"PairedDropping(margin={self.margin!r}): give a sum of scores above 0, such as 2")

    def begin(self, seed: int) -> None:
        self._seed = seed

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        # Not a generator itself: the leader is the one of now.
        return self._paired(trial, cases, self._open.of(trial.number, self._leader))

    def save(self) -> bytes:
        return packed(best=self._best, leader=self._leader, open=self._open.save())

    def load(self, state: bytes) -> None:
        saved = unpacked(state)
        self._best, self._leader = saved["best"], saved["leader"]
        self._open = Rivals.load(saved["open"])

    def tell(self, result: Result[Any]) -> None:
        self._open.settled(result.number)
        if result.complete and result.score is not None and result.score > self._best:
            scores = {case: outcome.score for case, outcome in result.outcomes.items() if isinstance(outcome, Ok)}
            if any(scores.values()):  # behind one that is never right nobody would ever fall
                self._best, self._leader = result.score, scores

    def _paired(self, trial: Trial[Any], cases: Sequence[Case], leader: Mapping[str, float]) -> Plan:
        order = list(cases)
        random.Random(derive_seed(self._seed, "paired", trial.number)).shuffle(order)
        total = len(order)
        best = math.fsum(leader.values()) / len(leader) if leader else 0.0
        ran: list[Ok] = []
        scores: list[float] = []
        behind = 0.0
        for start in range(0, total, self.step):
            chunk = order[start : start + self.step]
            for case, outcome in zip(chunk, (yield chunk)):
                if isinstance(outcome, Failed):
                    return Dropped(f"case {case.id} failed: {outcome.kind}")
                ran.append(outcome)
                scores.append(outcome.score)
                behind += leader.get(case.id, 0.0) - outcome.score
            if (worth := self.worth(ran)) is not None:
                scores, behind = worth, 0.0
                for case, score in zip(order, scores):
                    behind += leader.get(case.id, 0.0) - score
            seen = len(scores)
            if seen == total:
                break
            half = seen * 2 >= total
            alone = not any(scores) and trial.number > 0
            lost = behind >= self.margin or (half and behind > 0) if leader else alone
            if lost:
                score = min(best, max(0.0, best - behind / seen)) if leader else 0.0
                return Dropped(f"behind after {seen} of {total} cases", score)
        return None

    def worth(self, outcomes: Sequence[Ok]) -> list[float] | None:
        """What the outcomes of a candidate count as, one by one, where a subclass knows better than their scores."""
        return None
