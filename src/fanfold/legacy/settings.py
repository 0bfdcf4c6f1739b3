"""The documented settings of prompt evolution, and the settings of the study `prompts` they stand for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from fanfold.config import Settings, option
from fanfold.errors import ConfigError, nearest
from fanfold.limits import Limits
from fanfold.limits.values import PRESETS
from fanfold.models import Model, model
from fanfold.models.retry import RetryPolicy
from fanfold.prompting.words import Joining, WordRates
from fanfold.strategies.generations import Convergence
from fanfold.studies import prompts
from fanfold.tasks import Task

#: What a documented preset says besides its limits: async_batch_size, max_concurrent_requests, genome_batch_size.
BATCHES = {"balanced": (20, 10, 10), "conservative": (10, 5, 5), "aggressive": (30, 15, 15), "adaptive": (20, 32, 10)}


def names(table: str) -> dict[str, str]:
    """A table of names, one=other; a name alone is the same in both."""
    return {one: other or one for one, _, other in (row.partition("=") for row in table.split())}


#: Documented words for what `Genetic` calls otherwise.
SELECTIONS = names("roulette_wheel=roulette rank_based=rank stochastic_universal_sampling=sus")
#: What settings of the study, of its words and of its end are called in the document.
STUDY = names(
    "elites=elite_size tournament=tournament_size pressure=selection_pressure "
    "adaptive=adaptive_parameters crossover_rate mutation_rate window step max_tokens temperature seed"
)
WORDS = names(
    "crossover=crossover_method semantic=semantic_prob neighbours=n_neighbors insertions=max_insertions "
    "insertion=insertion_rate deletion=deletion_rate swap=swap_rate duplication=duplication_rate"
)
UNTIL = names(
    "generations=max_generations target=target_fitness diversity=diversity_threshold patience=convergence_patience "
    "plateau=fitness_plateau_generations plateau_gain=fitness_plateau_threshold "
    "stagnation=stagnation_threshold stagnation_gain=improvement_threshold"
)
#: The documented fitness: objectives of the study, and what each counts.
FITNESS = {"accuracy": 0.7, "consistency": 0.15, "efficiency": 0.10, "diversity": 0.05, "brevity": 1.0}
#: What simulated models answer, so that old code can be tried without paying.
SOLVER = "fanfold.studies.prompts.simulated:hinted"


@dataclass(frozen=True)
class EvolutionConfig(Settings):
    """An evolution that evaluates one problem after the other: every documented setting with its documented default.

    Settings of ours follow below: what is asked and on what, where it is kept, and the seed.
    """

    population_size: int = option(50, "prompts in a generation", least=2)
    max_generations: int = option(100, "generations at most", least=1)
    crossover_rate: float = option(0.8, "share of prompts with two parents", least=0, most=1)
    mutation_rate: float = option(0.2, "share of a prompt's words that are replaced, at first", above=0, most=1)
    elite_size: int = option(5, "prompts kept with their fitness (at most population_size - 1)", least=0)
    tournament_size: int = option(3, "prompts in a tournament", least=1)
    target_fitness: float = option(0.85, "stop once a prompt has this fitness")
    convergence_patience: int = option(20, "stop after so many generations without any better fitness", least=1)
    fitness_plateau_threshold: float = option(0.001, "what best and mean fitness must gain ...")
    fitness_plateau_generations: int = option(10, "... within so many generations, or it is a plateau", least=1)
    diversity_threshold: float = option(0.05, "stop when prompts are on average no further apart than this")
    stagnation_threshold: int = option(20, "generations within which the best fitness must gain ...", least=1)
    improvement_threshold: float = option(0.01, "... this much, or it is stagnation")
    semantic_prob: float = option(0.9, "share of replaced words that become a synonym, not any word", least=0, most=1)
    insertion_rate: float = option(0.05, "probability of each of max_insertions insertions", least=0, most=1)
    deletion_rate: float = option(0.05, "probability that a word is deleted", least=0, most=1)
    swap_rate: float = option(0.05, "probability that a word changes places with the next", least=0, most=1)
    duplication_rate: float = option(0.02, "probability that a word is doubled", least=0, most=1)
    max_insertions: int = option(3, "words inserted at once, at most", least=0)
    selection_pressure: float = option(1.5, "of the rank-based and the universal selection", above=1, most=2)
    n_neighbors: int = option(50, "synonyms of a word that are considered, at most", least=1)
    max_problems: int = dataclasses.field(
        default_factory=lambda: int(_variable("FANFOLD_MAX_PROBLEMS", "100", "a whole number") or 0),
        metadata=option(0, "problems a prompt is scored on, at most", least=1).metadata,
    )
    temperature: float = option(0.0, "of the model")
    max_tokens: int = option(150, "tokens of a reply, at most", least=1)
    checkpoint_interval: int = option(10, "generations between two lines in the log that say what is safe", least=1)
    adaptive_parameters: bool = option(True, "whether the mutation rate follows success")
    save_checkpoints: bool = option(True, "whether the run is kept in a file and can be continued")
    use_cache: bool = option(True, "whether what the file already answers is not asked again")

    model: str | tuple[str, ...] | None = option(None, "the model asked, or several; none: see default_model()")
    task: str = option("arithmetic", "a built-in task or a file of problems")
    seed_prompts: tuple[str, ...] | None = option(None, "prompts to begin with; none: our fifty; (): random words")
    selection_method: Literal[
        "tournament", "roulette_wheel", "rank_based", "stochastic_universal_sampling", "elitist"
    ] = option("tournament", "how parents are chosen")
    crossover_method: Joining = option("single_point", "how two parents are joined")
    held_out_problems: int = option(40, "problems kept away from the search, to score the best prompt once", least=0)
    simulated_latency: float = option(0.0, "seconds that a simulated model takes to answer", least=0)
    ledger: str | None = option(None, "the file of runs; none: $FANFOLD_LEDGER or fanfold.db")
    seed: int = option(0, "of everything that is drawn")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and not all(self.models):
            raise ConfigError(f"{type(self).__name__}: model is empty: name one, such as local/smollm2")

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that are asked."""
        if self.model is None:
            return (default_model(),)
        return (self.model,) if isinstance(self.model, str) else tuple(self.model) or ("",)

    @property
    def slots(self) -> int:
        """How many problems are under way at once: one after the other."""
        return 1

    @property
    def window(self) -> int:
        """How many prompts are open at once: that of the asynchronous default, so that both search the same."""
        return BATCHES["balanced"][2]

    @property
    def step(self) -> int:
        """How many problems of a prompt are asked before racing looks at it again; as above."""
        return BATCHES["balanced"][0]

    def asked(self, name: str, **options: Any) -> Model:
        """The model of a name, as these settings have it asked."""
        if name.startswith("simulated/"):
            options |= {"answer": SOLVER, "latency": {"median": self.simulated_latency}}
        return model(name, **options)

    @property
    def file(self) -> str | None:
        """Where runs are kept; None: nowhere."""
        return (self.ledger or os.environ.get("FANFOLD_LEDGER") or "fanfold.db") if self.save_checkpoints else None

    @property
    def until(self) -> Convergence:
        """The documented rules of convergence."""
        return Convergence(**self._taken(UNTIL))

    def study(self, task: Task) -> prompts.PromptsConfig:
        """The same search in the words of the study, on a task."""
        problems = len({problem.input for problem in task.problems})
        held_out = min(self.held_out_problems, problems // 3)
        seeds = tuple(self.seed_prompts or ())
        return prompts.PromptsConfig(
            **self._taken(STUDY),
            population=max(2, self.population_size),
            form="words",
            words=WordRates(**self._taken(WORDS), random=self.seed_prompts is not None and not seeds),
            until=self.until,
            model=self.models,
            seeds=seeds[: self.population_size],
            trials=self.population_size * self.max_generations,
            selection=SELECTIONS.get(self.selection_method, self.selection_method),  # type: ignore[arg-type]
            examples=0,
            train=min(self.max_problems, problems - held_out),
            validation=0,
            held_out=held_out,
            objectives=tuple(FITNESS),
            weights=tuple(FITNESS.values()),
        )

    def _taken(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {ours: getattr(self, documented) for ours, documented in names.items()}


@dataclass(frozen=True)
class AsyncEvolutionConfig(EvolutionConfig):
    """The same evolution with many requests under way.

    The two nested batches of the documents become one queue with three numbers.  Requests in flight:
    `max_concurrent_requests * max_concurrent_genomes`, their product in the documents too.  Prompts open at once:
    `genome_batch_size`.  Problems of a prompt asked before its race is looked at again: `async_batch_size`.  Nothing
    waits for a batch as a whole.
    """

    enable_async_evaluation: bool = option(True, "false: one problem after the other")
    async_batch_size: int = option(20, "problems of a prompt asked at once", least=1)
    max_concurrent_requests: int = option(10, "requests in flight for a prompt", least=1)
    genome_batch_size: int = option(10, "prompts open at once", least=1)
    max_concurrent_genomes: int = option(5, "prompts that have their full number of requests in flight", least=1)
    rate_limit_per_minute: float | None = dataclasses.field(
        default_factory=lambda: _variable("FANFOLD_RATE_LIMIT", "3500", "requests a minute, or to none"),
        metadata=option(None, "requests a minute at most; none: learnt from the provider", above=0).metadata,
    )
    async_retry_attempts: int = option(3, "further tries after a failure that may pass", least=0)
    async_base_delay: float = option(1.0, "longest pause before the first of them, in seconds; then doubled", least=0)
    async_max_delay: float = option(60.0, "seconds that no pause exceeds", least=0)
    async_timeout: float = option(30.0, "seconds that a request may take", above=0)
    detailed_performance_logging: bool = option(False, "whether the log has a line of figures per generation")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A documented preset (`balanced`, `conservative`, `aggressive`), or `adaptive`; changes override it."""
        if name not in BATCHES:
            raise ConfigError(f"there is no preset {name!r}{nearest(name, BATCHES)}")
        batch, requests, genomes = BATCHES[name]
        limits = PRESETS[name]
        own = {"async_batch_size": batch, "max_concurrent_requests": requests, "genome_batch_size": genomes}
        own |= {"max_concurrent_genomes": (limits.in_flight or 256) // requests}
        return cls(**{**own, "rate_limit_per_minute": limits.requests_per_minute, **changes})

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
    def again(self) -> RetryPolicy:
        """When a failed request is repeated: the models' own policy, with the documented numbers."""
        longest = self.async_max_delay
        return RetryPolicy(self.async_retry_attempts + 1, cap=longest, first=self.async_base_delay, longest=longest)

    def asked(self, name: str, **options: Any) -> Model:
        limits = Limits(requests_per_minute=self.rate_limit_per_minute, in_flight=self.slots)
        return dataclasses.replace(super().asked(name, limits=limits, timeout=self.async_timeout), again=self.again)


def default_model() -> str:
    """What is asked where nobody says: $FANFOLD_MODEL, with a key of OpenAI's a small model there, else a local one."""
    return os.environ.get("FANFOLD_MODEL") or (
        "openai/gpt-6-luna" if os.environ.get("OPENAI_API_KEY") else "local/smollm2"
    )


def _variable(name: str, default: str, wanted: str) -> float | None:
    """A number of the environment, in place of a documented default; None where it says none."""
    text = os.environ.get(name, default).strip().lower()
    try:
        return None if text in ("", "none") and "none" in wanted else float(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}: set it to {wanted}") from None
