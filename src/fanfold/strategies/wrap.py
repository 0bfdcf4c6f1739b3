"""Optimisers of other libraries as strategies: Optuna's samplers, CMA-ES, and Nevergrad's optimisers."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fanfold.errors import ConfigError, MissingExtra, check_whole, nearest
from fanfold.snapshots import Unsaved, packed, rng_state, set_rng, unpacked
from fanfold.space import Choice, Int, Number, Space
from fanfold.strategies.open import OpenCandidates
from fanfold.strategy import Strategy
from fanfold.types import Result

Candidate = dict[str, Any]


class Optuna(Strategy[Candidate]):
    """Asks a sampler of Optuna: by default TPE, or what `sampler(seed)` returns.

    Keeps the contract as far as the sampler does: every ask draws one trial after the other from the sampler's own
    generator.  A sampler that ignores its seed is not deterministic.  Failed results are told as failed trials, which
    samplers leave out of their models; dropped ones as complete trials with the score they were given.  Optuna keeps
    every trial in memory.
    """

    window = 16

    def __init__(self, space: Space, sampler: Callable[[int], Any] | None = None) -> None:
        self._space = _checked("Optuna", space)
        if sampler is not None and not callable(sampler):
            raise ConfigError(
                f"Optuna: sampler must be a function seed -> sampler, as in lambda seed: TPESampler(seed=seed), "
                f"not {sampler!r}"
            )
        self._sampler = sampler
        self._open: OpenCandidates[int] = OpenCandidates("Optuna")

    def begin(self, seed: int) -> None:
        super().begin(seed)
        optuna = _library("optuna", "Optuna")
        seed = self.rng.getrandbits(32)
        sampler = optuna.samplers.TPESampler(seed=seed) if self._sampler is None else self._sampler(seed)
        with _quiet(optuna):
            self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        self._distributions = {name: _distribution(optuna, dim) for name, dim in self._space.dimensions.items()}

    def ask(self, n: int) -> list[Candidate]:
        return [self._ask_one() for _ in range(n)]

    def tell(self, result: Result[Candidate]) -> None:
        trial = self._open.take(result.candidate)  # its number: a trial of Optuna cannot be saved
        if result.score is None:
            self._study.tell(trial, state=self._failed)
        else:
            self._study.tell(trial, result.score)

    def _ask_one(self) -> Candidate:
        trial = self._study.ask(self._distributions)
        # A choice is searched by the position of its option: Optuna keeps only plain values.
        candidate = {
            name: dim.options[trial.params[name]] if isinstance(dim, Choice) else trial.params[name]
            for name, dim in self._space.dimensions.items()
        }
        self._open.add(candidate, trial.number)
        return candidate

    def save(self) -> bytes:
        generators = self._generators()
        trials = [
            (trial.params, trial.state.name, trial.values, trial.system_attrs)
            for trial in self._study.get_trials(deepcopy=False)
        ]
        states = [_generator_state(generator) for generator in generators]
        return packed(trials=trials, open=self._open.save(int), generators=states)

    def load(self, state: bytes) -> None:
        optuna, saved = _library("optuna", "Optuna"), unpacked(state)
        for params, name, values, system in saved["trials"]:
            result = {"state": optuna.trial.TrialState[name], "values": values, "system_attrs": system}
            trial = optuna.trial.create_trial(params=params, distributions=self._distributions, **result)
            self._study.add_trial(trial)
        self._open.load(saved["open"], int)
        for generator, one in zip(self._generators(), saved["generators"]):
            _set_generator(generator, one)

    def _generators(self) -> list[Any]:
        """Where the sampler's randomness is, of those samplers that keep nothing else."""
        sampler, samplers = self._study.sampler, _library("optuna", "Optuna").samplers
        if type(sampler) not in (samplers.TPESampler, samplers.RandomSampler):
            raise Unsaved(f"what {type(sampler).__name__} of Optuna holds cannot be saved")
        owners = [sampler, getattr(sampler, "_random_sampler", None)]
        return [owner._rng.rng for owner in owners if owner is not None]


