"""What a genetic search came to, generation by generation, and when it has converged."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fanfold.config import Settings, option
from fanfold.encoding import encode
from fanfold.events import EvaluationFinished, Event, RunStopped, TrialTold
from fanfold.strategies.breeding import Merit, scores
from fanfold.types import Result


@dataclass(frozen=True)
class Convergence(Settings):
    """When a search in generations is over.  A rule that is None does not count; merits are those of the search."""

    generations: int | None = option(None, "generations, at most", least=1)
    target: float | None = option(None, "stop once the best has this merit")
    diversity: float | None = option(None, "stop when candidates are on average closer together than this", least=0)
    plateau: int | None = option(None, "generations in which best or mean merit must gain ...", least=1)
    plateau_gain: float = option(0.001, "... more than this", least=0)
    patience: int | None = option(None, "generations in which the best merit must rise at all", least=1)
    stagnation: int | None = option(None, "generations in which the best merit must gain ...", least=1)
    stagnation_gain: float = option(0.01, "... more than this", least=0)

    def reason(self, records: Sequence[GenerationRecord]) -> str | None:
        """Why the search is over after these generations, or None."""
        last = records[-1]
        if not last.merits:
            return "failure: no candidate of the generation could be scored"
        if self.target is not None and last.best is not None and last.best >= self.target:
            return f"target: merit {last.best:.3f} has reached {self.target:g}"
        if self.diversity is not None and last.diversity is not None and last.diversity < self.diversity:
            return f"diversity: candidates are {last.diversity:.3f} apart, less than {self.diversity:g}"
        best = [record.best for record in records if record.best is not None]
        mean = [record.mean for record in records if record.best is not None and record.mean is not None]
        if _flat(best, self.plateau, self.plateau_gain) and _flat(mean, self.plateau, self.plateau_gain):
            return f"plateau: neither best nor mean merit has risen in {self.plateau} generations"
        if _flat(best, self.patience, 0.0):
            return f"patience: no better candidate in {self.patience} generations"
        if _flat(best, self.stagnation, self.stagnation_gain):
            return f"stagnation: {best[-1] - best[-1 - (self.stagnation or 0)]:+.4f} in {self.stagnation} generations"
        if self.generations is not None and last.number >= self.generations:
            return f"generation limit: {self.generations}"
        return None


def _flat(values: Sequence[float], over: int | None, gain: float) -> bool:
    """Whether a value rose by no more than `gain` over the last so many generations."""
    return over is not None and len(values) > over and values[-1] - values[-1 - over] <= gain


@dataclass(frozen=True)
class GenerationRecord:
    """One generation, once all of it has been told: the elites of the one before, then those that were born in it.

    `merits` has the merit of each scored member by its number, as it was when the member was new.  `best` is that of
    the best complete member of the search so far; `reason` says why the search ended here, if it did.
    """

    number: int
    members: tuple[Result[Any], ...]
    elites: int
    merits: dict[int, float]
    best: float | None
    mean: float | None
    diversity: float | None
    reason: str | None = None


class Generations:
    """Folds results, in the order of telling, into generations; `records` has those that are complete.

    `Genetic(until=...)` closes a generation when all of it has been told, and ends once there is a `reason`.  A member
    keeps the merit of the generation it was born in, so the best never falls.  A member that was dropped counts with
    its score but is never an elite nor the best.  `apart` gives how far each member is from the others.
    """

    def __init__(self, until: Convergence, elites: int = 0, merit: Merit = scores, apart: Merit | None = None) -> None:
        self.until = until
        self.records: list[GenerationRecord] = []
        #: The best complete result so far.
        self.best: Result[Any] | None = None
        self._count, self._merit, self._apart = elites, merit, apart
        self._elites: list[Result[Any]] = []
        self._told: list[Result[Any]] = []
        self._merits: dict[int, float] = {}

    @classmethod
    def of(cls, results: Iterable[Result[Any]], *settings: Any, **named: Any) -> Generations:
        """The generations of a finished search, told apart by what `Genetic` notes as a candidate's origin."""
        fold, generation = cls(*settings, **named), 1
        for result in results:
            while (result.trial.origin or {}).get("generation", generation) > generation:
                fold.close()
                generation += 1
            fold.tell(result)
        if fold._told:
            fold.close()
        return fold

    @property
    def reason(self) -> str | None:
        """Why the search has converged; None while it has not."""
        return self.records[-1].reason if self.records else None

    @property
    def members(self) -> list[Result[Any]]:
        """The generation that is being told, so far."""
        return [*self._elites, *self._told]

    def tell(self, result: Result[Any]) -> None:
        self._told.append(result)

    def close(self) -> str | None:
        """The generation is complete: write it down, and say why the search has converged, if it has."""
        scored = [member for member in self.members if member.score is not None]
        for member, merit in zip(scored, self._merit(scored)):
            self._merits.setdefault(member.number, merit)
            if member.complete and (self.best is None or merit > self._merits[self.best.number]):
                self.best = member
        merits = {member.number: self._merits[member.number] for member in scored}
        apart = self._apart(scored) if self._apart is not None and len(scored) > 1 else ()
        record = GenerationRecord(
            len(self.records) + 1,
            tuple(self.members),
            len(self._elites),
            merits,
            None if self.best is None else self._merits[self.best.number],
            statistics.fmean(merits.values()) if merits else None,
            statistics.fmean(apart) if apart else None,
        )
        reason = self.until.reason([*self.records, record])
        self.records.append(record if reason is None else replace(record, reason=reason))
        self._renew(scored)
        return reason

    def save(self) -> dict[str, Any]:
        """The fold as data; results by their numbers."""
        records = [{**vars(record), "members": [member.number for member in record.members]} for record in self.records]
        told = [[member.number for member in members] for members in (self._elites, self._told)]
        best = None if self.best is None else self.best.number
        return {"records": records, "told": told, "best": best, "merits": self._merits}

    def load(self, state: Mapping[str, Any], told: Callable[[int], Result[Any]]) -> None:
        for record in state["records"]:
            self.records.append(GenerationRecord(**{**record, "members": tuple(map(told, record["members"]))}))
        self._elites, self._told = (list(map(told, numbers)) for numbers in state["told"])
        self.best = None if state["best"] is None else told(state["best"])
        self._merits = dict(state["merits"])

    def merit_of(self, result: Result[Any]) -> float:
        """The merit of the best, or of a member that may still be an elite."""
        return self._merits[result.number]

    def _renew(self, scored: Sequence[Result[Any]]) -> None:
        """The elites that the next generation begins with, ranked as the search ranks them, no candidate twice."""
        complete = [member for member in scored if member.complete]
        merits = self._merit(complete)
        ranked = sorted(range(len(complete)), key=lambda at: (-merits[at], complete[at].number))
        unique: dict[str, Result[Any]] = {}
        for at in ranked:
            unique.setdefault(encode(complete[at].candidate), complete[at])
        self._elites, self._told = list(unique.values())[: self._count], []
        kept = {member.number for member in (*self._elites, *([] if self.best is None else [self.best]))}
        self._merits = {number: merit for number, merit in self._merits.items() if number in kept}


