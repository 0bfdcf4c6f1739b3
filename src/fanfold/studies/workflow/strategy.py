"""The search over workflows: which one is trained next, with how many episodes, and whose policy it begins with."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fanfold.identity import formerly
from fanfold.strategies import Sweep
from fanfold.strategies.gp_ucb import GpUcb, Observation
from fanfold.strategy import Strategy
from fanfold.studies.workflow.evaluator import Train
from fanfold.studies.workflow.orders import DECAYS, Workflow, kendall, mallows, nearest_workflow, orders, show
from fanfold.types import Blob, Ok, Result, Trial

#: A workflow to be trained; equal ones that are to be trained again have different numbers.
Arm: TypeAlias = tuple[Workflow, int]


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A policy that others may begin with."""

    workflow: Workflow
    visit: int
    agent: Blob
    merit: tuple[bool, float]


@formerly("Search")
class WorkflowSearch(Strategy[Train]):
    """Lets a chooser say which workflow is next, and trains it with what is left of all episodes.

    What was told was used, and what is under way may yet be used: both together are never more than `total`, and what a
    training did not use is there for others.  A training that failed counts as used.  With `inherit`, a workflow begins
    with the best policy of the nearest one trained so far, itself if it is among them, but never twice with the same
    one: what learnt nothing more from there before would not do so now.  When it has begun with all of them, it begins
    with fresh weights.  Types in `ignore`, of which red can hold no machine, do not count.

    The last share `finale` of all episodes is not for choosing: in one thorough training they make the best compliant
    policy better.  (Many short ones do much less: step sizes fall in the course of a training.)
    """

    candidate_type = Train

    def __init__(
        self,
        chooser: Strategy[Arm],
        total: int,
        most: int,
        least: int = 1,
        *,
        threshold: float = 0.9,
        inherit: bool = True,
        ignore: Sequence[str] = (),
        finale: float = 0.0,
        window: int = 4,
    ) -> None:
        self.chooser = chooser
        self.finale = finale
        self.total = total
        self.most = most
        self.least = min(least, most, total)
        self.threshold = threshold
        self.inherit = inherit
        self.ignore = tuple(ignore)
        self.window = window

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self.chooser.begin(seed)
        self.left = self.total
        self._visits: dict[Workflow, int] = {}
        #: The best policies, by what is left of their workflows without the types that do not count.
        self._trained: dict[Workflow, TrainedPolicy] = {}
        #: Which policies each of these has begun with.
        self._given: set[tuple[Workflow, str]] = set()
        #: Of every training: the arm the chooser named, if it did, and what was believed and inherited.
        self._chosen: dict[tuple[Workflow, int], tuple[Arm | None, dict[str, Any]]] = {}

    def ask(self, n: int) -> Sequence[Train]:
        trainings: list[Train] = []
        while len(trainings) < n and self.left >= self.least:
            leader = self._leader()
            if leader is not None:
                last = self._train((leader.workflow, -1), leader, {"finale": True}, self.left)
                trainings.append(replace(last, thorough=True))
                continue
            arms = self.chooser.ask(1)
            if not arms:
                break
            believed = self.chooser.origin(arms[0]) or {}
            trainings.append(self._train(arms[0], self._nearest(arms[0][0]), believed, min(self.most, self.left)))
        return trainings

    def _leader(self) -> TrainedPolicy | None:
        """The best compliant policy, when what is left is for it alone."""
        if self.left > self.finale * self.total:
            return None
        compliant = [each for each in self._trained.values() if each.merit[0]]
        return max(compliant, key=lambda each: each.merit, default=None)

    def _train(self, arm: Arm, parent: TrainedPolicy | None, believed: Mapping[str, Any], budget: int) -> Train:
        workflow, number = arm
        visit = self._visits.get(workflow, 0)
        self._visits[workflow] = visit + 1
        self.left -= budget
        inherited: dict[str, Any] = {}
        if parent is not None:
            apart = kendall(workflow, parent.workflow, self.ignore)
            inherited = {"parent": show(parent.workflow), "parent_visit": parent.visit, "distance": apart}
        self._chosen[workflow, visit] = (None if number < 0 else arm), {**believed, **inherited}
        if parent is None:
            return Train(workflow, visit, budget)
        return Train(workflow, visit, budget, parent.workflow, parent.agent)

    def _nearest(self, workflow: Workflow) -> TrainedPolicy | None:
        wanted = self._bare(workflow)
        new = {bare: each for bare, each in self._trained.items() if (wanted, each.agent.digest) not in self._given}
        nearest = nearest_workflow(wanted, new) if self.inherit else None
        if nearest is None:
            return None
        self._given.add((wanted, new[nearest].agent.digest))
        return new[nearest]

    def _bare(self, workflow: Workflow) -> Workflow:
        """The workflow with the types that do not count moved to its end: what asks for the same fixes is the same."""
        return (*(unit for unit in workflow if unit not in self.ignore), *self.ignore)

    def origin(self, candidate: Train) -> Any:
        """What was believed of the workflow when it was chosen, and whose policy it began with."""
        return self._chosen.get((candidate.workflow, candidate.visit), (None, None))[1]

    def tell(self, result: Result[Train]) -> None:
        told = result.candidate
        data = report(result)
        if data is not None:
            self.left += told.episodes - data["episodes"]
            self._keep(told, result.score or 0.0, data)
        arm, _ = self._chosen.get((told.workflow, told.visit), (None, None))
        if arm is not None:  # chosen by the chooser
            self.chooser.tell(replace(result, trial=Trial(result.number, arm)))  # type: ignore[arg-type]

    def _keep(self, told: Train, score: float, data: Mapping[str, Any]) -> None:
        merit = (observed(data, score).constraint or 0.0) >= self.threshold, score
        known = self._trained.get(self._bare(told.workflow))
        if known is None or merit > known.merit:
            self._trained[self._bare(told.workflow)] = TrainedPolicy(told.workflow, told.visit, data["agent"], merit)


