"""What a workflow can be: an order, a subset or an assignment of named options, and how such workflows compare."""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError, nearest
from fanfold.studies.workflow.user_code import user_code

#: As a ledger keeps it: the names of an order; `+name` for each member of a subset; `slot=option` for each slot.
Workflow: TypeAlias = tuple[str, ...]
#: Spaces of at most so many workflows are enumerated; larger ones are searched step by step.
MOST_LISTED = 5040


def show(workflow: Sequence[str]) -> str:
    """A workflow as the text that `WorkflowSpace.parse` reads."""
    if not workflow:
        return "none"
    return (" " if workflow[0].startswith("+") or "=" in workflow[0] else ">").join(workflow)


@dataclass(frozen=True)
class WorkflowSpace(ABC):
    """All workflows over some named options.

    Of workflows that are the same to the environment one is the `canonical` form of all.  `same` is a function of the
    user that makes it: it takes and gives a workflow as `value` has it.  The distance of two workflows is the number
    of `features` in which they differ.
    """

    options: tuple[str, ...]
    same: Callable[[Any], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError("a space of workflows needs at least one option")
        for name in self.options:
            if not isinstance(name, str) or not re.fullmatch(r"[^\s>,=+]+", name):
                raise ConfigError(f"option {name!r}: give names without spaces and without any of > , = +")
        if len(set(self.options)) < len(self.options):
            raise ConfigError(f"options {', '.join(self.options)}: two of them are equal")

    @abstractmethod
    def parse(self, text: str) -> Workflow:
        """The workflow that a text means."""

    @abstractmethod
    def checked(self, workflow: Sequence[str]) -> Workflow:
        """The workflow as a tuple (a ledger gives lists back); an error unless it belongs to the space."""

    @abstractmethod
    def value(self, workflow: Workflow) -> Any:
        """The workflow for a function of the user: a tuple of names, a frozenset of names, or a dict of slots."""

    @abstractmethod
    def features(self, workflow: Workflow) -> tuple[bool, ...]:
        """Everything in which workflows can differ."""

    @abstractmethod
    def neighbours(self, workflow: Workflow) -> Iterator[Workflow]:
        """Workflows that one small change makes of this one."""

    @abstractmethod
    def draw(self, rng: random.Random) -> Workflow:
        """Any workflow, all equally likely."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many workflows there are, counting those that are the same."""

    @abstractmethod
    def _listed(self) -> tuple[int, Iterable[Workflow]]:
        """Workflows among which there is one of every kind, and how many they are."""

    def canonical(self, workflow: Workflow) -> Workflow:
        """The one of several workflows that are the same to the environment that stands for all of them."""
        if self.same is None:
            return workflow
        found = self._like(workflow)
        if (again := self._like(found)) != found:
            said = f"`same` makes {show(found)} of {show(workflow)}, and {show(again)} of that"
            raise ConfigError(f"{said}: one workflow must stand for all that are the same, also for itself")
        return found

    def _like(self, workflow: Workflow) -> Workflow:
        """What the function of the user makes of a workflow."""
        assert self.same is not None
        with user_code("same"):
            value = self.same(self.value(workflow))
        words = [f"{slot}={option}" for slot, option in value.items()] if isinstance(value, Mapping) else value
        gave = f"`same` gave {value!r:.80} for {show(workflow)}"
        if isinstance(words, str) or not isinstance(words, Iterable):
            raise ConfigError(f"{gave}: it must give a workflow as it gets one, such as {self.value(workflow)!r}")
        try:
            return self.checked(words if isinstance(words, list | tuple) else sorted(words))
        except ConfigError as error:
            raise ConfigError(f"{gave}: {error}") from None

    @functools.cached_property
    def arms(self) -> tuple[Workflow, ...] | None:
        """All canonical workflows; None where there are too many to list."""
        count, workflows = self._listed()
        return tuple(dict.fromkeys(map(self.canonical, workflows))) if count <= MOST_LISTED else None

    def rows(self, workflows: Sequence[Workflow]) -> NDArray[np.float64]:
        """Many workflows as points, at no distance if they are the same, and else at distances of the order of 1."""
        rows = [self.features(workflow) for workflow in workflows]
        return np.array(rows, np.float64).reshape(len(rows), self.width) / math.sqrt(max(self.width, 1))

    @functools.cached_property
    def width(self) -> int:
        """The number of features."""
        return len(self.features(self.draw(random.Random(0))))

    def distance(self, a: Workflow, b: Workflow) -> int:
        return sum(x != y for x, y in zip(self.features(a), self.features(b)))

    def nearest(self, workflow: Workflow, others: Iterable[Workflow]) -> Workflow | None:
        """The nearest of some workflows; None without any.

        Of several equally near, the one that agrees from the front for longest, and then the first by name: the order
        in which they are given does not matter.
        """

        def apart(other: Workflow) -> tuple[int, int, Workflow]:
            agreed = next((i for i, (a, b) in enumerate(zip(workflow, other)) if a != b), len(workflow))
            return self.distance(workflow, other), -agreed, other

        return min(others, key=apart, default=None)


def _split(text: Any, like: Sequence[str]) -> list[str]:
    if not isinstance(text, str):
        raise ConfigError(f"a workflow is written like {show(like)!r}, not {text!r}")
    return [word for word in re.split(r"->|[>→,]|\s(?=\S+=)|(?=\+)", text.strip()) if word.strip()]


@dataclass(frozen=True)
class Orders(WorkflowSpace):
    """Every option once, the most urgent first.

    With `contested`, only the order within these pairs matters to the environment: workflows that agree on all of them
    are the same.  `names` are orders that have names.
    """

    contested: tuple[tuple[str, str], ...] | None = None
    names: Mapping[str, Workflow] = field(default_factory=dict)
    #: What the error messages call an option.
    what: str = "option"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in itertools.chain.from_iterable(self.contested or ()):
            if name not in self.options:
                raise ConfigError(f"contested: there is no {self.what} {name!r}{nearest(str(name), self.options)}")

    @functools.cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs whose order matters, in the order of the options."""
        every = itertools.combinations(self.options, 2)
        if self.contested is None:
            return tuple(every)
        matter = {frozenset(pair) for pair in self.contested}
        return tuple(pair for pair in every if frozenset(pair) in matter)

    @functools.cached_property
    def relevant(self) -> tuple[str, ...]:
        """The options whose place can matter."""
        matter = {name for pair in self.pairs for name in pair}
        return tuple(name for name in self.options if name in matter)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The options whose place does not matter."""
        return tuple(name for name in self.options if name not in self.relevant)

    def parse(self, text: str) -> Workflow:
        """Read `a>b>c` (also with arrows or commas), or the name of a named order."""
        known = {_plain(name): name for name in self.options}
        words = [_plain(word) for word in _split(text, self.options)] or [""]
        if len(words) == 1 and words[0] in self.names:
            return self.names[words[0]]
        for word in words:
            if word not in known:
                among = self.options if len(words) > 1 else (*self.options, *self.names)
                raise ConfigError(f"workflow {text!r}: there is no {self.what} {word!r}{nearest(word, among)}")
        return self.checked([known[word] for word in words])

    def checked(self, workflow: Sequence[str]) -> Workflow:
        order = tuple(workflow)
        if sorted(map(str, order)) != sorted(self.options):
            twice = [name for name in self.options if order.count(name) > 1]
            missing = [name for name in self.options if name not in order]
            wrong = [name for name in order if name not in self.options]
            problems = [("twice", twice), ("missing", missing), ("unknown", wrong)]
            listed = "; ".join(f"{what}: {', '.join(map(str, names))}" for what, names in problems if names)
            raise ConfigError(
                f"workflow {show(tuple(map(str, order)))!r} ({listed}): name each of {', '.join(self.options)} "
                "exactly once"
            )
        return order

    def value(self, workflow: Workflow) -> tuple[str, ...]:
        return workflow

    def features(self, workflow: Workflow) -> tuple[bool, ...]:
        place = {name: number for number, name in enumerate(workflow)}
        return tuple(place[a] < place[b] for a, b in self.pairs)

    def rows(self, workflows: Sequence[Workflow]) -> NDArray[np.float64]:
        number = {name: number for number, name in enumerate(self.options)}
        orders = np.array([[number[name] for name in workflow] for workflow in workflows], np.intp)
        places = orders.reshape(len(workflows), len(self.options)).argsort(axis=1)
        pairs = np.array([(number[a], number[b]) for a, b in self.pairs], np.intp).reshape(-1, 2)
        before = (places[:, pairs[:, 0]] < places[:, pairs[:, 1]]).astype(np.float64)
        # Half of it are the pairs, half how many of its pairs each option leads: a few trainings say more of options.
        sides = np.zeros((len(pairs), len(self.options)))
        sides[range(len(pairs)), pairs[:, 0]], sides[range(len(pairs)), pairs[:, 1]] = 1.0, -1.0
        leads = before @ sides / np.maximum(np.abs(sides).sum(axis=0), 1.0)
        weights = math.sqrt(2 * max(len(pairs), 1)), math.sqrt(2 * max(len(self.relevant), 1) / 3)
        return np.concatenate([before / weights[0], leads / weights[1]], axis=1)

    def canonical(self, workflow: Workflow) -> Workflow:
        """The first, in the order of the options, of all that agree on every contested pair."""
        workflow = super().canonical(workflow)
        after = {name: set[str]() for name in self.options}
        for (a, b), kept in zip(self.pairs, self.features(workflow)):
            after[b if kept else a].add(a if kept else b)
        left, order = [*self.relevant, *self.ignored], list[str]()
        while left:
            following = next(name for name in left if after[name].issubset(order))
            left.remove(following)
            order.append(following)
        return tuple(order)

    def neighbours(self, workflow: Workflow) -> Iterator[Workflow]:
        """One option that matters moved to another place."""
        order = [name for name in workflow if name in self.relevant]
        for name in order:
            rest = [other for other in order if other != name]
            for place in range(len(order)):
                if (moved := [*rest[:place], name, *rest[place:]]) != order:
                    yield (*moved, *self.ignored)

    def draw(self, rng: random.Random) -> Workflow:
        return tuple(rng.sample(self.options, len(self.options)))

    @property
    def size(self) -> int:
        return math.factorial(len(self.options))

    def _listed(self) -> tuple[int, Iterable[Workflow]]:
        orders = itertools.permutations(self.relevant)
        return math.factorial(len(self.relevant)), ((*order, *self.ignored) for order in orders)


def _plain(word: str) -> str:
    return re.sub(r"[\s-]+", "_", word.strip().lower())


@dataclass(frozen=True)
class Subsets(WorkflowSpace):
    """Any `least` to `most` of the options."""

    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.least <= self.limit <= len(self.options):
            raise ConfigError(f"least={self.least} and most={self.most} allow no subset of {len(self.options)} options")

    @property
    def limit(self) -> int:
        return len(self.options) if self.most is None else self.most

    def parse(self, text: str) -> Workflow:
        """Read `+a +b` (also `a, b`); `none` is the empty subset."""
        words = [word.strip().removeprefix("+").strip() for word in _split(text, [f"+{self.options[0]}"])]
        return self.checked([f"+{word}" for word in words if words != ["none"]])

    def checked(self, workflow: Sequence[str]) -> Workflow:
        chosen = [str(name).removeprefix("+") for name in workflow]
        for name in chosen:
            if name not in self.options:
                raise ConfigError(
                    f"workflow {show(workflow)!r}: there is no option {name!r}{nearest(name, self.options)}"
                )
        if len(set(chosen)) < len(chosen) or not self.least <= len(chosen) <= self.limit:
            raise ConfigError(f"workflow {show(workflow)!r}: choose {self.least} to {self.limit} options, each once")
        return tuple(f"+{name}" for name in self.options if name in chosen)

    def value(self, workflow: Workflow) -> frozenset[str]:
        return frozenset(name.removeprefix("+") for name in workflow)

    def features(self, workflow: Workflow) -> tuple[bool, ...]:
        chosen = self.value(workflow)
        return tuple(name in chosen for name in self.options)

    def neighbours(self, workflow: Workflow) -> Iterator[Workflow]:
        """One option more, one less, or one in the place of another."""
        chosen = self.value(workflow)
        others = [name for name in self.options if name not in chosen]
        changed = [*(chosen - {name} for name in sorted(chosen)), *(chosen | {name} for name in others)]
        changed += [chosen - {old} | {new} for old in sorted(chosen) for new in others]
        for subset in changed:
            if self.least <= len(subset) <= self.limit:
                yield self._of(subset)

    def _of(self, chosen: Iterable[str]) -> Workflow:
        members = set(chosen)
        return tuple(f"+{name}" for name in self.options if name in members)

    def draw(self, rng: random.Random) -> Workflow:
        sizes = range(self.least, self.limit + 1)
        (size,) = rng.choices(sizes, [math.comb(len(self.options), size) for size in sizes])
        return self._of(rng.sample(self.options, size))

    @property
    def size(self) -> int:
        return sum(math.comb(len(self.options), size) for size in range(self.least, self.limit + 1))

    def _listed(self) -> tuple[int, Iterable[Workflow]]:
        sizes = range(self.least, self.limit + 1)
        subsets = itertools.chain.from_iterable(itertools.combinations(self.options, size) for size in sizes)
        return self.size, map(self._of, subsets)


@dataclass(frozen=True)
class Assignments(WorkflowSpace):
    """One of the options for each of some named slots."""

    slots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.slots:
            raise ConfigError("an assignment needs slots, each of which is given an option: name at least one")
        WorkflowSpace.__post_init__(Orders(self.slots))  # the same is asked of the names of slots

    def parse(self, text: str) -> Workflow:
        """Read `slot=option slot=option` (also with commas)."""
        return self.checked([word.strip() for word in _split(text, self._of([self.options[0]] * len(self.slots)))])

    def checked(self, workflow: Sequence[str]) -> Workflow:
        chosen = dict(str(word).partition("=")[::2] for word in workflow)
        for slot, option in chosen.items():
            if slot not in self.slots:
                raise ConfigError(f"workflow {show(workflow)!r}: there is no slot {slot!r}{nearest(slot, self.slots)}")
            if option not in self.options:
                hint = nearest(option, self.options)
                raise ConfigError(f"workflow {show(workflow)!r}: there is no option {option!r}{hint}")
        if missing := [slot for slot in self.slots if slot not in chosen]:
            raise ConfigError(f"workflow {show(workflow)!r} says nothing of {', '.join(missing)}")
        return self._of([chosen[slot] for slot in self.slots])

    def _of(self, chosen: Iterable[str]) -> Workflow:
        return tuple(f"{slot}={option}" for slot, option in zip(self.slots, chosen))

    def value(self, workflow: Workflow) -> dict[str, str]:
        return dict(word.partition("=")[::2] for word in workflow)

    def features(self, workflow: Workflow) -> tuple[bool, ...]:
        chosen = self.value(workflow)
        return tuple(chosen[slot] == option for slot in self.slots for option in self.options)

    def neighbours(self, workflow: Workflow) -> Iterator[Workflow]:
        """Another option in one slot, or those of two slots exchanged."""
        chosen = list(self.value(workflow).values())
        for place, option in itertools.product(range(len(chosen)), self.options):
            if option != chosen[place]:
                yield self._of([*chosen[:place], option, *chosen[place + 1 :]])
        for a, b in itertools.combinations(range(len(chosen)), 2):
            if chosen[a] != chosen[b]:
                swapped = list(chosen)
                swapped[a], swapped[b] = chosen[b], chosen[a]
                yield self._of(swapped)

    def draw(self, rng: random.Random) -> Workflow:
        return self._of(rng.choices(self.options, k=len(self.slots)))

    @property
    def size(self) -> int:
        return int(len(self.options) ** len(self.slots))

    def _listed(self) -> tuple[int, Iterable[Workflow]]:
        return self.size, map(self._of, itertools.product(self.options, repeat=len(self.slots)))
