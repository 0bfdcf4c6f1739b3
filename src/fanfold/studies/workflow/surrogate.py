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

from fanfold.strategies.gaussian_process import Fit, fit, predicted
from fanfold.strategies.gp_ucb import Observation
from fanfold.studies.workflow.spaces import Workflow, WorkflowSpace

if TYPE_CHECKING:
    from fanfold.strategies.gaussian_process import Array

    #: Of trainings: the features of their workflows, how short they were, and how much they inherited.
    Points: TypeAlias = tuple[Array, Array, Array]

#: How fast the correlation of two workflows falls with their distance, from nearly linear to every one for itself.
SCALES = (0.5, 1.0, 2.0, 3.5, 5.0, 7.5, 10.0, 15.0)
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
        #: The settings of each process, and how many trainings they were fitted to.
        self._fits: dict[str, tuple[int, Fit]] = {}

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

    def _shortness(self, learnt: int) -> float:
        return max(0.0, math.log2(self.full / max(learnt, 1)))

    def beliefs(self, workflows: Sequence[Workflow], pending: Sequence[Workflow] = ()) -> WorkflowBeliefs:
        """What is believed of these workflows, as sure as it will be once the pending ones are trained."""
        points, count = self._points(), len(self.seen)
        wanted, open_ones = self.space.rows(workflows), self.space.rows(pending)
        values = compressed(self._values(), points[1])
        noises = self._noises(values) + UNSTEADY * points[1] * float(np.var(values) if count else 0.0)
        mean, deviation = self._believe("return", points, values, noises, wanted, open_ones)
        feasible = np.ones(len(workflows))
        rates = [each.result.constraint for each in self.seen]
        if self.threshold is not None and count and None not in rates:
            errors = np.array([each.result.constraint_variance for each in self.seen])
            level, spread = self._believe("rate", points, np.array(rates, np.float64), errors, wanted, open_ones)
            gaps = (level - self.threshold) / np.maximum(spread, 1e-9)
            feasible = np.array([0.5 * math.erfc(-gap / math.sqrt(2.0)) for gap in gaps])
        return WorkflowBeliefs(mean, deviation, feasible)

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

    def _believe(
        self, what: str, points: Points, values: Array, noises: Array, wanted: Array, pending: Array
    ) -> tuple[Array, Array]:
        """Mean and deviation of whole trainings without inheritance."""
        n, fitted = len(values), self._fitted(what, points, values, noises)
        known: Points = tuple(np.concatenate([a, b]) for a, b in zip(points, _whole(pending)))  # type: ignore[assignment]
        amplitude, scale = fitted.amplitude, self.scales[fitted.scale]
        prior = amplitude * _covariance(known, known, scale)
        across = amplitude * _covariance(known, _whole(wanted), scale)
        # Pending trainings count as observed to be what is expected of them: means stay, deviations shrink.
        usual = float(np.median(noises)) if n else 0.0
        spread = fitted.noise + np.concatenate([noises, np.full(len(pending), usual)])
        guesses = predicted(prior[:n, :n], prior[:n, n:], amplitude, values, spread[:n], fitted.mean)[0]
        return predicted(prior, across, amplitude, np.concatenate([values, guesses]), spread, fitted.mean)

    def _fitted(self, what: str, points: Points, values: Array, noises: Array) -> Fit:
        """The most plausible settings; before anything was observed, the middle of what is plausible."""
        n = len(values)
        if self._fits.get(what, (-1,))[0] != n:
            kernels = np.stack([_covariance(points, points, scale) for scale in self.scales])
            settings = fit(kernels, range(n), values, noises) if n else Fit(len(self.scales) // 2, 1.0, 0.03, 0.0)
            self._fits[what] = n, settings
        return self._fits[what][1]

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


def _whole(rows: Array) -> Points:
    """Whole trainings without inheritance."""
    return rows, np.zeros(len(rows)), np.zeros(len(rows))


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
