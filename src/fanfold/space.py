"""Named dimensions to search: draw, vary, combine and enumerate candidates that are plain dicts."""

from __future__ import annotations

import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from fanfold.encoding import encode
from fanfold.errors import ConfigError, check_whole, nearest

#: Integers up to here are exact as floats, and in the JSON of every reader.
_EXACT = 2**53
#: How far a blended float may lie outside the span of its parents: without it, crossover alone shrinks a population.
_OVERSHOOT = 0.25


class Dimension(ABC):
    """One value of a candidate: what it may be, and how it is drawn, varied and combined."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Any:
        """A value drawn evenly (on the log scale where the dimension is one)."""

    @abstractmethod
    def mutate(self, value: Any, rng: random.Random, rate: float) -> Any:
        """Another value; the greater the rate, the further away."""

    def crossover(self, a: Any, b: Any, rng: random.Random) -> Any:
        """A value made of two."""
        return a if rng.random() < 0.5 else b

    @abstractmethod
    def grid(self, steps: int) -> Sequence[Any]:
        """Up to `steps` values that cover the dimension (all of them where they cannot be ordered)."""

    @abstractmethod
    def problem(self, value: Any) -> str | None:
        """Why a value does not belong to this dimension, or None."""


@dataclass(frozen=True)
class Number(Dimension):
    """What `Float` and `Int` share: an interval, linear or logarithmic, mapped to and from [0, 1]."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        for bound in self._bounds():
            if not _is_number(bound) or not math.isfinite(bound):
                raise ConfigError(f"{self!r}: the bounds must be finite numbers, not {bound!r}")
        if self.low >= self.high:
            raise ConfigError(f"{self!r}: low must be less than high; fix a value by leaving it out of the space")
        if not math.isfinite(float(self.high) - float(self.low)):
            raise ConfigError(f"{self!r}: the range is wider than a float can hold; narrow it or use log=True")
        if self.log and self.low <= 0:
            raise ConfigError(f"{self!r}: a log scale needs low > 0")

    def _bounds(self) -> tuple[Any, Any]:
        """Both bounds; numbers of numpy, such as the largest of a column, become plain ones."""
        for name, bound in (("low", self.low), ("high", self.high)):
            if type(bound).__module__ == "numpy" and isinstance(bound, Real):
                object.__setattr__(self, name, bound.item())
        return self.low, self.high

    @abstractmethod
    def from_unit(self, unit: float) -> Any:
        """The value at a position in [0, 1]; positions outside are taken as the nearer end."""

    @abstractmethod
    def to_unit(self, value: Any) -> float:
        """The position of a value in [0, 1]."""

    def sample(self, rng: random.Random) -> Any:
        return self.from_unit(rng.random())

    def _step(self, value: Any, rng: random.Random, rate: float) -> Any:
        return self.from_unit(_reflect(self.to_unit(value) + rng.gauss(0.0, rate / 2)))

    def _spread(self, steps: int) -> list[Any]:
        if steps == 1:
            return [self.from_unit(0.5)]
        return [self.from_unit(step / (steps - 1)) for step in range(steps)]

    def _outside(self, value: Any) -> str | None:
        return None if self.low <= value <= self.high else f"it lies outside {self.low} to {self.high}"


