"""The training of one workflow, from its first episode to the policy it ends with: what a cell of the search does."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from fanfold import stats
from fanfold.encoding import derive_seed, encode
from fanfold.identity import formerly
from fanfold.rl.collect import Collect
from fanfold.rl.failures import commonest, failed_in
from fanfold.rl.learner import Learner, LearningPlan
from fanfold.rl.ppo import Ppo
from fanfold.stats import Interval
from fanfold.studies.workflow.collect import Cage2Collector, context_of
from fanfold.studies.workflow.compliance import Compliance, Stopping
from fanfold.studies.workflow.own import EpisodesFailed, KeptCollector
from fanfold.studies.workflow.spaces import show
from fanfold.tensors import Arrays, pack, unpack
from fanfold.types import Blob, Case, Failed, Ok, Result, Trial

#: Plays the episodes of a workflow, and says how well they kept to it.
WorkflowCollector: TypeAlias = Cage2Collector | KeptCollector
#: What the arrays of an optimiser are called in the blob of a policy.
MOMENTS = "adam:"


@dataclass(frozen=True)
class Train:
    """A workflow to be trained with at most so many episodes.

    `visit` counts how often it was trained before.  `inherited` is the policy it begins with, made for `parent`.  A
    `thorough` training uses all its episodes.  One with a `schedule` pauses before it is whole, which is after so many
    episodes, and continues from `state`, where it had `learnt` from some of them.
    """

    workflow: tuple[str, ...]
    visit: int
    episodes: int
    parent: tuple[str, ...] | None = None
    inherited: Blob | None = None
    thorough: bool = False
    schedule: int | None = None
    learnt: int = 0
    state: Blob | None = None

    @property
    def until(self) -> int:
        """The episodes learnt from when this part of the training ends."""
        return self.learnt + self.episodes


@dataclass(frozen=True, slots=True)
class Look:
    """What a policy did on held-out episodes, after learning from so many."""

    episodes: int
    returns: Interval
    compliance: Compliance

    @property
    def error(self) -> float:
        """The standard error of the mean return."""
        reach = (self.returns.high - self.returns.low) / 2.0
        return reach / stats.normal_quantile(0.5 + self.returns.level / 2.0) if math.isfinite(reach) else 0.0


@dataclass
class Lesson:
    """What there is to remember of a training that is under way."""

    curve: list[list[float]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    #: The weights that did best in a look, and how well.
    best: Arrays = field(default_factory=dict)
    merit: tuple[bool, float] = (False, -math.inf)
    stopped: str | None = None
    #: Why episodes that were to be learnt from failed, each.
    failed: list[str] = field(default_factory=list)


@formerly("fanfold.studies.workflow.apprentice.Apprentice")
@dataclass(frozen=True)
class WorkflowTrainer:
    """Trains a workflow and gives back its policy, scored by its mean return on held-out episodes.

    Every few updates there is a look at held-out episodes.  A policy that keeps to its workflow surely enough is
    compliant, but not yet good: it continues to learn until its return has not improved for `stopping.patience` looks
    (`compliant`).  One that does not is given up when its compliance has not improved for as long (`patience`).  Both
    end when their episodes are used up (`budget`); thorough ones and, without `early`, all of them only then.  Of the
    last policy, the averaged one and the best that a look has seen, sampled and greedy, the best of those that comply
    is kept; it is scored on other episodes than it was chosen by.  All of it follows from the candidate and the case's
    seed.  A training that pauses learns exactly what it would have learnt without the pause.
    """

    collector: WorkflowCollector
    ppo: Ppo = field(default_factory=Ppo)
    stopping: Stopping = field(default_factory=Stopping)
    per_update: int = 100
    #: Updates from one look to the next; episodes of a look, and of the score.
    every: int = 5
    look: int = 256
    held_out: int = 1024
    early: bool = True
    #: How far the step sizes have fallen where a policy is inherited: what it knows is not to be shaken off.
    settled: float = 0.2
    keep_optimiser: bool = False

    def __call__(self, candidate: Train, case: Case) -> Ok:
        seed = case.seed or 0
        training = derive_seed(seed, "train", show(candidate.workflow), candidate.visit)
        collector, lesson = replace(self.collector, workflow=candidate.workflow), Lesson()
        learner = self._learner(candidate, collector, training)
        while lesson.stopped is None:
            lesson.curve.append(self._update(lesson, learner, collector, training))
            if learner.version % self.every == 0 or learner.counts.told >= candidate.until:
                self._look(lesson, learner, collector, candidate, derive_seed(seed, "look"))
        return self._outcome(candidate, learner, collector, seed, lesson)

    def _learner(self, candidate: Train, collector: WorkflowCollector, seed: int) -> Learner:
        """The policy that a training begins or continues with, ready to learn."""
        inherited, every = candidate.inherited, self.per_update
        total = candidate.until if candidate.schedule is None else candidate.schedule
        begun = 0.0 if candidate.parent is None else self.settled
        network, context = collector.network(self.ppo.hidden), collector.context
        learner = Learner(LearningPlan(network, total, every, every, 1, self.ppo, context, begun=begun))
        learner.begin(derive_seed(seed, "learn"))
        if candidate.state is not None:
            learner.load(candidate.state.read())
        elif inherited is not None:
            arrays = unpack(inherited.read())
            moments = {name[len(MOMENTS) :]: arrays.pop(name) for name in list(arrays) if name.startswith(MOMENTS)}
            learner.take_over(moved(arrays, candidate.parent, candidate.workflow), moments)
        return learner

    def _update(self, lesson: Lesson, learner: Learner, collector: WorkflowCollector, seed: int) -> list[float]:
        """One update: its episodes, their mean return and bonus, the fixes that counted and those that kept to it."""
        (block,) = learner.ask(1)
        outcome = collector(block, Case("training", None, seed))
        if isinstance(outcome, Failed):
            raise RuntimeError(outcome.message)
        learner.tell(Result(Trial(learner.version, block), outcome.score, {"training": outcome}))
        data = outcome.data
        lesson.failed += map(str, failed_in(data))
        bonus = data["bonus"] / block.episodes
        return [block.episodes, round(outcome.score, 6), round(bonus, 6), sum(data["fixes"]), sum(data["kept"])]

    def _look(
        self, lesson: Lesson, learner: Learner, collector: WorkflowCollector, candidate: Train, seed: int
    ) -> None:
        """See how far it has come, and decide whether that is enough."""
        looks, before = lesson.looks, candidate.learnt // (self.every * self.per_update)
        number = before + len(looks)
        numbers = range(number * self.look, (number + 1) * self.look)
        seen = self._played(learner.weights, collector, False, numbers, seed, self.stopping.level_at(number + 1))
        looks.append(replace(seen, episodes=learner.counts.told))
        if self._merit(seen) > lesson.merit:
            lesson.merit, lesson.best = self._merit(seen), learner.weights
        lesson.stopped = self.decide(looks, candidate.until, candidate.thorough)

    def _played(
        self,
        weights: Arrays,
        collector: WorkflowCollector,
        greedy: bool,
        numbers: range,
        seed: int,
        level: float = 0.95,
    ) -> Look:
        block = Collect(0, Blob.of(pack(weights)), numbers.start, len(numbers), collector.context, greedy, False)
        returns, compliance = collector.watch(block, weights, numbers, seed, level)
        return Look(0, stats.mean(returns.tolist()), compliance)

    def decide(self, looks: Sequence[Look], budget: int, thorough: bool = False) -> str | None:
        """Why to stop after these looks, or None to continue."""
        if looks[-1].episodes >= budget:
            return "budget"
        first = self.compliant_at(looks)
        if thorough or not self.early:
            return None
        if first is None:
            return self.stopping.decide([look.compliance.rate for look in looks], 0)
        return "compliant" if _waited(looks[first:]) >= self.stopping.patience else None

    def compliant_at(self, looks: Sequence[Look]) -> int | None:
        """The number of the first look that showed the policy to be compliant."""
        return next((n for n, look in enumerate(looks) if look.compliance.rate.low >= self.stopping.threshold), None)

    def _outcome(
        self, candidate: Train, learner: Learner, collector: WorkflowCollector, seed: int, lesson: Lesson
    ) -> Ok:
        looks, weights = lesson.looks, {"last": learner.weights, "averaged": learner.slow, "best": lesson.best}
        kinds = [(kind, greedy) for kind in weights for greedy in (False, True)]
        tried = {}
        for kind, greedy in kinds:
            # Where the environment always fails under one of them, another may do.
            with contextlib.suppress(EpisodesFailed):
                numbers = range(2 * self.look)
                tried[kind, greedy] = self._played(
                    weights[kind], collector, greedy, numbers, derive_seed(seed, "choose")
                )
        if not tried:
            raise EpisodesFailed("under every policy of the training, all episodes failed")
        kind, greedy = max(tried, key=lambda each: self._merit(tried[each]))
        scored = self._played(weights[kind], collector, greedy, range(self.held_out), derive_seed(seed, "score"))
        arrays = dict(weights[kind])
        if self.keep_optimiser:
            arrays |= {f"{MOMENTS}{name}": array for name, array in learner.adam.state.items()}
        first = self.compliant_at(looks)
        pauses = lesson.stopped == "budget" and learner.counts.told < learner.plan.total
        data = {
            **described(scored),
            "return_variance": scored.error**2,
            "compliance_variance": scored.compliance.observed()[1],
            "episodes": learner.counts.told - candidate.learnt,
            "held_out_episodes": (len(looks) + 2 * len(kinds)) * self.look + self.held_out,
            "stopped": "pause" if pauses else lesson.stopped,
            "compliant_at": None if first is None else looks[first].episodes,
            "compliant_return": None if first is None else looks[first].returns.estimate,
            "policy": f"{kind}, {'greedy' if greedy else 'sampled'}",
            "greedy": greedy,
            "curve": lesson.curve,
            "looks": [
                [each.episodes, each.returns.estimate, each.compliance.rate.estimate, each.compliance.rate.low]
                for each in looks
            ],
            "agent": Blob.of(pack(arrays)),
        }
        if lesson.failed:
            data |= {"failed_episodes": len(lesson.failed), "failure": commonest(lesson.failed)}
        if pauses:
            data["state"] = Blob.of(learner.save())
        if (episode := collector.drawn(weights[kind], greedy, derive_seed(seed, "score"))) is not None:
            data["episode"] = Blob.of(encode(episode.data).encode())
        return Ok(scored.returns.estimate or 0.0, data)

    def _merit(self, look: Look) -> tuple[bool, float]:
        rate = look.compliance.observed()[0]
        return rate >= self.stopping.threshold, look.returns.estimate or 0.0


def _waited(looks: Sequence[Look]) -> int:
    """How many looks ago the return was last better than the best before by more than chance."""
    best, since = -math.inf, 0
    for number, look in enumerate(looks):
        mean = look.returns.estimate or 0.0
        if mean > best + look.error:
            best, since = mean, number
    return len(looks) - 1 - since


def described(look: Look) -> dict[str, Any]:
    """Returns and compliance with their intervals, as plain values."""
    figures: dict[str, Any] = {}
    rates = (("compliance", look.compliance.rate), ("contested", look.compliance.contested))
    for name, interval in (("return", look.returns), *rates):
        limits = None if interval is None else [interval.low, interval.high]
        figures |= {name: None if interval is None else interval.estimate, f"{name}_interval": limits}
    return figures | {"original": look.compliance.original, "fixes": look.compliance.fixes}


def moved(weights: Arrays, parent: Sequence[str] | None, workflow: Sequence[str]) -> Arrays:
    """A policy made for one workflow as one for another that does the same at first.

    The networks are told their workflow by inputs that never change, so what those inputs add is part of the bias.
    """
    import numpy as np

    told = np.subtract(context_of(parent), context_of(workflow))
    changed = dict(weights)
    if not len(told):
        return changed
    for net in ("policy", "value"):
        first, bias = weights[f"{net}.0.weight"], weights[f"{net}.0.bias"]
        changed[f"{net}.0.bias"] = (bias + told @ first[-len(told) :].astype(np.float64)).astype(np.float32)
    return changed
