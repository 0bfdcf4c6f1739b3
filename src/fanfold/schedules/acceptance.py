"""Acceptance: a child must beat its parents on a few cases before more is spent on it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.errors import check_whole
from fanfold.schedule import Plan, Schedule
from fanfold.snapshots import Told, Unsaved, packed, saves, take_over, unpacked, unsaved
from fanfold.types import Case, Dropped, Failed, Ok, Outcome, Result, Trial


@dataclass(eq=False)
class Acceptance(Schedule):
    """Runs a child on `first` cases, drops it unless it beats its parents there, and then plans as `then` does.

    The parents are the trials that its origin names under `must_beat`.  More than half of the first cases are ones on
    which a parent did worse than on its best, those first that its writer was `shown`; the seed draws the others.  A
    child must score more in sum than every parent.  It then counts as scored on these cases, and `then` decides about
    the rest.  A trial without such parents, or with ones that were not scored on all cases, is planned by `then` alone.
    """

    then: Schedule
    first: int = 3
    _seed: int = field(default=0, init=False, repr=False)
    _scores: dict[int, Mapping[str, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole(self.first, "first of Acceptance")

    def begin(self, seed: int) -> None:
        self._seed = seed
        self.then.begin(seed)

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        # Not a generator itself: `then` plans with what it knows now.
        later = self.then.plan(trial, cases)
        numbers = trial.origin.get("must_beat", ()) if isinstance(trial.origin, Mapping) else ()
        parents = [self._scores[number] for number in numbers if number in self._scores]
        if not parents or len(parents) < len(numbers) or self.first >= len(cases):
            return later
        return self._gated(self._chosen(trial, cases, parents), parents, later)

    def tell(self, result: Result[Any]) -> None:
        self._keep(result)
        self.then.tell(result)

    def _keep(self, result: Result[Any]) -> None:
        if result.complete:
            scores = {case: outcome.score for case, outcome in result.outcomes.items() if isinstance(outcome, Ok)}
            if scores:
                self._scores[result.number] = scores

    def save(self) -> bytes:
        if (reason := unsaved(self.then)) is not None:
            raise Unsaved(reason)
        return packed(scored=list(self._scores), then=self.then.save() if saves(self.then) else None)

    def load(self, state: bytes, told: Told) -> None:
        saved = unpacked(state)
        for number in saved["scored"]:
            self._keep(told(number))
        if saves(self.then):
            take_over(self.then, saved["then"], told)

    def idle(self) -> None:
        self.then.idle()

    def _chosen(self, trial: Trial[Any], cases: Sequence[Case], parents: Sequence[Mapping[str, float]]) -> list[Case]:
        """More than half are cases that the parents failed, in turn, the shown ones first; the others they did well."""
        rng = random.Random(derive_seed(self._seed, "acceptance", trial.number))
        shown = trial.origin.get("shown", ())
        order = sorted(rng.sample(cases, len(cases)), key=lambda case: case.id not in shown)
        weak = [[case for case in order if scores.get(case.id, -math.inf) < max(scores.values())] for scores in parents]
        chosen: list[Case] = []
        for turn in range(self.first // 2 + 1):
            chosen += [case for case in weak[turn % len(weak)] if case not in chosen][:1]
        others = sorted((case for case in order if case not in chosen), key=lambda case: case in weak[0])
        return [*chosen, *others][: self.first]

    def _gated(self, gate: Sequence[Case], parents: Sequence[Mapping[str, float]], later: Plan) -> Plan:
        outcomes = yield gate
        known: dict[str, Outcome] = {case.id: outcome for case, outcome in zip(gate, outcomes)}
        for case, outcome in zip(gate, outcomes):
            if isinstance(outcome, Failed):
                return Dropped(f"case {case.id} failed: {outcome.kind}")
        own = math.fsum(outcome.score for outcome in outcomes if isinstance(outcome, Ok))
        bars = [math.fsum(scores.get(case.id, -math.inf) for case in gate) for scores in parents]
        if own <= max(bars):
            best = parents[bars.index(max(bars))]
            score = math.fsum(best.values()) / len(best) + (own - max(bars)) / len(gate)
            return Dropped(f"not better than its parent on {len(gate)} cases", score)
        try:
            chunk = next(later)
            while True:
                wanted = [case for case in chunk if case.id not in known]
                if wanted or not chunk:
                    known |= {case.id: outcome for case, outcome in zip(wanted, (yield wanted))}
                chunk = later.send([known[case.id] for case in chunk])
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