def report(result: Result[Any]) -> Mapping[str, Any] | None:
    """What a training gave back; None where it failed."""
    outcome = next(iter(result.outcomes.values()), None)
    data: Mapping[str, Any] | None = outcome.data if isinstance(outcome, Ok) else None
    return data


def observed(data: Mapping[str, Any], score: float) -> Observation:
    """The return and the compliance of a training, each with the variance of its measurement.

    A policy that fixed nothing has shown nothing: its rate is the middle of an interval from 0 to 1.
    """
    low, high = data["compliance_interval"]
    rate = (low + high) / 2.0 if data["compliance"] is None else data["compliance"]
    return Observation(score, data["return_variance"], rate, data["compliance_variance"])


def read(result: Result[Any]) -> Observation:
    data = report(result)
    assert data is not None and result.score is not None
    return observed(data, result.score)


def gp_ucb(threshold: float, ignore: Sequence[str] = (), visits: int = 3) -> GpUcb[Arm]:
    """All orders, each as often as `visits` says, chosen by the bound of a process over Kendall's distances."""
    arms = [(workflow, number) for number in range(visits) for workflow in orders()]
    return GpUcb(arms, functools.partial(_kernel, tuple(ignore), visits), DECAYS, read=read, threshold=threshold)


def _kernel(ignore: Sequence[str], visits: int, decay: float) -> Any:
    import numpy as np

    return np.tile(mallows(orders(), decay, ignore), (visits, visits))


class Shuffled(Strategy[Arm]):
    """The workflows in an order drawn at random, then again in another one, without end; nothing is learnt."""

    def __init__(self, workflows: Iterable[Workflow]) -> None:
        self.workflows = tuple(workflows)

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._arms = self._drawn()

    def _drawn(self) -> Iterator[Arm]:
        for number in itertools.count():
            yield from ((workflow, number) for workflow in self.rng.sample(self.workflows, len(self.workflows)))

    def ask(self, n: int) -> list[Arm]:
        return list(itertools.islice(self._arms, n))


def given(workflows: Sequence[Workflow], again: bool = True) -> Sweep[Arm]:
    """These workflows in this order, once or again and again."""
    return Sweep(functools.partial(_rounds, tuple(workflows), again))


def _rounds(workflows: Sequence[Workflow], again: bool) -> Iterator[Arm]:
    rounds = itertools.count() if again else range(1)
    return ((workflow, number) for number in rounds for workflow in workflows)