@dataclass(frozen=True)
class Float(Number):
    """A real number between two bounds, both included; `log=True` searches magnitudes (learning rates, weights).

    Mutation is a gaussian step whose deviation is half the rate times the (log) range, reflected at the bounds.
    """

    def from_unit(self, unit: float) -> float:
        if unit <= 0 or unit >= 1:
            return float(self.low if unit <= 0 else self.high)
        low, high = self._scale()
        value = low + unit * (high - low)
        return min(max(math.exp(value) if self.log else value, float(self.low)), float(self.high))

    def to_unit(self, value: float) -> float:
        low, high = self._scale()
        if low == high:  # so narrow that the logarithms of its bounds are the same float
            return 0.5
        return ((math.log(value) if self.log else value) - low) / (high - low)

    def mutate(self, value: float, rng: random.Random, rate: float) -> float:
        changed: float = self._step(value, rng, rate)
        if changed == value:  # the step was smaller than a float can tell
            return math.nextafter(value, self.high if value < self.high else self.low)
        return changed

    def crossover(self, a: float, b: float, rng: random.Random) -> float:
        if a == b:
            return a
        start, end = self.to_unit(a), self.to_unit(b)
        return self.from_unit(_reflect(start + rng.uniform(-_OVERSHOOT, 1 + _OVERSHOOT) * (end - start)))

    def grid(self, steps: int) -> list[float]:
        return list(dict.fromkeys(self._spread(steps)))

    def problem(self, value: Any) -> str | None:
        return self._outside(value) if _is_number(value) else "it is not a number"

    def _scale(self) -> tuple[float, float]:
        return (math.log(self.low), math.log(self.high)) if self.log else (float(self.low), float(self.high))


@dataclass(frozen=True)
class Int(Number):
    """A whole number between two bounds, both included.  Mutation is the step of `Float`, and at least one."""

    low: int
    high: int

    def __post_init__(self) -> None:
        for bound in self._bounds():
            if isinstance(bound, bool) or not isinstance(bound, int) or abs(bound) > _EXACT:
                raise ConfigError(f"{self!r}: the bounds must be whole numbers of at most 2**53, not {bound!r}")
        super().__post_init__()

    def from_unit(self, unit: float) -> int:
        if unit <= 0 or unit >= 1:
            return self.low if unit <= 0 else self.high
        low, high = self._scale()
        value = low + unit * (high - low)
        return min(max(round(math.exp(value) if self.log else value), self.low), self.high)

    def to_unit(self, value: int) -> float:
        low, high = self._scale()
        return ((math.log(value) if self.log else value) - low) / (high - low)

    def mutate(self, value: int, rng: random.Random, rate: float) -> int:
        changed: int = self._step(value, rng, rate)
        if changed != value:
            return changed
        if value in (self.low, self.high):
            return value + 1 if value == self.low else value - 1
        return value + rng.choice((-1, 1))

    def grid(self, steps: int) -> Sequence[int]:
        if steps > self.high - self.low:
            return range(self.low, self.high + 1)
        return list(dict.fromkeys(self._spread(steps)))

    def problem(self, value: Any) -> str | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return self._outside(value) if whole else "it is not a whole number"

    def _scale(self) -> tuple[float, float]:
        # Half a step beyond each bound, so that the ends are drawn as often as the rest.
        low, high = self.low - 0.5, self.high + 0.5
        return (math.log(low), math.log(high)) if self.log else (low, high)


@dataclass(frozen=True)
class Choice(Dimension):
    """One of several values without an order. Options may be anything that the ledger can store; all must differ."""

    options: Sequence[Any]

    def __post_init__(self) -> None:
        if isinstance(self.options, str | bytes) or not isinstance(self.options, Iterable):
            raise ConfigError(f"Choice({self.options!r}): the options must be a list or tuple of values")
        if isinstance(self.options, set | frozenset):
            raise ConfigError(f"Choice({self.options!r}): a set has no fixed order, so runs would differ; pass a list")
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise ConfigError("Choice([]): there is nothing to choose from; give at least one option")
        seen: set[str] = set()
        for option in self.options:
            key = encode(option, f"option {option!r} of a Choice")
            if key in seen:
                raise ConfigError(
                    f"Choice: the option {option!r} is given twice, or is the same in the ledger as another of another "
                    "class; leave one out, or add a field that tells them apart"
                )
            seen.add(key)

    def sample(self, rng: random.Random) -> Any:
        return rng.choice(self.options)

    def mutate(self, value: Any, rng: random.Random, rate: float) -> Any:
        current = encode(value)
        others = [option for option in self.options if encode(option) != current]
        return rng.choice(others) if others else value

    def grid(self, steps: int) -> Sequence[Any]:
        return self.options

    def problem(self, value: Any) -> str | None:
        known = {encode(option) for option in self.options}
        return None if encode(value, "a value of a Choice") in known else f"the options are {list(self.options)!r}"


