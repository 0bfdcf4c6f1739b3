"""Whether a policy keeps to its workflow: how that is counted in CAGE-2, measured, rewarded, and when it is enough."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fanfold.errors import ConfigError, check_whole, nearest
from fanfold.stats import Interval, clustered_rate, normal_quantile
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.orders import GRAINS, cage2_orders, checked, options_of_hosts

Flags = NDArray[np.bool_]

#: In the words of `EpisodeBlock.held` (see `cage2.rollout`): the fix made in this step took something from red.
FIXED = 1 << len(g.HOSTS)
USER0 = 1 << g.HOSTS.index("User0")

#: What counts as a fix that must keep to the order.  `effective`: one that took something from red while red held some
#: host, its foothold on User0 not counted; `contested`: of these, where red held several types (or roles, or hosts, as
#: the workflow tells them apart), so that there was something to choose; `original`: every Remove and Restore, with
#: User0's foothold as a compromise that never ends.
DEFINITIONS = ("effective", "contested", "original")


@dataclass(frozen=True, eq=False)
class Marks:
    """(episode, step): where a fix was made that counts, and where it was the one the workflow asks for."""

    counted: Flags
    compliant: Flags

    @functools.cached_property
    def fixes(self) -> NDArray[np.int64]:
        """Of each episode, the fixes that count."""
        counts: NDArray[np.int64] = self.counted.sum(axis=1)
        return counts

    @functools.cached_property
    def kept(self) -> NDArray[np.int64]:
        """Of each episode, the fixes that kept to the order."""
        counts: NDArray[np.int64] = self.compliant.sum(axis=1)
        return counts

    def rates(self, empty: float = math.nan) -> NDArray[np.float64]:
        """The share of each episode's fixes that kept to the order; `empty` where there were none."""
        return np.where(self.fixes > 0, self.kept / np.maximum(self.fixes, 1), empty)


def judge(actions: ArrayLike, held: ArrayLike, workflow: Sequence[str], definition: str = "effective") -> Marks:
    """Judge every step of some episodes, given as the arrays `actions` and `held` of an `EpisodeBlock`.

    The workflow asks for a fix on the first type in its order of which red holds a host.  In the original's definition
    that is what counts, but red holds User0 forever: with `user` in front every other fix is a violation, and
    `Remove User0`, which costs nothing and does nothing, is compliant whenever no more urgent type is held.
    """
    order = checked(workflow)
    if definition not in DEFINITIONS:
        raise ConfigError(f"there is no definition of compliance {definition!r}{nearest(str(definition), DEFINITIONS)}")
    chosen, words = _steps(actions, held)
    wanted, target = _wanted(order, definition)[words], _targets(order)[chosen]
    counted = (wanted >= 0) & (target >= 0)
    return Marks(counted, counted & (wanted == target))


def _steps(actions: ArrayLike, held: ArrayLike) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    chosen, words = np.asarray(actions), np.asarray(held)
    if chosen.ndim != 2 or chosen.shape != words.shape:
        raise ConfigError(
            f"actions and held must be arrays (episode, step) of one shape, not {chosen.shape} and {words.shape}"
        )
    for name, array, end in (("actions", chosen, len(g.ACTIONS)), ("held", words, 2 * FIXED)):
        if not np.issubdtype(array.dtype, np.integer):
            raise ConfigError(f"{name}: give whole numbers, not an array of {array.dtype}")
        if array.size and not (array.min() >= 0 and array.max() < end):
            raise ConfigError(f"{name}: numbers from 0 to {end - 1} have a meaning, not {array.min()}..{array.max()}")
    return chosen, words


@functools.lru_cache(maxsize=512)
def _targets(order: tuple[str, ...]) -> NDArray[np.int8]:
    """Of every action the place in the order of what a Remove or Restore is for; -1 for every other action."""
    targets, mine = np.full(len(g.ACTIONS), -1, np.int8), options_of_hosts(order)
    for family, host in itertools.product((g.REMOVE, g.RESTORE), range(len(g.HOSTS))):
        targets[2 + family * len(g.HOSTS) + host] = order.index(mine[host])
    return targets


