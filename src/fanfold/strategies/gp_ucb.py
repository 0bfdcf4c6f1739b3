"""GP-UCB over a finite set: a Gaussian process believes, and what might be best is asked next."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from fanfold.encoding import encode
from fanfold.errors import ConfigError, MissingExtra
from fanfold.strategy import Strategy
from fanfold.types import C, Ok, Result

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Array: TypeAlias = NDArray[np.float64]

#: What amplitude and noise may be, in units of the variance of what was observed.
AMPLITUDES = (0.1, 0.316, 1.0, 3.16, 10.0)
NOISES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: Weak priors (the middle, and a standard deviation in natural logarithms): a handful of observations fits anything.
AMPLITUDE_PRIOR, NOISE_PRIOR = (1.0, 1.0), (0.03, 2.0)
#: Added to the diagonal, relative to the largest entry, when a matrix is not positive definite in floating point.
JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)
#: Values closer than this, relative to their spread, are equal: what decides is the order of the arms, not rounding.
TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Observation:
    """What a result says of its arm: a value and the variance of its measurement, and the same for the constraint.

    A variance of 0 means that nothing is known of it: the fitted noise is then all there is.  A constraint of None was
    not observed.
    """

    value: float
    variance: float = 0.0
    constraint: float | None = None
    constraint_variance: float = 0.0


@dataclass(frozen=True, slots=True)
class Belief(Generic[C]):
    """What is believed of an arm: mean and standard deviation of its value, and how probably it is feasible."""

    arm: C
    mean: float
    deviation: float
    feasible: float
    told: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """The most plausible settings: the scale (its number), amplitude and noise variances, and the constant mean."""

    scale: int
    amplitude: float
    noise: float
    mean: float


@dataclass(frozen=True, eq=False)
class Posterior:
    """Mean and covariance of all arms."""

    mean: Array
    covariance: Array

    def given(self, arm: int, noise: float) -> Posterior:
        """As if the arm had been observed to be what is expected of it: the mean stays, the variance shrinks."""
        column = self.covariance[:, arm]
        denominator = float(column[arm]) + noise
        if denominator <= 0.0:
            return self
        return Posterior(self.mean, self.covariance - column[:, None] * (column / denominator))

    @property
    def deviation(self) -> Array:
        import numpy as np

        found: Array = np.sqrt(np.maximum(np.diagonal(self.covariance), 0.0))
        return found


def posterior(
    kernel: ArrayLike, seen: Sequence[int], values: ArrayLike, noises: ArrayLike, mean: float = 0.0
) -> Posterior:
    """The Gaussian process with this prior covariance of all arms, after observations of some of them.

    `noises` are the variances of the observations, one for each; an arm may be observed more than once.
    """
    import numpy as np

    prior = np.asarray(kernel, np.float64)
    where = np.asarray(seen, np.intp)
    if not len(where):
        return Posterior(np.full(len(prior), mean), prior.copy())
    root = _cholesky(prior[np.ix_(where, where)] + np.diag(np.asarray(noises, np.float64)))
    apart = np.asarray(values, np.float64) - mean
    solved = np.linalg.solve(root, np.column_stack([prior[where], apart]))
    reach, weight = solved[:, :-1], solved[:, -1]
    return Posterior(mean + reach.T @ weight, prior - reach.T @ reach)


def fit(kernels: Array, seen: Sequence[int], values: ArrayLike, variances: ArrayLike) -> Fit:
    """The settings with the highest marginal likelihood, under weak priors; the constant mean is integrated out.

    `kernels` holds a matrix for each scale.  A grid, and a finer one around its best point: the same data give the
    same settings, and nothing is ever outside the bounds.
    """
    import numpy as np

    where, y, v = np.asarray(seen, np.intp), np.asarray(values, np.float64), np.asarray(variances, np.float64)
    centre = float(y.mean())
    unit = float(np.var(y, ddof=1)) if len(y) > 1 else 0.0
    if unit <= max((1e-9 * float(np.abs(y).max())) ** 2, 1e-200):  # all alike: there is nothing to measure it by
        unit = 1.0
    found = kernels[:, where[:, None], where[None, :]]
    y, v = (y - centre) / math.sqrt(unit), np.minimum(v / unit, 1e12)
    best, top = (0, 0.0, 0.0, 0.0), -math.inf
    amplitudes, noises, scales = np.array(AMPLITUDES), np.array(NOISES), range(len(kernels))
    for _ in range(2):
        a, s = (each.ravel() for each in np.meshgrid(amplitudes, noises, indexing="ij"))
        for scale in scales:
            evidence, means = _evidence(found[scale], y, v, a, s)
            number = first_of_best(evidence, range(len(a)))
            if evidence[number] > top + TIE:
                top, best = float(evidence[number]), (scale, float(a[number]), float(s[number]), float(means[number]))
        scales = range(best[0], best[0] + 1)
        amplitudes = np.clip(best[1] * np.array([0.56, 1.0, 1.78]), AMPLITUDES[0], AMPLITUDES[-1])
        noises = np.clip(best[2] * np.array([0.32, 0.56, 1.0, 1.78, 3.16]), NOISES[0], NOISES[-1])
    scale, amplitude, noise, mean = best
    return Fit(scale, amplitude * unit, noise * unit, centre + mean * math.sqrt(unit))


def _evidence(kernel: Array, y: Array, v: Array, amplitudes: Array, noises: Array) -> tuple[Array, Array]:
    """Log posterior density of each setting (up to a constant), and the constant mean under it."""
    import numpy as np

    n = len(y)
    # Bordered by y and by ones, one factorisation of a matrix gives L, L⁻¹y and L⁻¹1.
    border = np.column_stack([y, np.ones(n)])
    stack = np.zeros((len(amplitudes), n + 2, n + 2))
    stack[:, :n, :n] = amplitudes[:, None, None] * kernel
    stack[:, range(n), range(n)] += noises[:, None] + v
    stack[:, n:, :n] = border.T
    stack[:, :n, n:] = border
    least = float(noises.min())
    stack[:, (n, n + 1), (n, n + 1)] = 4.0 * (1.0 + float((border * border).sum())) / least
    root = np.linalg.cholesky(stack)
    logarithm = np.log(root[:, range(n), range(n)]).sum(axis=1)
    by, one = root[:, n, :n], root[:, n + 1, :n]
    ones, cross, squares = (one * one).sum(axis=1), (one * by).sum(axis=1), (by * by).sum(axis=1)
    mean = cross / ones
    density = -0.5 * (squares - mean * cross) - logarithm - 0.5 * np.log(ones)
    for value, (middle, spread) in ((amplitudes, AMPLITUDE_PRIOR), (noises, NOISE_PRIOR)):
        density = density - 0.5 * np.square(np.log(value / middle) / spread)
    return np.asarray(density, np.float64), mean


def _cholesky(matrix: Array) -> Array:
    import numpy as np

    largest = float(np.abs(np.diagonal(matrix)).max())
    for jitter in JITTERS:
        try:
            return np.asarray(np.linalg.cholesky(matrix + np.eye(len(matrix)) * (jitter * largest)), np.float64)
        except np.linalg.LinAlgError:
            continue
    raise ConfigError(
        "GpUcb: the kernel is not positive semidefinite (its matrix has a clearly negative eigenvalue), so it is no "
        "covariance; use a kernel such as exp(-scale * distance)"
    )


def first_of_best(values: Array, order: Sequence[int]) -> int:
    """The first in this order whose value is the highest, not counting differences that are only rounding."""
    import numpy as np

    top = float(values.max())
    spread = top - float(values[np.isfinite(values)].min()) if math.isfinite(top) else 0.0
    return next(i for i in order if values[i] >= top - TIE * max(spread, abs(top) * 1e-3))


class Process:
    """A Gaussian process over the arms that learns its own settings from what it is shown.

    What it believes is a function of the observations in their order.  The settings are fitted again with every
    observation at first, and later each time there are a tenth more, because they hardly move any more.
    """

    def __init__(self, kernels: Array) -> None:
        self.kernels = kernels
        self.seen: list[int] = []
        self.values: list[float] = []
        self.variances: list[float] = []
        self._fitted: tuple[int, Fit] = (0, Fit(len(kernels) // 2, 1.0, NOISE_PRIOR[0], 0.0))

    def observe(self, arm: int, value: float, variance: float) -> None:
        self.seen.append(arm)
        self.values.append(value)
        self.variances.append(variance)

    def fit(self) -> Fit:
        n = fitted_with(len(self.seen))
        if n and n != self._fitted[0]:
            self._fitted = n, fit(self.kernels, self.seen[:n], self.values[:n], self.variances[:n])
        return self._fitted[1]

    def posterior(self, pending: Sequence[int], failed: Sequence[int] = ()) -> Posterior:
        """What is believed, as sure as it will be once the pending arms were observed.

        Failed arms count as the lowest value seen; the settings are not fitted to that, because it is no measurement.
        """
        import numpy as np

        now = self.fit()
        failed = failed if self.values else ()
        seen, values = [*self.seen, *failed], [*self.values, *(min(self.values) for _ in failed)]
        noises = np.array([*self.variances, *(0.0 for _ in failed)]) + now.noise
        known = posterior(now.amplitude * self.kernels[now.scale], seen, values, noises, now.mean)
        expected = now.noise + (float(np.median(self.variances)) if self.variances else 0.0)
        for arm in pending:
            known = known.given(arm, expected)
        return known


def fitted_with(n: int) -> int:
    """How many of `n` observations the settings are fitted with."""
    steps = list(range(25))
    while steps[-1] < n:
        steps.append(math.ceil(1.1 * steps[-1]))
    return steps[bisect.bisect_right(steps, n) - 1]


def measured(result: Result[Any]) -> Observation:
    """The score of a result, with the variance of a mean where there were several cases; nothing on a constraint."""
    assert result.score is not None
    scores = [outcome.score for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
    if len(scores) < 2:
        return Observation(result.score)
    mean = math.fsum(scores) / len(scores)
    squares = math.fsum((score - mean) ** 2 for score in scores)
    return Observation(result.score, squares / (len(scores) - 1) / len(scores))


class GpUcb(Strategy[C]):
    """Asks the arm whose value could be highest, as a Gaussian process sees it; each arm once, and then it ends.

    `kernel(scale)` is the matrix of prior correlations between all arms, and `scales` are those to choose from by
    marginal likelihood, with the amplitude and the noise.  `read(result)` says what was observed and how precisely,
    each observation with a variance of its own.  Arms that are being evaluated count as observed at what is expected
    of them, so that many can be open at once without being alike.

    The bound is the mean and sqrt(beta) standard deviations, beta = boldness * 2 log(arms * t² * pi² / (6 * delta)).
    With `boldness` 1 the regret is sublinear with probability 1 - delta (Srinivas et al. 2010), who in their own
    experiments took a fifth, as is done here.

    With `threshold`, an arm is feasible when its constraint is at least that.  A second process believes in the
    constraint; of the arms that are feasible with a probability of at least `feasibility`, the one with the highest
    bound is asked, and when there is none, the one that is most probably feasible.

    A failed result counts as the lowest value so far.  Results of arms that were never asked may be told, too.  To let
    an arm be asked again, list it again as another candidate ((arm, visit), say) with the same row in the kernel: an
    equal candidate would not be evaluated anew.  Made for some hundred arms: an ask takes time with the cube of the
    number told.
    """

    window = 4

    def __init__(
        self,
        arms: Sequence[C],
        kernel: Callable[[float], ArrayLike],
        scales: Sequence[float],
        *,
        read: Callable[[Result[C]], Observation] = measured,
        threshold: float | None = None,
        feasibility: float = 0.3,
        delta: float = 0.1,
        boldness: float = 0.2,
    ) -> None:
        self._arms = list(arms)
        if not self._arms or not len(scales):
            raise ConfigError("GpUcb needs at least one arm, and at least one scale for its kernel")
        self._number = {encode(arm, "an arm"): number for number, arm in enumerate(self._arms)}
        if len(self._number) < len(self._arms):
            raise ConfigError("GpUcb: two arms are equal; make them differ, as in (arm, visit), to ask one twice")
        for name, share in (("delta", delta), ("feasibility", feasibility)):
            if not 0.0 < share < 1.0:
                raise ConfigError(f"GpUcb: {name}={share!r}: give a number between 0 and 1")
        if not 0.0 <= boldness < math.inf:
            raise ConfigError(f"GpUcb: boldness={boldness!r}: give a number of at least 0")
        if threshold is not None and not math.isfinite(threshold):
            raise ConfigError(f"GpUcb: threshold={threshold!r}: give a number, or None for no constraint")
        self._kernels = _kernels(kernel, scales, len(self._arms))
        self._read = read
        self._threshold, self._feasibility = threshold, feasibility
        self._delta, self._boldness = delta, boldness

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._value, self._constraint = Process(self._kernels), Process(self._kernels)
        self._turn = list(range(len(self._arms)))
        self.rng.shuffle(self._turn)
        self._asked: list[int] = []
        self._pending: list[int] = []
        self._failed: list[int] = []
        self._origin: dict[int, dict[str, float]] = {}

    def ask(self, n: int) -> list[C]:
        return [self._arms[self._ask_one()] for _ in range(min(n, len(self._arms) - len(self._asked)))]

    def tell(self, result: Result[C]) -> None:
        arm = self._number.get(encode(result.candidate))
        if arm is None:
            raise ConfigError(f"GpUcb was told a result of {result.candidate!r}, which is none of its arms")
        if arm in self._pending:
            self._pending.remove(arm)
        elif arm not in self._asked:  # somebody else's result is as good
            self._asked.append(arm)
        if result.score is None:
            self._failed.append(arm)
            return
        seen = _checked(self._read(result), result.candidate)
        self._value.observe(arm, seen.value, seen.variance)
        if seen.constraint is not None:
            self._constraint.observe(arm, seen.constraint, seen.constraint_variance)

    def origin(self, candidate: C) -> dict[str, float] | None:
        """What was believed of a candidate when it was asked: `bound`, `mean`, `deviation`, `feasible`."""
        return self._origin.get(self._number.get(encode(candidate), -1))

    def beliefs(self) -> list[Belief[C]]:
        """What is believed of every arm now; asking for it changes nothing."""
        value, feasible = self._beliefs(())
        deviation = value.deviation
        told = {*self._value.seen, *self._failed}
        return [
            Belief(arm, float(value.mean[i]), float(deviation[i]), float(feasible[i]), i in told)
            for i, arm in enumerate(self._arms)
        ]

    def best(self) -> Belief[C] | None:
        """The arm told so far with the highest mean among those more probably feasible than not, if there is one."""
        told = [belief for belief in self.beliefs() if belief.told]
        fit_for_use = [belief for belief in told if belief.feasible >= 0.5]
        return max(fit_for_use, key=lambda belief: belief.mean, default=None)

    def _ask_one(self) -> int:
        import numpy as np

        value, feasible = self._beliefs(self._pending)
        t = len(self._asked) + 1
        beta = self._boldness * 2.0 * math.log(len(self._arms) * t * t * math.pi**2 / (6.0 * self._delta))
        deviation = value.deviation
        bound = value.mean + math.sqrt(max(beta, 0.0)) * deviation
        open_arms = np.ones(len(self._arms), bool)
        open_arms[self._asked] = False
        allowed = open_arms & (feasible >= self._feasibility)
        merit, among = (bound, allowed) if allowed.any() else (feasible, open_arms)
        arm = first_of_best(np.where(among, merit, -np.inf), self._turn)
        self._asked.append(arm)
        self._pending.append(arm)
        self._origin[arm] = {
            "bound": float(bound[arm]),
            "mean": float(value.mean[arm]),
            "deviation": float(deviation[arm]),
            "feasible": float(feasible[arm]),
        }
        return arm

    def _beliefs(self, pending: Sequence[int]) -> tuple[Posterior, Array]:
        """What is believed of the values, and how probably each arm is feasible."""
        import numpy as np

        value = self._value.posterior(pending, self._failed)
        feasible = np.ones(len(self._arms))
        if self._threshold is not None and self._constraint.seen:
            constraint = self._constraint.posterior(pending)
            gap, deviation = constraint.mean - self._threshold, constraint.deviation
            for i in range(len(feasible)):
                sure = 1.0 if gap[i] >= 0.0 else 0.0
                feasible[i] = 0.5 * math.erfc(-gap[i] / deviation[i] / math.sqrt(2.0)) if deviation[i] > 0.0 else sure
        return value, feasible


def _kernels(kernel: Callable[[float], ArrayLike], scales: Sequence[float], size: int) -> Array:
    """The matrices of all scales, checked."""
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra("numpy", "workflow", "GpUcb") from error
    found = []
    for scale in scales:
        matrix = np.asarray(kernel(scale), np.float64)
        if matrix.shape != (size, size):
            raise ConfigError(f"GpUcb: kernel({scale!r}) has the shape {matrix.shape}; {size} arms need {(size, size)}")
        if not np.isfinite(matrix).all() or not (np.diagonal(matrix) > 0.0).all():
            raise ConfigError(f"GpUcb: kernel({scale!r}) must hold finite numbers, above 0 on its diagonal")
        if not np.allclose(matrix, matrix.T, rtol=0.0, atol=1e-9 * np.abs(matrix).max()):
            raise ConfigError(f"GpUcb: kernel({scale!r}) is not symmetric, so it is no covariance")
        _cholesky(matrix)
        found.append((matrix + matrix.T) / 2.0)
    return np.stack(found)


def _checked(seen: Observation, candidate: Any) -> Observation:
    numbers = (seen.value, seen.variance, seen.constraint_variance, seen.constraint or 0.0)
    if not all(abs(number) < 1e100 for number in numbers) or min(seen.variance, seen.constraint_variance) < 0.0:
        raise ConfigError(
            f"GpUcb: {seen} of {candidate!r}: give finite numbers (below 1e100), and variances of at least 0"
        )
    return seen
