"""Batch mode: the fitness of a whole population on a set of queries, by parallel generation and the critic's scores."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold.executors import Executor
from fanfold.models import Model
from fanfold.strategies import Sweep
from fanfold.studies.critic.config import RewardWeights
from fanfold.studies.critic.critic import Critic
from fanfold.studies.critic.domain import answering, response_of
from fanfold.studies.critic.features import features
from fanfold.studies.critic.genome import Prompt
from fanfold.studies.critic.reward import Reward, coherence, unsafe
from fanfold.study import Study
from fanfold.types import Case, Ok


@dataclass(frozen=True)
class Fitness:
    """What the critic expects of prompts on queries, in the order both were given.

    `scores` and `responses` have a row for each prompt; where a response could not be had they hold None, which
    counts nowhere.  `fitness` is the mean expected reward, None for a prompt without any response.
    """

    fitness: tuple[float | None, ...]
    scores: tuple[tuple[float | None, ...], ...]
    responses: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True)
class Respond:
    """Has a model answer the query of a case under a prompt."""

    model: str
    base_url: str | None
    temperature: float
    max_tokens: int

    @functools.cached_property
    def asked(self) -> Model:
        return answering(self.model, self.base_url)

    async def __call__(self, candidate: Prompt, case: Case) -> Ok:
        reply = await self.asked.generate(
            case.data, system=candidate.text, temperature=self.temperature, max_tokens=self.max_tokens
        )
        return Ok(0.0, data={"text": reply.text, "finish": reply.finish, "tokens": reply.output_tokens})


def fitness(
    population: Sequence[Prompt],
    queries: Sequence[str],
    critic: Critic,
    model: str = "local/smollm2",
    *,
    base_url: str | None = None,
    temperature: float = 0.7,
    max_tokens: int = 128,
    weights: RewardWeights | None = None,
    executor: str | Executor = "async:64",
    ledger: str | Path | None = None,
    run: str | None = None,
) -> Fitness:
    """Have every prompt answer every query, as many at once as the executor has slots, and let the critic judge all.

    With a `ledger`, responses are kept and a run of the same name goes on where it stopped.
    """
    if not population or not queries:
        return Fitness((None,) * len(population), ((),) * len(population), ((),) * len(population))
    study = Study(
        Sweep(list(population)),
        Respond(model, base_url, temperature, max_tokens),
        [Case(str(number), query) for number, query in enumerate(queries)],
        failed_score=0.0,
        name="critic-fitness",
    )
    done = study.run(executor, ledger=ledger, run=run)
    told = {result.number: result.outcomes for result in done.results()}
    done.ledger.close()
    kept = [[_kept(told[row][str(column)]) for column in range(len(queries))] for row in range(len(population))]
    return _judged(population, queries, critic, weights or RewardWeights(), kept)


def _kept(outcome: Any) -> tuple[str, int] | None:
    return response_of(outcome.data) if isinstance(outcome, Ok) else None


def _judged(
    population: Sequence[Prompt],
    queries: Sequence[str],
    critic: Critic,
    weights: RewardWeights,
    kept: Sequence[Sequence[tuple[str, int] | None]],
) -> Fitness:
    where = [(p, q, had) for p, row in enumerate(kept) for q, had in enumerate(row) if had is not None]
    rows = [features(population[p], queries[q], text) for p, q, (text, _) in where]
    means = critic.predict(rows).mean.tolist() if rows else []
    scores: list[list[float | None]] = [[None] * len(queries) for _ in population]
    rewards: list[list[float]] = [[] for _ in population]
    for (p, q, (text, tokens)), mean in zip(where, means):
        expected = min(1.0, max(0.0, mean))
        danger = unsafe(population[p].text, queries[q], text)
        scores[p][q] = expected
        rewards[p].append(Reward(expected, expected, coherence(queries[q], text), tokens, danger).total(weights))
    return Fitness(
        tuple(sum(row) / len(row) if row else None for row in rewards),
        tuple(tuple(row) for row in scores),
        tuple(tuple(None if had is None else had[0] for had in row) for row in kept),
    )
