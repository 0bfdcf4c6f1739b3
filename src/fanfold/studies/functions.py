"""A real but cheap problem to try the engine on: a genetic search over classic continuous test functions.

A candidate is a point; its cases are copies of the function, each moved by a small seeded shift.  Its score is minus
the mean of their values: the best possible is a little below 0, because no point sits in every copy's optimum.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fanfold import drawings
from fanfold.config import Settings, option
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.ledger import RunView
from fanfold.plugins import Presentation, Starter, StudyPlugin
from fanfold.space import Float, Space
from fanfold.stop import MaxTrials
from fanfold.strategies import strategy
from fanfold.study import Study
from fanfold.summary import Section
from fanfold.types import Case

#: How far a copy may be moved in each dimension, as a share of the width of the space.
SHIFT = 0.002
#: Candidates that are drawn.
DRAWN = 500


def sphere(x: Sequence[float]) -> float:
    return sum(v * v for v in x)


def rastrigin(x: Sequence[float]) -> float:
    return sum(v * v - 10.0 * math.cos(2.0 * math.pi * v) + 10.0 for v in x)


def ackley(x: Sequence[float]) -> float:
    spread = math.exp(-0.2 * math.sqrt(sphere(x) / len(x)))
    waves = math.exp(sum(math.cos(2.0 * math.pi * v) for v in x) / len(x))
    return 20.0 - 20.0 * spread + math.e - waves


def rosenbrock(x: Sequence[float]) -> float:
    return sum(100.0 * (b - a * a) ** 2 + (1.0 - a) ** 2 for a, b in itertools.pairwise(x))


def griewank(x: Sequence[float]) -> float:
    return 1.0 + sphere(x) / 4000.0 - math.prod(math.cos(v / math.sqrt(i)) for i, v in enumerate(x, start=1))


#: Each function and the half width of the cube it is searched in.
FUNCTIONS: dict[str, tuple[Callable[[Sequence[float]], float], float]] = {
    "sphere": (sphere, 5.12),
    "rastrigin": (rastrigin, 5.12),
    "ackley": (ackley, 32.0),
    "rosenbrock": (rosenbrock, 2.048),
    "griewank": (griewank, 600.0),
}


@dataclass(frozen=True)
class FunctionsConfig(Settings):
    """Which function is minimised, and how long."""

    function: Literal["sphere", "rastrigin", "ackley", "rosenbrock", "griewank"] = option(
        "rastrigin", "the function to minimise"
    )
    dimensions: int = option(5, "how many numbers a candidate has", least=1)
    strategy: str = option("genetic", "what proposes candidates: genetic, random, optuna, cmaes, or another's name")
    trials: int = option(600, "how many candidates are evaluated", least=1)
    population: int = option(40, "how many candidates a generation has", least=4)
    shifts: int = option(3, "how many shifted copies of the function a candidate is scored on", least=1)
    delay: float = option(0.0, "seconds each evaluation sleeps, to imitate an expensive one", least=0)
    seed: int = option(0, "the seed of the shifts and of the search")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function == "rosenbrock" and self.dimensions < 2:
            raise ConfigError(f"dimensions must be at least 2 for rosenbrock, not {self.dimensions!r}")


@dataclass(frozen=True)
class FunctionEvaluator:
    """Minus the value of the function at the candidate, as moved by the case."""

    function: str
    delay: float = 0.0

    @property
    def fingerprint(self) -> str:
        return f"fanfold.functions.{self.function}/1"  # the delay changes no result

    def __call__(self, candidate: Mapping[str, float], case: Case) -> float:
        if self.delay:
            time.sleep(self.delay)
        return -FUNCTIONS[self.function][0]([candidate[f"x{i}"] - moved for i, moved in enumerate(case.data)])


def study(config: FunctionsConfig) -> Study[Any]:
    """The search that a config describes."""
    half, cases = FUNCTIONS[config.function][1], []
    space = Space({f"x{i}": Float(-half, half) for i in range(config.dimensions)})
    for number in range(config.shifts):
        rng = random.Random(derive_seed(config.seed, "shift", number))
        shift = [rng.uniform(-1.0, 1.0) * SHIFT * 2 * half for _ in range(config.dimensions)]
        cases.append(Case(f"shift-{number}", shift))
    return Study(
        strategy(config.strategy, space, **({"population": config.population} if config.strategy == "genetic" else {})),
        FunctionEvaluator(config.function, config.delay),
        cases,
        stop=MaxTrials(config.trials),
        seed=config.seed,
        name="functions",
    )


def overview(view: RunView) -> Iterator[Section]:
    """Where the candidates lie, in the first two dimensions."""
    best = view.best()
    rows = [row for row in view.trials(order="best", count=DRAWN) if isinstance(row.candidate, dict)]
    if best is None or "x1" not in best.candidate:
        return
    points = [
        {"x": row.candidate["x0"], "y": row.candidate["x1"], "name": f"trial {row.number}", "trial": row.number}
        | {"front": row.number == best.number}
        for row in rows
    ]
    text = f"The best {len(points):,} candidates by their first two numbers; the best of all is marked."
    yield Section("Candidates", text, drawings=(drawings.scatter(points, x="x0", y="x1"),))


plugin = StudyPlugin(
    FunctionsConfig,
    study,
    shown=Presentation(overview=overview),
    starter=Starter(
        "Minimise a test function, to try the engine.", {"trials": 600}, offer={"function": "ackley", "dimensions": 10}
    ),
)
