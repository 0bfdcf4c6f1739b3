"""What is believed of workflows after some trainings: Gaussian processes that know noise, progress and inheritance.

A training is a point: the workflow's features, how far it was trained, and how much training it inherited.  What the
last two are worth is estimated together with what the workflows are worth, and beliefs are about a whole training
without inheritance.  So a workflow is neither blamed for a short training nor credited for a good start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fanfold.strategies.gaussian_process import Conditioned, Fit, conditioned, fit
from fanfold.strategies.gp_ucb import Observation
from fanfold.studies.workflow.spaces import Workflow, WorkflowSpace

if TYPE_CHECKING:
    from fanfold.strategies.gaussian_process import Array

    #: Of trainings: the features of their workflows, how short they were, and how much they inherited.
    Points: TypeAlias = tuple[Array, Array, Array]

#: How fast the correlation of two workflows falls with their distance, from nearly linear to every one for itself.
SCALES = (0.5, 1.5, 3.5, 7.5, 15.0)
#: Where workflows are too many to list, few trainings can only show what many workflows have in common.
SMOOTH = (0.5, 1.0, 2.0, 3.5)
#: How much of what a workflow is worth shows in a training half as long, as a correlation.
SHORTER = 0.5
#: How much more noise there is in a training half as long, as a share of the variance of all returns.
UNSTEADY = 0.5
#: Prior variance of what a training's length and its inheritance are worth, in units of the workflows' variance.
TREND = 4.0
#: Repeated trainings of one workflow say how noisy it is; so many of the common kind count beside them.
PRIOR_REPEATS = 3.0


@dataclass(frozen=True, eq=False)
class WorkflowBeliefs:
    """Of some workflows: mean and deviation of the return after a whole training, and how probably it complies."""

    mean: Array
    deviation: Array
    feasible: Array


@dataclass(frozen=True, slots=True)
class Seen:
    """One training: its workflow, how short it was and how much it inherited, and what it showed."""

    workflow: Workflow
    shortness: float
    inherited: float
    result: Observation


class Surrogate:
    """Believes in returns and, with a threshold, in compliance; a whole training has `full` episodes."""

    def __init__(self, space: WorkflowSpace, full: int, threshold: float | None = None) -> None:
        self.space, self.full, self.threshold = space, full, threshold
        self.scales = SCALES if space.arms else SMOOTH
        self.seen: list[Seen] = []
        #: Of what was observed so far: the settings of each process, and each process with some trainings pending.
        self._fits: dict[str, Fit] = {}
        self._known: dict[tuple[str, tuple[Workflow, ...]], tuple[Points, float, float, Conditioned]] = {}

    def observe(self, workflow: Workflow, learnt: int, lineage: int, result: Observation, continued: int = 0) -> None:
        """A training that learnt from so many episodes, after a policy with so many behind it.

        One that `continued` after so many episodes takes the place of what it showed at that time.
        """
        workflow, shortness = self.space.canonical(workflow), self._shortness(learnt)
        before = [
            each for each in self.seen if (each.workflow, each.shortness) == (workflow, self._shortness(continued))
        ]
        if continued and before:
            self.seen.remove(before[-1])
        self.seen.append(Seen(workflow, shortness, math.log2(1.0 + lineage / self.full), result))
        self._fits.clear()
        self._known.clear()

    def _shortness(self, learnt: int) -> float:
        return max(0.0, math.log2(self.full / max(learnt, 1)))

    def beliefs(self, workflows: Sequence[Workflow], pending: Sequence[Workflow] = ()) -> WorkflowBeliefs:
        """What is believed of these workflows, as sure as it will be once the pending ones are trained."""
        wanted = self.space.rows(workflows)
        mean, deviation = self._believe("return", wanted, pending)
        feasible = np.ones(len(workflows))
        if self.threshold is not None and self.seen and None not in [each.result.constraint for each in self.seen]:
            level, spread = self._believe("rate", wanted, pending)
            gaps = (level - self.threshold) / np.maximum(spread, 1e-9)
            feasible = np.array([0.5 * math.erfc(-gap / math.sqrt(2.0)) for gap in gaps])
        return WorkflowBeliefs(mean, deviation, feasible)

    def _observed(self, what: str, shortness: Array) -> tuple[Array, Array]:
        """Returns or rates, and the variance of each beyond the common noise."""
        if what == "rate":
            pairs = [(each.result.constraint, each.result.constraint_variance) for each in self.seen]
            rates, errors = np.array(pairs, np.float64).reshape(-1, 2).T
            return rates, errors
        values = compressed(self._values(), shortness)
        return values, self._noises(values) + UNSTEADY * shortness * float(np.var(values) if len(values) else 0.0)

    def _values(self) -> Array:
        """The returns; what does not comply counts as no better than the best that does."""
        values = np.array([each.result.value for each in self.seen])
        least = -math.inf if self.threshold is None else self.threshold
        complies = [each.result.constraint is None or each.result.constraint >= least for each in self.seen]
        return np.minimum(values, values[complies].max()) if any(complies) else values

    def _points(self) -> Points:
        rows = self.space.rows([each.workflow for each in self.seen])
        shortness, inherited = (
            np.array([getattr(each, name) for each in self.seen]) for name in ("shortness", "inherited")
        )
        return rows, shortness, inherited

    def _believe(self, what: str, wanted: Array, pending: Sequence[Workflow]) -> tuple[Array, Array]:
        """Mean and deviation of whole trainings without inheritance."""
        key = what, tuple(pending)
        if key not in self._known:
            self._known[key] = self._condition(what, pending)
        points, amplitude, scale, known = self._known[key]
        return known.at(amplitude * _covariance(points, _whole(wanted), scale), amplitude)

    def _condition(self, what: str, pending: Sequence[Workflow]) -> tuple[Points, float, float, Conditioned]:
        """Pending trainings count as observed to be what is expected of them: means stay, deviations shrink."""
        points, n = self._points(), len(self.seen)
        values, noises = self._observed(what, points[1])
        if what not in self._fits:
            self._fits[what] = _fitted(points, values, noises, self.scales)
        fitted = self._fits[what]
        amplitude, scale = fitted.amplitude, self.scales[fitted.scale]
        points = _joined(points, _whole(self.space.rows(pending)))
        prior = amplitude * _covariance(points, points, scale)
        spread = fitted.noise + np.concatenate([noises, np.full(len(pending), np.median(noises) if n else 0.0)])
        guesses, _ = conditioned(prior[:n, :n], values, spread[:n], fitted.mean).at(prior[:n, n:], amplitude)
        known = conditioned(prior, np.concatenate([values, guesses]), spread, fitted.mean)
        return points, amplitude, scale, known

    def _noises(self, values: Array) -> Array:
        """The variance of each observation beyond the common noise: its measurement's, and its workflow's repeats'."""
        noises = np.array([each.result.variance for each in self.seen])
        groups: dict[tuple[Workflow, int], list[int]] = {}
        for number, each in enumerate(self.seen):
            groups.setdefault((each.workflow, round(each.shortness)), []).append(number)
        squares = {key: float(np.var(values[group]) * len(group)) for key, group in groups.items() if len(group) > 1}
        if squares:
            freedom = sum(len(groups[key]) - 1 for key in squares)
            common = sum(squares.values()) / freedom
            for key, total in squares.items():
                own = (total + PRIOR_REPEATS * common) / (len(groups[key]) - 1 + PRIOR_REPEATS)
                noises[groups[key]] += max(0.0, own - common)
        return noises


