"""The documented settings of an evolution of prompts, and the engine's numbers that they stand for."""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Self

from fanfold.config import convert, option
from fanfold.errors import CallFailed, ConfigError, nearest
from fanfold.limits import Limits
from fanfold.models import Model, model
from fanfold.models.retry import RetryPolicy

Selection = Literal["tournament", "roulette_wheel", "rank_based", "stochastic_universal_sampling", "elitist"]
Crossover = Literal["single_point", "two_point", "uniform", "semantic_blend"]

#: The documented presets: async_batch_size, max_concurrent_requests, genome_batch_size, max_concurrent_genomes,
#: rate_limit_per_minute; and one of ours, whose pace is learnt from the provider.
PRESETS: Mapping[str, tuple[int, int, int, int, float | None]] = MappingProxyType(
    {
        "balanced": (20, 10, 10, 5, 3500.0),
        "conservative": (10, 5, 5, 3, 2000.0),
        "aggressive": (30, 15, 15, 8, 3500.0),
        "adaptive": (20, 32, 10, 8, None),
    }
)


class Settings:
    """Base of settings dataclasses: an unknown or wrongly typed keyword is a ConfigError that names the remedy."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        known = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no setting {name!r}{nearest(name, known)}")
        return super().__new__(cls)

    def check_types(self) -> None:
        """Take whole numbers for floats and lists for tuples, and refuse what is of another type."""
        kinds = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = convert(kinds[field.name], getattr(self, field.name), field.name, type(self).__name__)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{type(self).__name__}: {field.name} must be a finite number, not {value}")
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class EvolutionConfig(Settings):
    """An evolution that evaluates one problem after the other.  Every documented setting, with its documented default.

    Below the documented ones stand ours: what is asked and on what, where it is kept, and the seed.
    """

    population_size: int = option(50, "prompts in a generation")
    max_generations: int = option(100, "generations at most")
    crossover_rate: float = option(0.8, "share of prompts with two parents")
    mutation_rate: float = option(0.2, "share of a prompt's words that are replaced, at first")
    elite_size: int = option(5, "prompts kept with their fitness (at most population_size - 1)")
    tournament_size: int = option(3, "prompts in a tournament")
    target_fitness: float = option(0.85, "stop once a prompt has this fitness")
    convergence_patience: int = option(20, "stop after so many generations without any better fitness")
    fitness_plateau_threshold: float = option(0.001, "what best and mean fitness must gain ...")
    fitness_plateau_generations: int = option(10, "... within so many generations, or it is a plateau")
    diversity_threshold: float = option(0.05, "stop when prompts are on average no further apart than this")
    stagnation_threshold: int = option(20, "generations within which the best fitness must gain ...")
    improvement_threshold: float = option(0.01, "... this much, or it is stagnation")
    semantic_prob: float = option(0.9, "share of replaced words that become a synonym, not any word")
    insertion_rate: float = option(0.05, "probability of each of max_insertions insertions")
    deletion_rate: float = option(0.05, "probability that a word is deleted")
    swap_rate: float = option(0.05, "probability that a word changes places with the next")
    duplication_rate: float = option(0.02, "probability that a word is doubled")
    max_insertions: int = option(3, "words inserted at once, at most")
    selection_pressure: float = option(1.5, "of the rank-based and the universal selection")
    n_neighbors: int = option(50, "synonyms of a word that are considered, at most")
    max_problems: int = dataclasses.field(
        default_factory=lambda: default_problems(), metadata={"help": "problems a prompt is scored on, at most"}
    )
    temperature: float = option(0.0, "of the model")
    max_tokens: int = option(150, "tokens of a reply, at most")
    checkpoint_interval: int = option(10, "generations between two lines in the log that say what is safe")
    adaptive_parameters: bool = option(True, "whether the mutation rate follows success")
    save_checkpoints: bool = option(True, "whether the run is kept in a file and can be continued")
    use_cache: bool = option(True, "whether what the file already answers is not asked again")

    model: str | tuple[str, ...] | None = option(None, "the model asked, or several; none: see default_model()")
    task: str = option("arithmetic", "a built-in task or a file of problems")
    seed_prompts: tuple[str, ...] | None = option(None, "prompts to begin with; none: our fifty; (): random words")
    selection_method: Selection = option("tournament", "how parents are chosen")
    crossover_method: Crossover = option("single_point", "how two parents are joined")
    held_out_problems: int = option(40, "problems kept away from the search, on which the best prompt is scored once")
    simulated_latency: float = option(0.0, "seconds that a simulated model takes to answer")
    ledger: str | None = option(None, "the file of runs; none: $FANFOLD_LEDGER or fanfold.db")
    seed: int = option(0, "of everything that is drawn")

    def __post_init__(self) -> None:
        self.check_types()
        for name, least in _LEAST.items():
            if getattr(self, name, least) < least:
                raise ConfigError(f"{type(self).__name__}: {name} must be at least {least}, not {getattr(self, name)}")
        for name in _SHARES:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{type(self).__name__}: {name} must be from 0 to 1, not {getattr(self, name)}")
        if self.mutation_rate == 0.0:
            raise ConfigError(f"{type(self).__name__}: mutation_rate must be above 0, or children copy their parents")
        if self.model is not None and not all(self.models):
            raise ConfigError(f"{type(self).__name__}: model is empty: name one, such as local/smollm2")
        if not 1.0 < self.selection_pressure <= 2.0:
            raise ConfigError(
                f"{type(self).__name__}: selection_pressure must be above 1 and at most 2, "
                f"not {self.selection_pressure}"
            )

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that are asked."""
        if self.model is None:
            return (default_model(),)
        return (self.model,) if isinstance(self.model, str) else self.model or ("",)

    @property
    def slots(self) -> int:
        """How many problems are under way at once: one after the other."""
        return 1

    @property
    def window(self) -> int:
        """How many prompts are open at once: that of the asynchronous default, so that both search the same."""
        return PRESETS["balanced"][2]

    @property
    def step(self) -> int:
        """How many problems of a prompt are asked before racing looks at it again; as above."""
        return PRESETS["balanced"][0]

    def asked(self, name: str) -> Model:
        """The model of a name, as these settings have it asked."""
        return asked(name, self.simulated_latency)

    @property
    def file(self) -> str | None:
        """Where runs are kept; None: nowhere."""
        if not self.save_checkpoints:
            return None
        return self.ledger or os.environ.get("FANFOLD_LEDGER") or "fanfold.db"