class GenerationTimes:
    """A watcher of a search in generations, by the clock of its event loop.

    `complete(generation, figures)` is called when a generation is complete and the next begins: seconds spent on
    evaluating it (`evaluation_time`) and on breeding the next (`evolution_time`), `evaluations`, and their `throughput`
    a second.
    """

    def __init__(self, complete: Callable[[int, Mapping[str, float]], None]) -> None:
        self._complete = complete
        #: When each generation began and ended, and how many evaluations it took.
        self._spans: dict[int, tuple[float, float, int]] = {}
        self._starts: dict[int, float] = {}
        self._stopped = 0.0

    def __call__(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(event, EvaluationFinished):
            self._starts.setdefault(event.trial, now - event.seconds)
        elif isinstance(event, TrialTold):
            self._told(event.result, now)
        elif isinstance(event, RunStopped):
            self._stopped = now
            self._ended(max(self._spans, default=0))

    def _told(self, result: Result[Any], now: float) -> None:
        generation = (result.trial.origin or {}).get("generation", 0)
        if generation not in self._spans:
            self._ended(generation - 1)
        # Never before the end of the generation before: the clock of a test may be another than that of evaluations.
        before = self._spans[generation - 1][1] if generation - 1 in self._spans else float("-inf")
        start = max(self._starts.pop(result.number, now), before)
        begun, _, evaluations = self._spans.get(generation, (start, now, 0))
        self._spans[generation] = (min(start, begun), now, evaluations + len(result.outcomes))

    def _ended(self, generation: int) -> None:
        if generation in self._spans:
            self._complete(generation, self.figures(generation))

    def figures(self, generation: int) -> dict[str, float]:
        begun, ended, evaluations = self._spans.get(generation, (0.0, 0.0, 0))
        following = self._spans[generation + 1][0] if generation + 1 in self._spans else max(ended, self._stopped)
        seconds = ended - begun
        return {
            "evaluation_time": seconds,
            "evolution_time": max(0.0, following - ended) if evaluations else 0.0,
            "evaluations": evaluations,
            "throughput": evaluations / seconds if seconds > 0 else 0.0,
        }
