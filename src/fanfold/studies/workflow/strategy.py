"""The search over workflows: which one is trained next, with how many episodes, and whose policy it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fanfold.identity import formerly
from fanfold.strategy import Strategy
from fanfold.studies.workflow.chooser import Arm, Chooser, observed
from fanfold.studies.workflow.evaluator import Train
from fanfold.studies.workflow.spaces import Workflow, WorkflowSpace, show
from fanfold.types import Blob, Ok, Result, Trial


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A policy that others may begin with, and how many episodes it learnt from, those before it included."""

    workflow: Workflow
    visit: int
    agent: Blob
    merit: tuple[bool, float]
    lineage: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A training that may continue: how it was asked for, what it learnt from, and the state of its learner."""

    train: Train
    learnt: int
    lineage: int
    state: Blob


@dataclass(frozen=True)
class SearchPlan:
    """How many episodes a search has, and how it spends them.

    `total` are all episodes, `rungs` those after which a training pauses, the last those of a whole one, and `least`
    the fewest that make a training.
    """

    total: int
    rungs: tuple[int, ...]
    least: int = 1
    threshold: float = 0.9
    inherit: bool = True
    finale: float = 0.0
    window: int = 4
    synchronous: bool = False

    @property
    def fewest(self) -> int:
        return min(self.least, self.rungs[-1], self.total)


@formerly("Search")
class WorkflowSearch(Strategy[Train]):
    """Lets a chooser say which workflow is next, and trains it with what is left of all episodes.

    What was told was used, and what is under way may yet be used: both together are never more than `total`, and what a
    training did not use is there for others.  A training that failed counts as used.  A training pauses after as many
    episodes as each of `rungs` says; when its workflow is chosen again, it continues as if it had not paused.  With
    `inherit`, a workflow begins with the best policy of the nearest one trained so far, itself if it is among them, but
    never twice with the same one: what learnt nothing more from there before would not do so now.  When it has begun
    with all of them, it begins with fresh weights.

    The last share `finale` of all episodes is not for choosing: in one thorough training they make the best compliant
    policy better.  (Many short ones do much less: step sizes fall in the course of a training.)  With `synchronous`,
    nothing is chosen before all that was chosen together is told.
    """

    candidate_type = Train

    def __init__(self, space: WorkflowSpace, chooser: Chooser, plan: SearchPlan) -> None:
        self.space, self.chooser, self.plan, self.window = space, chooser, plan, plan.window

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self.chooser.begin(seed)
        self.left = self.plan.total
        #: Trainings under way and, with `synchronous`, how many may yet be asked of those that are chosen together.
        self._under_way = self._batch = 0
        self._visits: dict[Workflow, int] = {}
        #: The best policies, the training that paused, and which policies it has begun with, by canonical workflow.
        self._trained: dict[Workflow, TrainedPolicy] = {}
        self._paused: dict[Workflow, Pause] = {}
        self._given: set[tuple[Workflow, str]] = set()
        #: Of every training: the arm the chooser named, if it did, and what was believed and inherited.
        self._chosen: dict[tuple[Workflow, int, int], tuple[Arm | None, dict[str, Any]]] = {}

    def ask(self, n: int) -> Sequence[Train]:
        if self.plan.synchronous:
            self._batch = self._batch if self._under_way else self.window
            n = min(n, self._batch)
        trainings: list[Train] = []
        while len(trainings) < n and self.left >= self.plan.fewest:
            leader = self._leader()
            if leader is not None:
                last = self._begin((leader.workflow, -1), leader, {"finale": True}, (self.left,))
                trainings.append(replace(last, thorough=True))
                continue
            arms = self.chooser.ask(1)
            if not arms:
                break
            trainings.append(self._next(arms[0]))
        self._batch -= len(trainings)
        return trainings

    def _next(self, arm: Arm) -> Train:
        """The workflow's training that paused, continued; or a new one."""
        believed = self.chooser.origin(arm) or {}
        pause = self._paused.pop(self.space.canonical(arm[0]), None)
        if pause is None:
            return self._begin(arm, self._nearest(arm[0]), believed, self.plan.rungs)
        before, schedule = pause.learnt, pause.train.schedule or pause.train.episodes
        until = min(next(rung for rung in (*self.plan.rungs, schedule) if rung > before), schedule)
        episodes = until - before if until - before <= self.left else self.left - self.left % self.plan.fewest
        train = replace(pause.train, episodes=episodes, inherited=None, learnt=before, state=pause.state)
        return self._asked(arm, train, {**believed, "lineage": pause.lineage})

    def _begin(
        self, arm: Arm, parent: TrainedPolicy | None, believed: Mapping[str, Any], rungs: Sequence[int]
    ) -> Train:
        workflow = arm[0]
        visit = self._visits.get(workflow, 0)
        self._visits[workflow] = visit + 1
        whole, first = min(rungs[-1], self.left), min(rungs[0], self.left)
        train = Train(workflow, visit, first, schedule=None if whole == first else whole)
        if parent is None:
            return self._asked(arm, train, believed)
        apart = self.space.distance(workflow, parent.workflow)
        inherited = {"parent": show(parent.workflow), "parent_visit": parent.visit, "distance": apart}
        train = replace(train, parent=parent.workflow, inherited=parent.agent)
        return self._asked(arm, train, {**believed, **inherited, "lineage": parent.lineage})

    def _asked(self, arm: Arm, train: Train, origin: Mapping[str, Any]) -> Train:
        self.left -= train.episodes
        self._under_way += 1
        self._chosen[_key(train)] = (None if arm[1] < 0 else arm), dict(origin)
        return train

    def _leader(self) -> TrainedPolicy | None:
        """The best compliant policy, when what is left is for it alone."""
        if self.left > self.plan.finale * self.plan.total:
            return None
        compliant = [policy for policy in self._trained.values() if policy.merit[0]]
        return max(compliant, key=lambda policy: policy.merit, default=None)

    def _nearest(self, workflow: Workflow) -> TrainedPolicy | None:
        wanted = self.space.canonical(workflow)
        new = {
            other: policy for other, policy in self._trained.items() if (wanted, policy.agent.digest) not in self._given
        }
        nearest = self.space.nearest(wanted, new) if self.plan.inherit else None
        if nearest is None:
            return None
        self._given.add((wanted, new[nearest].agent.digest))
        return new[nearest]

    def origin(self, candidate: Train) -> Any:
        """What was believed of the workflow when it was chosen, and whose policy it began with."""
        return self._chosen.get(_key(candidate), (None, None))[1]

    def follow(self, asked: Train, recorded: Mapping[str, Any]) -> Train | None:
        """The training that version 0.1.0 recorded in the place of one that was just asked; None: it must be the same.

        That version chose in another way, and its trainings never paused.
        """
        if "schedule" in recorded:
            return None
        arm, _ = self._chosen.pop(_key(asked))
        self._under_way -= 1
        self._visits[asked.workflow] -= 1
        self.left += asked.episodes
        train = msgspec.convert(recorded, Train)
        self._visits[train.workflow] = train.visit + 1
        other = (train.workflow, -1 if arm is None or train.thorough else arm[1])
        if arm is not None:
            self.chooser.instead(arm, other)
        return self._asked(other, train, {})

    def tell(self, result: Result[Train]) -> None:
        train = result.candidate
        arm, origin = self._chosen.get(_key(train), (None, {}))
        self._under_way -= 1
        data, lineage = report(result), origin.get("lineage", 0)
        standing = {
            "learnt": train.learnt + train.episodes,
            "lineage": lineage,
            "continues": False,
            "continued": train.learnt,
        }
        if data is not None:
            self.left += train.episodes - data["episodes"]
            standing["learnt"] = train.learnt + data["episodes"]
            self._remember(result, data, standing["learnt"] + lineage)
            if data.get("state") is not None:
                standing["continues"] = True
                pause = Pause(train, standing["learnt"], lineage, data["state"])
                self._paused[self.space.canonical(train.workflow)] = pause
        if arm is not None:
            self.chooser.tell(replace(result, trial=Trial(result.number, arm, standing)))  # type: ignore[arg-type]

    def _remember(self, result: Result[Train], data: Mapping[str, Any], lineage: int) -> None:
        train, score = result.candidate, result.score or 0.0
        merit = (observed(result).constraint or 0.0) >= self.plan.threshold, score
        wanted = self.space.canonical(train.workflow)
        if wanted not in self._trained or merit > self._trained[wanted].merit:
            self._trained[wanted] = TrainedPolicy(train.workflow, train.visit, data["agent"], merit, lineage)


def _key(train: Train) -> tuple[Workflow, int, int]:
    return train.workflow, train.visit, train.learnt


def report(result: Result[Any]) -> Mapping[str, Any] | None:
    """What a training gave back; None where it failed."""
    outcome = next(iter(result.outcomes.values()), None)
    data: Mapping[str, Any] | None = outcome.data if isinstance(outcome, Ok) else None
    return data
