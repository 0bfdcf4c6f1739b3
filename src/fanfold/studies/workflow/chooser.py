"""Who says which workflow is trained next: a surrogate, successive halving, chance, or a list."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fanfold.strategies.gp_ucb import Belief, Observation
from fanfold.strategy import Strategy
from fanfold.studies.workflow.spaces import Workflow, WorkflowSpace
from fanfold.types import Ok, Result

#: A workflow to be trained; each choice has a number of its own.
Arm: TypeAlias = tuple[Workflow, int]
#: Where an order is improved step by step: how many places it starts from, and the most steps.
STARTS, STEPS = 6, 20
#: Added to the merit of what probably complies, so that it comes before all that does not.
_FEASIBLE = 1e12
#: The bound of a space too large to list is that of one with so many arms.
MOST_ARMS = 1000


class Chooser(Strategy[Arm]):
    """Asks workflows, and is told trainings of them.

    The origin of a result says how the training stood: `learnt` from so many episodes, after a policy with `lineage`
    episodes behind it, where it `continued` from, and whether it `continues`.  To ask the workflow of such a training
    is to let it continue.
    """

    def instead(self, arm: Arm, other: Arm) -> None:
        """Take another arm than the one that was just asked for, because a record says so."""


class InTurn(Chooser):
    """These workflows in this order, once or again and again."""

    def __init__(self, workflows: Sequence[Workflow], again: bool = True) -> None:
        self.workflows, self.again = tuple(workflows), again

    def begin(self, seed: int) -> None:
        super().begin(seed)
        rounds = itertools.count() if self.again else range(1)
        self._arms = ((workflow, number) for number in rounds for workflow in self.workflows)

    def ask(self, n: int) -> list[Arm]:
        return list(itertools.islice(self._arms, n))


class Shuffled(Chooser):
    """Workflows drawn at random, none twice before all had their turn; nothing is learnt."""

    def __init__(self, space: WorkflowSpace) -> None:
        self.space = space

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._arms = self._drawn()

    def _drawn(self) -> Iterator[Arm]:
        for number in itertools.count():
            drawn = set[Workflow]()
            while len(drawn) < self.space.size:
                workflow = self.space.draw(self.rng)
                if workflow not in drawn:
                    drawn.add(workflow)
                    yield workflow, number

    def ask(self, n: int) -> list[Arm]:
        return list(itertools.islice(self._arms, n))


class HalvingChooser(Shuffled):
    """Successive halving without waiting: of all trainings that came as far, the better half continues.

    `rungs` are the episodes after which trainings pause.  Where none is to continue, another drawn workflow begins.
    """

    def __init__(self, space: WorkflowSpace, rungs: Sequence[int], threshold: float) -> None:
        super().__init__(space)
        self.rungs, self.threshold = tuple(rungs), threshold

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._reached: list[list[tuple[tuple[bool, float], Workflow]]] = [[] for _ in self.rungs]
        self._promoted: list[set[Workflow]] = [set() for _ in self.rungs]
        self._number = itertools.count(10**6)

    def ask(self, n: int) -> list[Arm]:
        return [self._best() or super(HalvingChooser, self).ask(1)[0] for _ in range(n)]

    def _best(self) -> Arm | None:
        for reached, promoted in reversed(list(zip(self._reached, self._promoted))):
            ranked = sorted(reached, key=lambda each: each[0], reverse=True)[: len(reached) // 2]
            for _, workflow in ranked:
                if workflow not in promoted:
                    promoted.add(workflow)
                    return workflow, next(self._number)
        return None

    def tell(self, result: Result[Arm]) -> None:
        standing = result.trial.origin or {}
        if result.score is None or not standing.get("continues"):
            return
        rung = next(number for number, limit in enumerate(self.rungs) if standing["learnt"] <= limit)
        rate = observed(result).constraint or 0.0
        workflow = self.space.canonical(result.candidate[0])
        self._promoted[rung].discard(workflow)
        self._reached[rung].append(((rate >= self.threshold, result.score), workflow))


class UpperBound(Chooser):
    """The workflow whose return could be highest among those that probably comply, as a surrogate sees it.

    The bound is the mean and sqrt(beta) deviations, beta = boldness * 2 log(arms * t² * pi² / (6 * delta)).  A bound
    alone (GP-UCB) trains the leader again and again, although what is to be recommended depends as much on who is next
    to it.  So small spaces are searched whole for two: the leader, which has the highest mean of all trained, and its
    rival, which has the highest bound of all others (LUCB, Kalyanakrishnan et al. 2012).  The one that is known less is
    asked.  In larger spaces the bound is improved step by step, from the best trained workflows and from drawn ones.
    When no workflow probably complies, the one that most probably does is asked.
    """

    def __init__(
        self,
        space: WorkflowSpace,
        full: int,
        threshold: float | None = None,
        *,
        feasibility: float = 0.3,
        boldness: float = 0.3,
        delta: float = 0.1,
    ) -> None:
        self.space, self.full, self.threshold = space, full, threshold
        self.feasibility, self.boldness, self.delta = feasibility, boldness, delta

    def begin(self, seed: int) -> None:
        from fanfold.studies.workflow.surrogate import Surrogate

        super().begin(seed)
        self.surrogate = Surrogate(self.space, self.full, self.threshold)
        self._pending: list[Workflow] = []
        #: Workflows whose training paused.
        self._paused: dict[Workflow, None] = {}
        self._origin: dict[Arm, dict[str, float]] = {}
        #: The order in which equal arms are asked.
        self._turn = self.rng.sample(self.space.arms, len(self.space.arms)) if self.space.arms else []

    def ask(self, n: int) -> list[Arm]:
        return [self._ask_one() for _ in range(n)]

    def _ask_one(self) -> Arm:
        workflow, believed = self._best()
        arm = workflow, len(self._origin)
        self._origin[arm] = believed
        self._pending.append(workflow)
        self._paused.pop(workflow, None)
        return arm

    def instead(self, arm: Arm, other: Arm) -> None:
        self._origin[other] = self._origin.pop(arm)
        self._pending.remove(arm[0])
        self._pending.append(self.space.canonical(other[0]))

    def _best(self) -> tuple[Workflow, dict[str, float]]:
        leader = self._leader()
        if self._paused:
            further = self._first(list(self._paused))
            # Less than the leader's mean need not continue.
            if further[1]["merit"] >= (0.0 if leader is None else leader[1] + _FEASIBLE):
                return further
        if not self._turn:
            return self._climbed()
        boldest = self._first(self._turn)
        if leader is None or boldest[1]["merit"] < _FEASIBLE / 2:
            return boldest
        known = self._first([leader[0]])
        rivals = [workflow for workflow in self._turn if workflow != leader[0]]
        rival = boldest if boldest[0] != leader[0] or not rivals else self._first(rivals)
        wanted = rival[1]["merit"] >= _FEASIBLE / 2 and rival[1]["deviation"] >= known[1]["deviation"]
        return rival if wanted else known

    def _climbed(self) -> tuple[Workflow, dict[str, float]]:
        """Where steps to ever higher bounds end."""
        trained = dict.fromkeys(each.workflow for each in self.surrogate.seen)
        known = self._ranked(list(trained))[: STARTS // 2]
        starts = [*known, *(self.space.canonical(self.space.draw(self.rng)) for _ in range(STARTS - len(known)))]
        best = self._first(starts)
        for start in starts:
            place = self._first([start])
            for _ in range(STEPS):
                following = self._first(list(dict.fromkeys([place[0], *self.space.neighbours(place[0])])))
                if following[0] == place[0]:
                    break
                place = following
            best = max(best, place, key=lambda each: each[1]["merit"])
        return self.space.canonical(best[0]), best[1]

    def _leader(self) -> tuple[Workflow, float] | None:
        """The trained workflow with the highest mean among those that probably comply, and its mean."""
        trained = list(dict.fromkeys(each.workflow for each in self.surrogate.seen))
        now = self.surrogate.beliefs(trained)
        means = [(workflow, float(now.mean[i])) for i, workflow in enumerate(trained) if now.feasible[i] >= 0.5]
        return max(means, key=lambda each: each[1], default=None)

    def _ranked(self, workflows: list[Workflow]) -> list[Workflow]:
        if not workflows:
            return []
        mean = self.surrogate.beliefs(workflows).mean
        return [workflows[i] for i in sorted(range(len(workflows)), key=lambda i: -mean[i])]

    def _first(self, workflows: Sequence[Workflow]) -> tuple[Workflow, dict[str, float]]:
        """The first of the best of these, with what is believed of it."""
        now = self.surrogate.beliefs(workflows, self._pending)
        bound = now.mean + math.sqrt(self._beta()) * now.deviation
        best, top = 0, (-math.inf, -math.inf)
        for i in range(len(workflows)):
            likely = now.feasible[i] >= self.feasibility
            # What probably complies comes before all that does not; less than rounding makes no difference.
            merit = (1.0, float(bound[i])) if likely else (0.0, float(now.feasible[i]))
            if merit[0] > top[0] or (merit[1] > top[1] + 1e-9 * max(1.0, abs(top[1])) and merit[0] == top[0]):
                best, top = i, merit
        names = {"bound": bound, "mean": now.mean, "deviation": now.deviation, "feasible": now.feasible}
        believed = {name: float(values[best]) for name, values in names.items()}
        return workflows[best], believed | {"merit": top[1] + _FEASIBLE * top[0]}

    def _beta(self) -> float:
        arms, t = min(len(self._turn) or MOST_ARMS, MOST_ARMS), len(self._origin) + 1
        return max(0.0, self.boldness * 2.0 * math.log(arms * t * t * math.pi**2 / (6.0 * self.delta)))

    def tell(self, result: Result[Arm]) -> None:
        workflow = self.space.canonical(result.candidate[0])
        if workflow in self._pending:
            self._pending.remove(workflow)
        standing = result.trial.origin or {}
        if standing.get("continues"):
            self._paused[workflow] = None
        if result.score is None:
            if self.surrogate.seen:  # as bad as the worst so far
                worst = min(self.surrogate.seen, key=lambda each: each.result.value)
                self.surrogate.observe(workflow, self.full, 0, worst.result)
            return
        seen = observed(result)
        learnt, lineage = standing.get("learnt", self.full), standing.get("lineage", 0)
        self.surrogate.observe(workflow, learnt, lineage, seen, standing.get("continued", 0))

    def origin(self, candidate: Arm) -> dict[str, float] | None:
        """What was believed of an arm when it was asked: `bound`, `mean`, `deviation`, `feasible`."""
        believed = self._origin.get(candidate)
        return believed and {name: value for name, value in believed.items() if name != "merit"}

    def beliefs(self) -> list[Belief[Workflow]]:
        """What is believed now of all workflows, or of those trained where there are too many."""
        trained = dict.fromkeys(each.workflow for each in self.surrogate.seen)
        workflows = list(self.space.arms or trained)
        now = self.surrogate.beliefs(workflows)
        return [
            Belief(workflow, float(now.mean[i]), float(now.deviation[i]), float(now.feasible[i]), workflow in trained)
            for i, workflow in enumerate(workflows)
        ]

    def best(self) -> Belief[Workflow] | None:
        """The trained workflow with the highest mean among those more probably compliant than not, if there is one."""
        fit_for_use = [each for each in self.beliefs() if each.told and each.feasible >= 0.5]
        return max(fit_for_use, key=lambda each: each.mean, default=None)


def observed(result: Result[Any]) -> Observation:
    """The return and the compliance of a training, each with the variance of its measurement."""
    outcome = next(iter(result.outcomes.values()))
    assert isinstance(outcome, Ok) and result.score is not None
    data = outcome.data
    return Observation(result.score, data["return_variance"], rate_shown(data), data["compliance_variance"])


def rate_shown(data: Mapping[str, Any]) -> float:
    """The compliance of a training; what fixed nothing has the middle of an interval from 0 to 1."""
    low, high = data["compliance_interval"]
    return float((low + high) / 2.0 if data["compliance"] is None else data["compliance"])