class Cmaes(Strategy[Candidate]):
    """CMA-ES on the numbers of a space, each scaled to [0, 1]; whole numbers are rounded, choices are refused.

    `sigma` is the first standard deviation on that scale; `population` defaults to the usual `4 + 3 ln(dimensions)`.
    A generation is asked, and the next one is drawn when all of it has been told, so the order of telling does not
    matter.  A failed result counts as the worst score told so far.  When the distribution has collapsed, the search
    starts again from a random point.  Keeps the contract of a strategy without exception.
    """

    def __init__(self, space: Space, sigma: float = 0.3, population: int | None = None) -> None:
        self._dimensions = _numbers(_checked("Cmaes", space))
        if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not 0 < sigma < math.inf:
            raise ConfigError(
                f"Cmaes: sigma must be a number above 0 (a share of the range, such as 0.3), not {sigma!r}"
            )
        if population is not None:
            check_whole(population, "Cmaes: population", 4)
        self._sigma = sigma
        self._population = population or 4 + math.floor(3 * math.log(len(self._dimensions)))
        self._open: OpenCandidates[Any] = OpenCandidates("Cmaes")
        self._asked = 0
        self._told: list[tuple[int, Any, float | None]] = []
        self._worst = math.inf
        self.window = self._population

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._start([0.5] * len(self._dimensions))

    def ask(self, n: int) -> list[Candidate]:
        count = max(0, min(n, self._population - self._asked))
        return [self._ask_one() for _ in range(count)]

    def tell(self, result: Result[Candidate]) -> None:
        number, point = self._open.take(result.candidate)
        self._told.append((number, point, result.score))
        if result.score is not None:
            self._worst = min(self._worst, result.score)
        if len(self._told) == self._population:
            self._finish_generation()

    def save(self) -> bytes:
        return packed(
            rng=rng_state(self.rng),
            optimizer={name: _plain(value) for name, value in vars(self._optimizer).items()},
            open=self._open.save(lambda handle: (handle[0], _plain(handle[1]))),
            told=[(number, _plain(point), score) for number, point, score in self._told],
            counts=(self._asked, self._worst),
        )

    def load(self, state: bytes) -> None:
        saved = unpacked(state)
        set_rng(self.rng, saved["rng"])
        for name, value in saved["optimizer"].items():
            if isinstance(value, dict) and "generator" in value:
                _set_generator(self._optimizer._rng, value["generator"])
            elif name in vars(self._optimizer):
                setattr(self._optimizer, name, _restored(value))
            else:
                raise Unsaved(f"CMA has no {name}")
        self._open.load(saved["open"], lambda handle: (handle[0], _restored(handle[1])))
        self._told = [(number, _restored(point), score) for number, point, score in saved["told"]]
        self._asked, self._worst = saved["counts"]

    def _start(self, mean: list[float]) -> None:
        cmaes = _library("cmaes", "Cmaes")
        import numpy

        self._optimizer = cmaes.CMA(
            mean=numpy.array(mean),
            sigma=self._sigma,
            bounds=numpy.array([[0.0, 1.0]] * len(mean)),
            seed=self.rng.getrandbits(32),
            population_size=self._population,
        )

    def _ask_one(self) -> Candidate:
        point = self._optimizer.ask()
        candidate = {
            name: dimension.from_unit(float(unit)) for (name, dimension), unit in zip(self._dimensions.items(), point)
        }
        self._open.add(candidate, (self._asked, point))
        self._asked += 1
        return candidate

    def _finish_generation(self) -> None:
        worst = 0.0 if self._worst == math.inf else self._worst
        self._told.sort(key=lambda told: told[0])
        self._optimizer.tell([(point, -(worst if score is None else score)) for _, point, score in self._told])
        self._told = []
        self._asked = 0
        if self._optimizer.should_stop():
            self._start([self.rng.random() for _ in self._dimensions])


