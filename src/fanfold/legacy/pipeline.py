"""Whole populations scored on problems by the study's evaluator, under the documented settings and names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fanfold.errors import ConfigError
from fanfold.events import Watcher
from fanfold.legacy.performance import Performance, StudyRuns
from fanfold.legacy.settings import FITNESS, AsyncEvolutionConfig, EvolutionConfig
from fanfold.prompting.words import Tokens, as_genome
from fanfold.schedules import AllCases
from fanfold.stop import Never
from fanfold.strategies import Sweep
from fanfold.studies import prompts
from fanfold.studies.prompts.evaluator import cases
from fanfold.studies.prompts.objectives import merit
from fanfold.study import Study
from fanfold.tasks import Problem, Split, Task, load

if TYPE_CHECKING:
    from fanfold.legacy.llm import AsyncLLMInterface

#: A problem as old code may have it: ours, a pair of question and answer, or a mapping with these keys.
AnyProblem: TypeAlias = Problem | tuple[str, Any] | Mapping[str, Any]
Words: TypeAlias = "str | Sequence[str] | PromptGenome"

fitness = merit(tuple(FITNESS), tuple(FITNESS.values()))


@dataclass(frozen=True)
class PromptGenome:
    """A prompt of the documented kind: its words, what they are worth, and where they come from."""

    tokens: Tokens
    fitness: float | None = None
    accuracy: float | None = None
    generation: int = 0
    parents: tuple[int, ...] = ()
    mutations: tuple[str, ...] = ()
    number: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, words: Words) -> PromptGenome:
        """A prompt, however it is given."""
        if isinstance(words, PromptGenome):
            return words
        return cls(tuple(words.split()) if isinstance(words, str) else tuple(words))

    @property
    def text(self) -> str:
        return " ".join(self.tokens)

    def __str__(self) -> str:
        return self.text


def task_of(config: EvolutionConfig, problems: Sequence[AnyProblem] | None = None) -> Task:
    """The task of the settings, with the given problems in place of its own."""
    task = load(config.task)
    if problems is None:
        return task
    return dataclasses.replace(task, problems=tuple(_problem(*each) for each in enumerate(problems)))


def study_of(config: EvolutionConfig, task: Task) -> Study[Any]:
    """The study that an evolution of these settings is; it concludes nothing."""
    return dataclasses.replace(prompts.study(config.study(task), task, config.asked), conclude=None)


def _problem(number: int, problem: AnyProblem) -> Problem:
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, Mapping) and {"question", "answer"} <= problem.keys():
        return Problem(str(problem.get("id", number)), str(problem["question"]), problem["answer"])
    if isinstance(problem, tuple) and len(problem) == 2:
        return Problem(str(number), str(problem[0]), problem[1])
    raise ConfigError(
        f"problem {number} is {problem!r:.80}: give (question, answer), a mapping with both, or a Problem"
    )


def split_of(config: EvolutionConfig, task: Task) -> Split:
    """The problems of the search and those kept away from it."""
    study = config.study(task)
    return task.split(study.seed, examples=0, train=study.train or 0, validation=0, held_out=study.held_out or 0)


class AsyncEvaluationPipeline:
    """Scores populations on problems, many requests at a time, with results in the order of the population.

    A failed request makes that problem count as not solved, and the rest continues.  What was answered before, in this
    pipeline or in the ledger file of the settings, is not asked again.  The pace of requests is kept from one
    population to the next, and shared with `llm` where one is given.
    """

    def __init__(
        self,
        config: EvolutionConfig | None = None,
        problems: Sequence[AnyProblem] | None = None,
        llm: AsyncLLMInterface | None = None,
    ) -> None:
        self.config: EvolutionConfig = config or (AsyncEvolutionConfig() if llm is None else llm.config)
        self.task = task_of(self.config, problems)
        self.problems = self.task.problems if problems is not None else split_of(self.config, self.task).train
        #: What the last population took.
        self.performance = Performance()
        self._study = study_of(self.config, self.task)
        self._runs = StudyRuns(self.config)

    async def evaluate_population(self, genomes: Sequence[Words], watch: Watcher | None = None) -> list[PromptGenome]:
        """The genomes with fitness and accuracy, in their order; fitness is that within this population."""
        population = [PromptGenome.of(genome) for genome in genomes]
        self.performance = Performance()
        if not population:
            return []
        study = dataclasses.replace(
            self._study,
            strategy=Sweep([as_genome(genome.tokens, self.task.labels[0]) for genome in population]),
            cases=cases(self.problems, self.config.models),
            schedule=AllCases(),
            stop=Never(),
            failed_score=0.0,
        )
        results, self.performance = await self._runs.results(study, "population", watch)
        distinct = {genome.tokens: result for genome, result in zip(population, results)}
        values = dict(zip(distinct, fitness(list(distinct.values()))))
        return [
            dataclasses.replace(genome, fitness=values[genome.tokens], accuracy=result.score)
            for genome, result in zip(population, results)
        ]

    async def evaluate_genome(self, genome: Words) -> PromptGenome:
        """One genome with its fitness and accuracy."""
        return (await self.evaluate_population([genome]))[0]
