"""What a run of the critic study came to: the best prompt, how satisfaction moved, and what critic and actor learnt."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fanfold.encoding import derive_seed, encode
from fanfold.errors import ReplayDivergence
from fanfold.ledger import Commits, RunJournal
from fanfold.running import Go, Run
from fanfold.stats import mean, spearman
from fanfold.studies.critic.actor import SIGNALS
from fanfold.studies.critic.bank import system_prompt
from fanfold.studies.critic.config import CriticConfig
from fanfold.studies.critic.evaluator import Show, Step, step_of
from fanfold.studies.critic.evolution import Member
from fanfold.studies.critic.memory import QueryRecord
from fanfold.studies.critic.shown import Answered, satisfaction
from fanfold.studies.critic.strategy import CriticStrategy
from fanfold.summary import Section, Summary
from fanfold.types import Ok, Result, Trial

#: Rows of the table of satisfaction, and of the table of generations, at most.
WINDOWS, ROWS = 10, 12
#: Answers it takes to speak of a trend.
TREND = 20


def replayed(config: CriticConfig, queries: Sequence[str], run: Run[Any]) -> CriticStrategy:
    """The search as it stood at the end of a run, from the ledger: everything it learnt, nothing asked again."""
    identity = run.view.info.identity
    search = CriticStrategy(config, queries)
    search.begin(derive_seed(identity["seed"], "strategy"))
    asked: list[Step] = list(search.ask(identity["window"]))
    for result in _as_told(run):
        number, recorded = result.number, step_of(result.candidate)
        if number < len(asked):
            asked[number] = search.follow(asked[number], result.candidate) or asked[number]
        if number >= len(asked) or encode(asked[number]) != encode(recorded):
            raise ReplayDivergence(
                f"trial {number} of run {run.id!r} is not what the study asks now: it has changed since the run"
            )
        search.tell(Result(Trial(number, asked[number]), result.score, result.outcomes, result.dropped))
        asked += search.ask(1)
    return search


def _as_told(run: Run[Any]) -> Iterator[Result[Any]]:
    """The results as the search got them: evaluations that were made again since count as the failures they were."""
    journal, cases = RunJournal(run.ledger, run.view.id, Commits(run.ledger)), run.view.cases()
    for result in run.results():
        if result.number in journal.superseded:
            told = {cases[position].id: outcome for position, outcome in journal.recall(result.number).items()}
            result = Result(result.trial, result.score, told, result.dropped)
        yield result


@dataclass(frozen=True)
class CriticConclusion:
    """Makes the summary of a run."""

    config: CriticConfig
    queries: tuple[str, ...]

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        search = replayed(self.config, self.queries, run)
        records = search.memory.records
        judged = sum(
            isinstance(step_of(result.candidate), Show) and any(isinstance(o, Ok) for o in result.outcomes.values())
            for result in run.results()
        )
        if not records:
            counts = {"answered": 0, "skipped": search.memory.skipped, "unanswered": search.memory.unanswered}
            why = "no response got feedback; see the failures"
            if judged:
                why = f"all {judged} answers got their feedback too late; a run with another name learns from the start"
            return Summary(counts, (Section("Nothing learnt", why),))
        sections = self._sections(search, records, judged - search.memory.answered)
        return Summary(self._figures(search, records), tuple(sections))

    def _text(self, member: Member) -> str:
        return system_prompt(member.prompt, self.config.pinned)

    def _figures(self, search: CriticStrategy, records: Sequence[QueryRecord]) -> dict[str, Any]:
        population, memory, best = search.population, search.memory, search.population.best
        windows = _windows(records)
        after = [record for record in records if record.number >= self.config.bootstrap_queries]
        return {
            "best_prompt": {"text": self._text(best), "sections": best.prompt.sections, "fitness": best.fitness},
            "ask": self.config.ask,
            "answered": memory.answered,
            "skipped": memory.skipped,
            "unanswered": memory.unanswered,
            "satisfaction": [asdict(mean([record.feedback for record in window])) for window in windows],
            "slope": slope([record.feedback for record in records]),
            "best_fitness": [window[-1].best for window in windows],
            "variance_between_prompts": statistics.pvariance([member.fitness for member in population.members]),
            "critic_rank_correlation": _agreement(after),
            "critic_error": _error(after),
            "generations": [asdict(generation) for generation in population.generations],
            "evolution_stopped": search.evolution_stopped,
            "population": len(population.members),
            "temperatures": dict(Counter(str(record.temperature) for record in records)),
            "actor": dict(zip(SIGNALS, search.actor.shows.weights.tolist())),
        }

    def _sections(self, search: CriticStrategy, records: Sequence[QueryRecord], later: int) -> list[Section]:
        population, memory, best = search.population, search.memory, search.population.best
        generations = population.generations
        stopped = (
            "evolution stopped: the best no longer improved" if search.evolution_stopped else "evolution continued"
        )
        after = [record for record in records if record.number >= self.config.bootstrap_queries]
        agreement = _agreement(after)
        trend = slope([record.feedback for record in records])
        pairs = self.config.ask == "pair"
        moved = "" if trend is None or pairs else f"Satisfaction moved by {100 * trend:+.3f} in 100 queries. "
        late = f" in time ({later} got it later, which taught nothing)" if later > 0 else ""
        told = (
            f"{memory.answered} answered, {memory.skipped} without a response, {memory.unanswered} without feedback"
            f"{late}. {moved}Rank correlation of what the critic expected with the feedback: "
            + ("not known." if agreement is None else f"{agreement:.2f}.")
        )
        members = sorted(population.members, key=lambda member: -member.fitness)
        liked = "A preferred" if pairs else "feedback"
        return [
            Section("Best prompt", self._text(best)),
            replace(
                next(satisfaction([Answered(record.feedback, record.expected) for record in records], told, pairs)),
                columns=(
                    "queries",
                    liked,
                    "low",
                    "high",
                    "reward",
                    "best fitness",
                    "critic's rank correlation",
                ),
                rows=tuple(_window_row(window) for window in _windows(records)),
            ),
            Section(
                "Population",
                "",
                ("fitness", "evidence", "born after", "prompt"),
                tuple((m.fitness, m.evidence, m.born, " / ".join(self._text(m).splitlines())) for m in members),
            ),
            Section(
                "Generations",
                f"{len(generations)} generations; {stopped}.",
                ("after", "best", "mean", "variance", "diversity"),
                tuple((g.query, g.best, g.mean, g.variance, g.diversity) for g in _spread(generations, ROWS)),
            ),
        ]


def _windows(records: Sequence[QueryRecord]) -> list[Sequence[QueryRecord]]:
    """The records in up to so many parts of equal size, the last one perhaps shorter."""
    size = max(10, -(-len(records) // WINDOWS))
    return [records[start : start + size] for start in range(0, len(records), size)]


def _window_row(window: Sequence[QueryRecord]) -> tuple[Any, ...]:
    seen = mean([record.feedback for record in window])
    known = len(window) > 1
    return (
        f"{window[0].number + 1}-{window[-1].number + 1}",
        seen.estimate,
        max(0.0, seen.low) if known else None,
        min(1.0, seen.high) if known else None,
        statistics.fmean(record.reward for record in window),
        window[-1].best,
        _agreement(window),
    )


def _spread(items: Sequence[Any], many: int) -> Sequence[Any]:
    """So many of the items at equal distances, the first and the last among them."""
    if len(items) <= many:
        return items
    return [items[round(i * (len(items) - 1) / (many - 1))] for i in range(many)]


def _agreement(records: Sequence[QueryRecord]) -> float | None:
    """How well the critic's guesses rank what was shown, by the feedback it then got."""
    if len(records) < 3:
        return None
    return spearman([record.expected for record in records], [record.feedback for record in records])


def _error(records: Sequence[QueryRecord]) -> float | None:
    """The critic's mean absolute error on feedback it had not seen."""
    return statistics.fmean(abs(r.expected - r.feedback) for r in records) if records else None


def slope(values: Sequence[float]) -> float | None:
    """The least-squares slope of values against their position; None where there are too few to speak of a trend."""
    if len(values) < TREND:
        return None
    return statistics.linear_regression(range(len(values)), values).slope