_LEAST = {
    "population_size": 2,
    "max_generations": 1,
    "elite_size": 0,
    "tournament_size": 1,
    "convergence_patience": 1,
    "fitness_plateau_generations": 1,
    "stagnation_threshold": 1,
    "max_insertions": 0,
    "n_neighbors": 1,
    "max_problems": 1,
    "max_tokens": 1,
    "checkpoint_interval": 1,
    "held_out_problems": 0,
    "async_batch_size": 1,
    "max_concurrent_requests": 1,
    "genome_batch_size": 1,
    "max_concurrent_genomes": 1,
    "async_retry_attempts": 0,
    "simulated_latency": 0.0,
    "async_base_delay": 0.0,
    "async_max_delay": 0.0,
}
_SHARES = (
    "crossover_rate",
    "mutation_rate",
    "semantic_prob",
    "insertion_rate",
    "deletion_rate",
    "swap_rate",
    "duplication_rate",
)


@dataclass(frozen=True)
class AsyncEvolutionConfig(EvolutionConfig):
    """The same evolution with many requests under way.

    The two nested batches of the documents become one queue with three numbers.  Requests in flight:
    `max_concurrent_requests * max_concurrent_genomes`, their product in the documents too.  Prompts open at once:
    `genome_batch_size`.  Problems of a prompt asked before its race is looked at again: `async_batch_size`.  Nothing
    waits for a batch as a whole.
    """

    enable_async_evaluation: bool = option(True, "false: one problem after the other")
    async_batch_size: int = option(20, "problems of a prompt asked at once")
    max_concurrent_requests: int = option(10, "requests in flight for a prompt")
    genome_batch_size: int = option(10, "prompts open at once")
    max_concurrent_genomes: int = option(5, "prompts that have their full number of requests in flight")
    rate_limit_per_minute: float | None = dataclasses.field(
        default_factory=lambda: default_rate(),
        metadata={"help": "requests a minute at most; none: learnt from the provider"},
    )
    async_retry_attempts: int = option(3, "further tries after a failure that may pass")
    async_base_delay: float = option(1.0, "seconds of pause before the first of them, at most; doubled each time")
    async_max_delay: float = option(60.0, "seconds that no pause exceeds")
    async_timeout: float = option(30.0, "seconds that a request may take")
    detailed_performance_logging: bool = option(False, "whether the log has a line of figures per generation")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.async_timeout > 0:
            raise ConfigError(f"async_timeout must be above 0 seconds, not {self.async_timeout}")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A documented preset (`balanced`, `conservative`, `aggressive`), or `adaptive`; changes go on top of it."""
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}{nearest(name, PRESETS)}")
        names = (
            "async_batch_size",
            "max_concurrent_requests",
            "genome_batch_size",
            "max_concurrent_genomes",
            "rate_limit_per_minute",
        )
        return cls(**{**dict(zip(names, PRESETS[name])), **changes})

    @classmethod
    def balanced(cls, **changes: Any) -> Self:
        return cls.preset("balanced", **changes)

    @classmethod
    def conservative(cls, **changes: Any) -> Self:
        return cls.preset("conservative", **changes)

    @classmethod
    def aggressive(cls, **changes: Any) -> Self:
        return cls.preset("aggressive", **changes)

    @classmethod
    def adaptive(cls, **changes: Any) -> Self:
        return cls.preset("adaptive", **changes)

    @classmethod
    def of(cls, config: EvolutionConfig) -> AsyncEvolutionConfig:
        """Settings of a sequential evolution, taken over as they are."""
        if isinstance(config, AsyncEvolutionConfig):
            return config
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})

    @property
    def slots(self) -> int:
        return self.max_concurrent_requests * self.max_concurrent_genomes if self.enable_async_evaluation else 1

    @property
    def window(self) -> int:
        return self.genome_batch_size

    @property
    def step(self) -> int:
        return self.async_batch_size

    @property
    def limits(self) -> Limits:
        return Limits(requests_per_minute=self.rate_limit_per_minute, in_flight=self.slots)

    def asked(self, name: str) -> Model:
        patience = Patience(self.async_retry_attempts, self.async_base_delay, self.async_max_delay)
        made = asked(name, self.simulated_latency, limits=self.limits, timeout=self.async_timeout)
        return dataclasses.replace(made, again=patience)


@dataclass(frozen=True)
class Patience:
    """When a failed request is repeated, in the documents' words: how often, and after how long.

    A refusal for the rate limit is no failure: the limiter paces what follows, and such tries are counted apart, and
    generously, as for every model.
    """

    attempts: int
    base_delay: float
    max_delay: float

    def __call__(self, error: Exception, n: int) -> float | None:
        pause = RetryPolicy(tries=self.attempts + 1, cap=self.max_delay, longest=self.max_delay)(error, n)
        if pause is None or (isinstance(error, CallFailed) and error.retry_after is not None):
            return pause
        return min(self.max_delay, pause * self.base_delay / 0.5)  # the model's own pauses begin at half a second


def default_model() -> str:
    """What is asked where nobody says: $FANFOLD_MODEL, with a key of OpenAI's a small model there, else a local one."""
    return os.environ.get("FANFOLD_MODEL") or (
        "openai/gpt-6-luna" if os.environ.get("OPENAI_API_KEY") else "local/smollm2"
    )


def default_problems() -> int:
    """The documented 100 problems, or $FANFOLD_MAX_PROBLEMS, for a quick look at what old code does."""
    given = os.environ.get("FANFOLD_MAX_PROBLEMS", "100").strip()
    try:
        return int(given)
    except ValueError:
        raise ConfigError(f"FANFOLD_MAX_PROBLEMS is {given!r}: set it to a whole number") from None


def default_rate() -> float | None:
    """The documented 3500 requests a minute, or what $FANFOLD_RATE_LIMIT says of this account: a number, or none."""
    given = os.environ.get("FANFOLD_RATE_LIMIT", "3500").strip().lower()
    try:
        return None if given in ("", "none") else float(given)
    except ValueError:
        raise ConfigError(f"FANFOLD_RATE_LIMIT is {given!r}: set it to requests a minute, or to none") from None


def asked(name: str, latency: float = 0.0, **options: Any) -> Model:
    """The model of a name; a simulated one solves word problems as `solver.solve` does, after some seconds."""
    if name.startswith("simulated/"):
        options = {"answer": "fanfold.legacy.solver:solve", "latency": {"median": latency}, **options}
    return model(name, **options)