@functools.lru_cache(maxsize=512)
def _wanted(order: tuple[str, ...], definition: str) -> NDArray[np.int8]:
    """For every word of `EpisodeBlock.held`, the place in the order of what is to be fixed; -1: no fix counts."""
    words, mine = np.arange(2 * FIXED), options_of_hosts(order)
    hosts = words & (FIXED - 1) | (USER0 if definition == "original" else 0)
    wanted, types = np.full(len(words), -1, np.int8), np.zeros(len(words), np.int64)
    for place, option in reversed(list(enumerate(order))):
        among = hosts & sum(1 << host for host, its in enumerate(mine) if its == option) > 0
        wanted[among] = place
        types += among
    if definition != "original":
        wanted[words & FIXED == 0] = -1
    if definition == "contested":
        wanted[types < 2] = -1
    return wanted


@dataclass(frozen=True, slots=True)
class Compliance:
    """How well a policy keeps to a workflow on episodes it did not learn from.

    `rate` is over all fixes that took something from red, its interval from the differences between episodes;
    `contested` only over those where red held several types.  A policy that fixes nothing has shown nothing: its
    interval is 0 to 1.  `original` is the mean over episodes as the original system counts it, with 0.5 for an episode
    without a fix; `fixes` is the mean number of fixes that took something from red.  Environments other than CAGE-2
    have a rate alone.
    """

    rate: Interval
    contested: Interval | None
    original: float | None
    episodes: int
    fixes: float

    def observed(self) -> tuple[float, float]:
        """The rate and the variance of its measurement, from the width of the interval."""
        reach = (self.rate.high - self.rate.low) / 2.0 / normal_quantile(0.5 + self.rate.level / 2.0)
        middle = (self.rate.low + self.rate.high) / 2.0
        return (middle if self.rate.estimate is None else self.rate.estimate), reach * reach


def measure(actions: ArrayLike, held: ArrayLike, workflow: Sequence[str], level: float = 0.95) -> Compliance:
    """The compliance shown in evaluation episodes, given as the arrays `actions` and `held` of an `EpisodeBlock`."""
    effective = judge(actions, held, workflow)
    contested, original = (judge(actions, held, workflow, definition) for definition in ("contested", "original"))
    rates = original.rates(empty=0.5)
    return Compliance(
        _rate(effective, level),
        _rate(contested, level),
        float(rates.mean()) if len(rates) else 0.5,
        len(rates),
        float(effective.fixes.mean()) if len(rates) else 0.0,
    )


def _rate(marks: Marks, level: float) -> Interval:
    return rate_of(zip(marks.kept.tolist(), marks.fixes.tolist()), level)


def rate_of(pairs: Iterable[tuple[int, int]], level: float = 0.95) -> Interval:
    """The share of fixes that kept to the workflow, of (kept, made) by episode."""
    return clustered_rate(dict(enumerate(pairs)), level)


def alignment(marks: Marks, weight: float, kind: str = "rate", *, idle: float = 0.2) -> NDArray[np.float64]:
    """What keeping to the workflow adds to the reward of each step.

    `rate` is the original's: `weight` times the change of the episode's running rate (0 before the first fix), which
    sums to `weight` times the final rate, less `idle * weight` at the end of an episode without a fix.  A step's worth
    then depends on how often and how well was fixed before, which the observation does not show.  `each` has no memory:
    a fix that breaks the order costs `weight`, one that keeps to it gives nothing, so that nothing is won by fixing
    more often.
    """
    if not math.isfinite(weight) or not math.isfinite(idle):
        raise ConfigError(f"alignment: weight={weight!r} and idle={idle!r} must be finite numbers")
    if kind == "each":
        return np.where(marks.counted & ~marks.compliant, -weight, 0.0)
    if kind != "rate":
        raise ConfigError(f"there is no alignment reward {kind!r}{nearest(str(kind), ('rate', 'each'))}")
    after = _running(marks)
    bonus = weight * np.diff(after, axis=1, prepend=0.0)
    if bonus.shape[1]:
        bonus[marks.fixes == 0, -1] -= idle * weight
    return bonus


def _running(marks: Marks) -> NDArray[np.float64]:
    fixes, kept = (flags.cumsum(axis=1) for flags in (marks.counted, marks.compliant))
    rates: NDArray[np.float64] = kept / np.maximum(fixes, 1)
    return rates


