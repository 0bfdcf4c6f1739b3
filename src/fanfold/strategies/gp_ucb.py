"""GP-UCB over a finite set: a Gaussian process believes, and what might be best is asked next."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.snapshots import check_untouched, packed, unpacked, untouched
from fanfold.strategies.gaussian_process import Posterior, Process, checked_kernels, first_of_best
from fanfold.strategy import Strategy
from fanfold.types import C, Ok, Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fanfold.strategies.gaussian_process import Array


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
    equal candidate would not be evaluated again.  Made for some hundred arms: an ask takes time with the cube of the
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
        self._kernels = checked_kernels(kernel, scales, len(self._arms))
        self._read = read
        self._threshold, self._feasibility = threshold, feasibility
        self._beta = functools.partial(_beta, arms=len(self._arms), delta=delta, boldness=boldness)

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

    def save(self) -> bytes:
        processes = [(each.seen, each.values, each.variances) for each in (self._value, self._constraint)]
        open_arms = (self._asked, self._pending, self._failed)
        return packed(seen=processes, arms=open_arms, origin=self._origin, given=untouched(read=self._read))

    def load(self, state: bytes) -> None:
        saved = unpacked(state)
        check_untouched(saved["given"], read=self._read)
        for process, seen in zip((self._value, self._constraint), saved["seen"]):
            process.seen, process.values, process.variances = seen
        self._asked, self._pending, self._failed = saved["arms"]
        self._origin = saved["origin"]

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
        deviation = value.deviation
        bound = value.mean + math.sqrt(self._beta(len(self._asked) + 1)) * deviation
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


def _beta(t: int, arms: int, delta: float, boldness: float) -> float:
    """How many variances the bound of the t-th ask is above the mean."""
    return max(0.0, boldness * 2.0 * math.log(arms * t * t * math.pi**2 / (6.0 * delta)))


def _checked(seen: Observation, candidate: Any) -> Observation:
    numbers = (seen.value, seen.variance, seen.constraint_variance, seen.constraint or 0.0)
    if not all(abs(number) < 1e100 for number in numbers) or min(seen.variance, seen.constraint_variance) < 0.0:
        raise ConfigError(
            f"GpUcb: {seen} of {candidate!r}: give finite numbers (below 1e100), and variances of at least 0"
        )
    return seen