def _fitted(points: Points, values: Array, noises: Array, scales: Sequence[float]) -> Fit:
    """The most plausible settings; before anything was observed, the middle of what is plausible."""
    if not len(values):
        return Fit(len(scales) // 2, 1.0, 0.03, 0.0)
    kernels = np.stack([_covariance(points, points, scale) for scale in scales])
    return fit(kernels, range(len(values)), values, noises)


def _whole(rows: Array) -> Points:
    """Whole trainings without inheritance."""
    return rows, np.zeros(len(rows)), np.zeros(len(rows))


def _joined(a: Points, b: Points) -> Points:
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]), np.concatenate([a[2], b[2]])


def _covariance(a: Points, b: Points, scale: float) -> Array:
    """Of trainings: alike where their workflows are alike and as long, and what lengths and inheritances explain."""
    (rows, short, heir), (others, shorts, heirs) = a, b
    apart = (rows * rows).sum(axis=1)[:, None] + (others * others).sum(axis=1)[None, :] - 2.0 * rows @ others.T
    alike = np.exp(-scale * np.maximum(apart, 0.0))
    steps = np.abs(short[:, None] - shorts[None, :])
    trend = np.outer(short, shorts) + np.outer(short**2, shorts**2) + np.outer(heir, heirs)
    total: Array = alike * SHORTER**steps + TREND * trend
    return total


def compressed(values: Array, shortness: Array) -> Array:
    """Values far below the middle of trainings as long moved nearer to it: how bad the bad ones are matters little."""
    values = values.copy()
    for rung in np.unique(np.round(shortness)):
        among = np.round(shortness) == rung
        if among.sum() < 4:
            continue
        middle = float(np.median(values[among]))
        above = values[among & (values >= middle)]
        spread = max(float(above.max() - middle), 1e-9)
        low = among & (values < middle - spread)
        values[low] = middle - spread * (1.0 + np.log((middle - values[low]) / spread))
    return values
