"""Whole populations scored on problems: the study's evaluator under the documented settings, and the class for it."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from fanfold.errors import ConfigError
from fanfold.events import Watcher
from fanfold.legacy import settings
from fanfold.legacy.chronicle import fitness
from fanfold.legacy.performance import Performance, ran
from fanfold.legacy.settings import AsyncEvolutionConfig, EvolutionConfig
from fanfold.legacy.words import PromptGenome, Words, as_candidate, tokens_of
from fanfold.models import Model
from fanfold.strategies import Sweep
from fanfold.studies.prompts.breeding import genome_of
from fanfold.studies.prompts.evaluator import PromptsEvaluator, cases
from fanfold.studies.prompts.genome import Genome
from fanfold.studies.prompts.tasks import Problem, Split, Task, load
from fanfold.study import Study
from fanfold.types import Result

if TYPE_CHECKING:
    from fanfold.legacy.llm import AsyncLLMInterface

#: A problem as old code may have it: ours, a pair of question and answer, or a mapping with these keys.
AnyProblem: TypeAlias = Problem | tuple[str, Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Asking(PromptsEvaluator):
    """The study's evaluator, with models that are asked as old settings say."""

    ask: Callable[[str], Model] = settings.asked

    def asked(self, name: str) -> Model:
        if name not in self._asked:
            self._asked[name] = self.ask(name)
        return self._asked[name]


def evaluator(config: EvolutionConfig, task: Task, ask: Callable[[str], Model] | None = None) -> Asking:
    """What scores one prompt on one problem; prompts of plain words show no examples."""
    said: dict[str, Any] = {"max_tokens": config.max_tokens, "temperature": config.temperature}
    return Asking(task, {}, config.models, **said, ask=ask or config.asked)


def problems_of(config: EvolutionConfig, task: Task) -> Split:
    """The problems of the search and those kept away from it, as many as there are up to what is asked for."""
    there = len({problem.input for problem in task.problems})
    held_out = min(config.held_out_problems, there // 3)
    return task.split(
        seed=config.seed, examples=0, train=min(config.max_problems, there - held_out), validation=0, held_out=held_out
    )


def task_of(config: EvolutionConfig, problems: Sequence[AnyProblem] | None = None) -> Task:
    """The task of the settings, with the given problems in place of its own."""
    task = load(config.task)
    return task if problems is None else dataclasses.replace(task, problems=tuple(_problems(problems)))


def _problems(given: Sequence[AnyProblem]) -> list[Problem]:
    found = []
    for number, each in enumerate(given):
        if isinstance(each, Problem):
            found.append(each)
        elif isinstance(each, Mapping) and {"question", "answer"} <= each.keys():
            found.append(Problem(str(each.get("id", number)), str(each["question"]), each["answer"]))
        elif isinstance(each, tuple) and len(each) == 2:
            found.append(Problem(str(number), str(each[0]), each[1]))
        else:
            raise ConfigError(
                f"problem {number} is {each!r:.80}: give (question, answer), a mapping with question and answer, "
                "or a Problem"
            )
    return found


class AsyncEvaluationPipeline:
    """Scores populations on problems, many requests at a time, with results in the order of the population.

    A failed request makes that problem count as not solved, and the rest goes on.  What was answered before, in this
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
        self.problems = self.task.problems if problems is not None else problems_of(self.config, self.task).train
        #: What the last population took.
        self.performance = Performance()
        self._evaluate = evaluator(self.config, self.task, None if llm is None else llm.asked)
        self._known: dict[Genome, Result[Any]] = {}

    async def evaluate_population(self, genomes: Sequence[Words], watch: Watcher | None = None) -> list[PromptGenome]:
        """The genomes with fitness and accuracy, in their order; fitness is that within this population."""
        wanted = [as_candidate(tokens_of(genome), self.task.labels[0]) for genome in genomes]
        distinct = list(dict.fromkeys(wanted))
        new = [candidate for candidate in distinct if candidate not in self._known]
        found = {**self._known, **(await self._evaluated(new, watch))}
        remembered = (len(genomes) - len(new)) * len(self.problems) * len(self.config.models)
        self.performance = self.performance.plus_cached(remembered)
        if self.config.use_cache:
            self._known = {each: result for each, result in found.items() if not result.failures}
        values = dict(zip(distinct, fitness([found[candidate] for candidate in distinct])))
        return [_scored(genome, found[each], values[each]) for genome, each in zip(genomes, wanted)]

    async def evaluate_genome(self, genome: Words) -> PromptGenome:
        """One genome with its fitness and accuracy."""
        return (await self.evaluate_population([genome]))[0]

    async def _evaluated(self, candidates: Sequence[Genome], watch: Watcher | None) -> dict[Genome, Result[Any]]:
        self.performance = Performance()
        if not candidates:
            return {}
        study: Study[Any] = Study(
            Sweep(list(candidates)),
            self._evaluate,
            cases(self.problems, self.config.models),
            window=self.config.window,
            failed_score=0.0,
            seed=self.config.seed,
            name="population",
        )
        for name in self.config.models:
            self._evaluate.asked(name).line()  # opened here, outside the run, so that its pace outlives the run
        run = await ran(study, self.config, watch, f"population-{secrets.token_hex(6)}")
        with run.ledger:
            self.performance = Performance.of(run)
            results = {result.number: result for result in run.results()}
        return {candidate: typed(results[number]) for number, candidate in enumerate(candidates)}


def typed(result: Result[Any]) -> Result[Any]:
    """A result as the study knows it: its candidate has lost its type on the way through the ledger."""
    return dataclasses.replace(result, trial=dataclasses.replace(result.trial, candidate=genome_of(result)))


def _scored(genome: Words, result: Result[Any], value: float) -> PromptGenome:
    own = genome if isinstance(genome, PromptGenome) else PromptGenome(tokens_of(genome))
    return dataclasses.replace(own, fitness=value, accuracy=result.score)
