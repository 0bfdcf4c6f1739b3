"""Gaussian processes over a finite set of arms: what is believed after observations, with settings fitted to them."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fanfold.errors import ConfigError, MissingExtra

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


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A Gaussian process after observations.  What depends on these alone is computed once, for many questions."""

    mean: float
    inverse: Array
    weight: Array

    def at(self, across: Array, own: float) -> tuple[Array, Array]:
        """Mean and deviation of points with the variance `own`; `across` is their covariance with the observed."""
        import numpy as np

        reach = self.inverse @ across
        return self.mean + reach.T @ self.weight, np.sqrt(np.maximum(own - (reach * reach).sum(axis=0), 0.0))


def conditioned(prior: Array, values: Array, noises: Array, mean: float) -> Conditioned:
    """The process after these observations, `prior` being their covariance without noise."""
    import numpy as np

    if not len(values):
        return Conditioned(mean, np.zeros((0, 0)), np.zeros(0))
    inverse: Array = np.asarray(np.linalg.inv(_cholesky(prior + np.diag(noises))), np.float64)
    return Conditioned(mean, inverse, inverse @ (values - mean))


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
        "GpUcb: the kernel is not positive semidefinite (its matrix has a clearly negative eigenvalue), so it is "
        "not a covariance; use a kernel such as exp(-scale * distance)"
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

        Failed arms count as the lowest value seen; the settings are not fitted to them.
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


def checked_kernels(kernel: Callable[[float], ArrayLike], scales: Sequence[float], size: int) -> Array:
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
            raise ConfigError(f"GpUcb: kernel({scale!r}) is not symmetric, so it is not a covariance")
        _cholesky(matrix)
        found.append((matrix + matrix.T) / 2.0)
    return np.stack(found)