def _held_together(reds: Sequence[str]) -> list[frozenset[str]]:
    """Sets of hosts such that whatever one of these reds can hold at a time (not counting its foothold) is in one.

    No exploit lands on Defender.  B-line turns to one user host in an episode, to the enterprise host that is found
    from there, and to those that its plan names; Meander turns to all of them.
    """
    landing = {name for exploit in g.EXPLOITS for name in (*exploit.user, *exploit.admin)}
    planned = {target for _, target in g.PLAN if target in g.HOSTS}
    users = [host for host in g.HOST if host.name.startswith("User") and host.name != "User0"]
    paths = [frozenset({host.name, host.reveals or host.name, *planned} & landing) for host in users]
    sets = {"b_line": paths, "meander": [frozenset(landing)], "sleep": []}
    unknown = next((red for red in reds if red not in sets), None)
    if unknown is not None:
        raise ConfigError(f"there is no red agent {unknown!r}{nearest(str(unknown), g.REDS)}")
    return [hosts for red in reds for hosts in sets[red]]


def contested_pairs(reds: Sequence[str], grain: str = "units") -> tuple[tuple[str, str], ...]:
    """The pairs of types (or roles, or hosts) that one of these reds can hold at the same time.

    Workflows that agree on the order within all of them ask for the same fixes: against Meander the 120 orders of
    types are 24, against B-line 6.
    """
    option = dict(zip(g.HOSTS, GRAINS[grain]))
    pairs = {
        (option[a], option[b])
        for hosts in _held_together(reds)
        for a, b in itertools.combinations(sorted(hosts, key=g.HOSTS.index), 2)
        if option[a] != option[b]
    }
    return tuple(sorted(pairs))


def reachable(reds: Sequence[str], grain: str = "units") -> tuple[str, ...]:
    """The types (or roles, or hosts) of which one of these reds can ever hold a machine, its foothold not counted."""
    option = dict(zip(g.HOSTS, GRAINS[grain]))
    held = {option[host] for hosts in _held_together(reds) for host in hosts}
    return tuple(name for name in cage2_orders(grain).options if name in held)


@dataclass(frozen=True, slots=True)
class Stopping:
    """When the training for a workflow has taken long enough.

    `compliant`: the lower limit of a held-out compliance reaches the threshold; `patience`: so many looks brought no
    rate better than the best before by more than `gain`; `budget`: the episodes are used up.  Who looks often is lucky
    sometimes: look number k is made at a level (`level_at`) that spends only a part of the error `1 - confidence`, so
    that all looks together stop falsely with at most that probability.
    """

    threshold: float = 0.9
    confidence: float = 0.95
    patience: int = 12
    gain: float = 0.01
    max_episodes: int = 10_000

    def __post_init__(self) -> None:
        for name, least in (("threshold", 0.0), ("confidence", 0.5)):
            if not least < getattr(self, name) < 1.0:
                raise ConfigError(f"{name}={getattr(self, name)!r}: give a number between {least:g} and 1")
        for name in ("patience", "max_episodes"):
            check_whole(getattr(self, name), name)
        if not self.gain >= 0.0:
            raise ConfigError(f"gain={self.gain!r}: give a number of at least 0")

    def level_at(self, look: int) -> float:
        """The level of the (two-sided) interval for look number 1, 2, ...: only its lower limit is used."""
        if look < 1:
            raise ConfigError(f"look={look!r}: looks are counted from 1")
        return 1.0 - 2.0 * (1.0 - self.confidence) * 6.0 / (math.pi * look) ** 2

    def decide(self, looks: Sequence[Interval], episodes: int) -> str | None:
        """Why to stop after these looks (`compliant`, `patience` or `budget`), or None to continue."""
        if looks and looks[-1].low >= self.threshold:
            return "compliant"
        if episodes >= self.max_episodes:
            return "budget"
        return "patience" if self._waited(looks) >= self.patience else None

    def _waited(self, looks: Sequence[Interval]) -> int:
        """How many looks ago the best rate was last improved upon."""
        rates = [0.0 if look.estimate is None else look.estimate for look in looks]
        best, since = -math.inf, 0
        for number, rate in enumerate(rates):
            if rate > best + self.gain:
                best, since = rate, number
        return len(rates) - 1 - since if rates else 0