@dataclass(frozen=True, init=False)
class Space:
    """A set of named dimensions: `Space(rate=Float(1e-5, 1e-1, log=True), layers=Int(1, 8))`, or one dict of them.

    Candidates are dicts `{name: value}` with the names in the order given here.  No method changes its arguments.
    """

    dimensions: Mapping[str, Dimension]

    def __init__(self, dimensions: Mapping[str, Dimension] | None = None, /, **named: Dimension) -> None:
        if dimensions is not None and not isinstance(dimensions, Mapping):
            raise ConfigError(f"Space takes a dict of dimensions or keywords, not {dimensions!r}")
        given = {**(dimensions or {}), **named}
        if not given:
            raise ConfigError("the space is empty: give it at least one dimension, as in Space(x=Float(0, 1))")
        for name, dimension in given.items():
            if not isinstance(name, str):
                raise ConfigError(f"the name of a dimension must be a string, not {name!r}")
            if not isinstance(dimension, Dimension):
                raise ConfigError(f"dimension {name!r} must be a Float, Int or Choice, not {dimension!r}")
        object.__setattr__(self, "dimensions", given)

    def sample(self, rng: random.Random) -> dict[str, Any]:
        """A candidate drawn at random."""
        return {name: dimension.sample(rng) for name, dimension in self.dimensions.items()}

    def mutate(self, candidate: Mapping[str, Any], rng: random.Random, rate: float) -> dict[str, Any]:
        """A changed copy: about `rate` of the dimensions change, at least one does, and steps grow with the rate."""
        free = [
            name
            for name, dimension in self.dimensions.items()
            if not isinstance(dimension, Choice) or len(dimension.options) > 1
        ]
        chosen = {name for name in free if rng.random() < rate}
        if free and not chosen:
            chosen = {rng.choice(free)}
        return {
            name: dimension.mutate(candidate[name], rng, rate) if name in chosen else candidate[name]
            for name, dimension in self.dimensions.items()
        }

    def crossover(self, a: Mapping[str, Any], b: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        """A candidate that takes each dimension from either parent; floats are blended and may overshoot a little."""
        return {name: dimension.crossover(a[name], b[name], rng) for name, dimension in self.dimensions.items()}

    def grid(self, steps: int) -> Iterator[dict[str, Any]]:
        """All combinations of up to `steps` values of each number and all options of each choice, last name fastest."""
        check_whole(steps, "steps of a grid")
        values = [dimension.grid(steps) for dimension in self.dimensions.values()]
        return (dict(zip(self.dimensions, combination)) for combination in itertools.product(*values))

    def check(self, candidate: Any) -> None:
        """Raise a ConfigError that says why, unless the candidate belongs to this space."""
        if not isinstance(candidate, Mapping):
            raise ConfigError(f"{candidate!r} is not a candidate of the space: pass a dict of {list(self.dimensions)}")
        for name in candidate:
            if name not in self.dimensions:
                raise ConfigError(f"the space has no dimension {name!r}{nearest(str(name), self.dimensions)}")
        for name, dimension in self.dimensions.items():
            if name not in candidate:
                raise ConfigError(f"the candidate {candidate!r} has no {name!r}: give every dimension a value")
            problem = dimension.problem(candidate[name])
            if problem is not None:
                raise ConfigError(f"{candidate[name]!r} is not a value of the dimension {name!r}: {problem}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _reflect(unit: float) -> float:
    """Fold a position back into [0, 1], as a ball between two walls."""
    folded = unit % 2.0
    return 2.0 - folded if folded > 1 else folded