class Nevergrad(Strategy[Candidate]):
    """Asks an optimiser of Nevergrad, by its name in Nevergrad's registry; numbers are scaled to [0, 1].

    `budget` is what the optimiser plans for, and where the search ends.  A failed result counts as the worst score told
    so far, and waits for the first score where there is none yet.  Optimisers that allow only one open trial are
    refused.  Determinism is as good as the optimiser's: its own randomness is seeded, but those that fit metamodels,
    which NGOpt chooses for a few numbers without choices, also use unseeded randomness and a clock, so that a run of
    theirs may refuse to resume; the default, differential evolution, does not.  Nevergrad archives what it was told.
    """

    window = 16
    # Nothing is saved: the state of an optimiser of Nevergrad is objects that only a pickle could keep.

    def __init__(self, space: Space, optimizer: str = "DE", budget: int = 1000) -> None:
        self._space = _checked("Nevergrad", space)
        if not isinstance(optimizer, str):
            raise ConfigError(f"Nevergrad: optimizer must be a name from Nevergrad's registry, not {optimizer!r}")
        check_whole(budget, "Nevergrad: budget")
        self._name = optimizer
        self._left = budget
        self._open: OpenCandidates[Any] = OpenCandidates("Nevergrad")
        self._worst = math.inf
        self._unscored: list[Any] = []

    def begin(self, seed: int) -> None:
        super().begin(seed)
        nevergrad = _library("nevergrad", "Nevergrad")
        import numpy

        registry = nevergrad.optimizers.registry
        if self._name not in registry:
            raise ConfigError(f"Nevergrad has no optimizer {self._name!r}{_hint(self._name, registry)}")
        if registry[self._name].no_parallelization:
            raise ConfigError(f"Nevergrad's {self._name!r} allows only one open trial; use another, such as 'DE'")
        parameters = nevergrad.p.Tuple(*(_parameter(nevergrad, dim) for dim in self._space.dimensions.values()))
        parameters.random_state = numpy.random.RandomState(self.rng.getrandbits(32))
        self._optimizer = registry[self._name](parameters, budget=self._left, num_workers=self.window)

    def ask(self, n: int) -> list[Candidate]:
        count = max(0, min(n, self._left))
        self._left -= count
        return [self._ask_one() for _ in range(count)]

    def tell(self, result: Result[Candidate]) -> None:
        asked = self._open.take(result.candidate)
        if result.score is not None:
            self._worst = min(self._worst, result.score)
            self._optimizer.tell(asked, -result.score)
        else:
            self._unscored.append(asked)
        if self._worst < math.inf:
            for failed in self._unscored:
                self._optimizer.tell(failed, -self._worst)
            self._unscored = []

    def _ask_one(self) -> Candidate:
        try:
            asked = self._optimizer.ask()
        except TypeError as error:  # its metamodels turn arrays into numbers in a way numpy 2.4 no longer allows
            raise ConfigError(
                f"Nevergrad's {self._name!r} broke down ({error}), as its metamodels do with numpy 2.4 or later; "
                f"use another optimizer, such as 'DE', or install 'numpy<2.4'"
            ) from error
        candidate = {
            name: dim.options[int(value)] if isinstance(dim, Choice) else _number(dim).from_unit(float(value))
            for (name, dim), value in zip(self._space.dimensions.items(), asked.value)
        }
        self._open.add(candidate, asked)
        return candidate


# -- what other libraries hold, as data ---------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """A number, an array or a generator of numpy."""
    if value is None or isinstance(value, bool | int | float):
        return value if value is None or isinstance(value, bool | int) else float(value)
    if hasattr(value, "get_state"):
        return {"generator": _generator_state(value)}
    if (dtype := str(getattr(value, "dtype", ""))) in ("float64", "int64", "bool"):
        return {"dtype": dtype, "shape": list(value.shape), "data": value.tobytes()}
    raise Unsaved(f"a {type(value).__name__} of another library cannot be saved")


def _restored(value: Any) -> Any:
    import numpy

    if isinstance(value, dict):
        return numpy.frombuffer(value["data"], value["dtype"]).reshape(value["shape"]).copy()
    return numpy.float64(value) if isinstance(value, float) else value


def _generator_state(generator: Any) -> list[Any]:
    name, words, *rest = generator.get_state()
    return [name, words.tolist(), *rest]


def _set_generator(generator: Any, state: list[Any]) -> None:
    import numpy

    name, words, *rest = state
    generator.set_state((name, numpy.array(words, numpy.uint32), *rest))


def _library(package: str, owner: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra(package, package, f"the strategy {owner}") from error


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def _distribution(optuna: Any, dimension: Any) -> Any:
    if isinstance(dimension, Choice):
        return optuna.distributions.CategoricalDistribution(range(len(dimension.options)))
    kind = (
        optuna.distributions.IntDistribution if isinstance(dimension, Int) else optuna.distributions.FloatDistribution
    )
    return kind(dimension.low, dimension.high, log=dimension.log)


def _parameter(nevergrad: Any, dimension: Any) -> Any:
    if isinstance(dimension, Choice):
        return nevergrad.p.Choice(range(len(dimension.options)))
    return nevergrad.p.Scalar(lower=0.0, upper=1.0)


def _checked(owner: str, space: Any) -> Space:
    if not isinstance(space, Space):
        raise ConfigError(f"{owner} needs a Space, as in {owner}(Space(x=Float(0, 1))), not {space!r}")
    return space


def _numbers(space: Space) -> dict[str, Number]:
    for name, dimension in space.dimensions.items():
        if not isinstance(dimension, Number):
            raise ConfigError(f"Cmaes cannot search the Choice {name!r}: use Optuna or Genetic, or fix its value")
    return {name: _number(dimension) for name, dimension in space.dimensions.items()}


def _number(dimension: Any) -> Number:
    assert isinstance(dimension, Number)
    return dimension


def _hint(name: str, registry: Any) -> str:
    hint = nearest(name, registry)
    return hint if "did you mean" in hint else "; see nevergrad.optimizers.registry for the names"
