"""What others make of the same split with a part of the search's effort: networks by hand and by luck, and models."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from fanfold.encoding import derive_seed
from fanfold.running import Go, Run
from fanfold.schedules import AllCases, Halving, last_rung
from fanfold.stop import MaxTrials
from fanfold.strategies import Random as RandomSearch
from fanfold.strategies import Sweep
from fanfold.studies.neuro.classical import Classical, fitting
from fanfold.studies.neuro.config import NeuroConfig
from fanfold.studies.neuro.data import Data
from fanfold.studies.neuro.evaluator import Examiner, Trainer
from fanfold.studies.neuro.genome import Individual, individual_of
from fanfold.studies.neuro.shown import SCORES
from fanfold.studies.neuro.space import NetworkSpace, handmade, random_genome
from fanfold.studies.neuro.strategy import weights_of
from fanfold.studies.neuro.targets import as_outputs, difference, interval
from fanfold.study import Study
from fanfold.summary import Section
from fanfold.types import Case, Ok, Result

#: Networks of the random search, and epochs of the hand-made network, as shares of the search's.
RANDOM, BY_HAND = 0.5, 0.15


@dataclass(frozen=True)
class RandomNetwork:
    """Draws a network of the space."""

    space: NetworkSpace

    def __call__(self, rng: Random) -> Individual:
        return Individual(random_genome(self.space, rng))


@dataclass(frozen=True)
class Rival:
    """One who learnt the same rows: its validation score, what it said of the test part, and what it took."""

    name: str
    validation: float
    said: Sequence[Any]
    seconds: float
    networks: int | None = None


@dataclass(frozen=True)
class Baselines:
    """Trains the rivals of a finished search, each in a run of its own beside it."""

    config: NeuroConfig
    trainer: Trainer
    data: Data
    space: NetworkSpace

    async def rivals(self, run: Run[Any], go: Go, epochs: int) -> list[Rival]:
        """All of them; `epochs` are those of the search."""
        longest = min(3 * self.config.epochs, max(self.config.epochs, round(BY_HAND * epochs)))
        network = Individual(handmade(self.space, self.data.shape)[0])
        by_hand = await go("by-hand", self._study(Sweep([network]), (longest,), "by-hand"))
        count = max(1, round(RANDOM * run.progress.told))
        random = self._study(RandomSearch(RandomNetwork(self.space)), self.config.ladder, "random", MaxTrials(count))
        drawn = await go("random", random)
        rivals = [
            await self._tested(name, word, done, go)
            for name, word, done in (("hand-made network", "by-hand", by_hand), ("random search", "random", drawn))
            if done.best_or_none is not None
        ]
        if importlib.util.find_spec("sklearn") is not None:
            rivals += await self._classical(go)
        return rivals

    def _study(self, strategy: Any, ladder: Sequence[int], name: str, stop: Any = None) -> Study[Any]:
        luck = derive_seed(self.config.seed, "networks")
        return Study(
            strategy,
            self.trainer,
            [Case(f"{epochs} epochs", {"epochs": epochs}, luck) for epochs in ladder],
            schedule=AllCases() if len(ladder) == 1 else Halving(self.config.eta, asynchronous=True),
            stop=MaxTrials(1) if stop is None else stop,
            seed=derive_seed(self.config.seed, "baselines", name),
            aggregate=last_rung,
            timeout=self.config.timeout,
            name=name,
            keep=1,
        )

    async def _tested(self, name: str, word: str, run: Run[Any], go: Go) -> Rival:
        winner = run.best
        examiner = Examiner(self.trainer.source, self.trainer.training, self.trainer.seed)
        individual = Individual(individual_of(winner.candidate).genome, weights_of(winner))
        study = Study(Sweep([individual]), examiner, seed=self.config.seed, name="test")
        said = [] if not len(self.data.test) else _data(await go(f"{word}-test", study))["said"]
        return Rival(name, winner.score, said, seconds(run), run.progress.told)

    async def _classical(self, go: Go) -> list[Rival]:
        names = fitting(self.data)
        model = Classical(self.trainer.source, self.trainer.seed)
        run = await go("classical", Study(Sweep(names), model, seed=self.config.seed, name="classical"))
        done = [result for result in run.results() if result.score is not None]
        return [Rival(str(r.candidate), r.score or 0.0, _ok(r).data["said"], _ok(r).data["cpu"]) for r in done]

    def section(self, ours: Rival, rivals: Sequence[Rival]) -> tuple[Section, list[dict[str, Any]]]:
        """The table of all, best first, with the difference to the best rival in words; and the same as figures."""
        shape, scored = self.data.shape, self.data.shape.scored
        word = SCORES[scored]
        wanted = torch.from_numpy(self.data.test.labels)
        outputs = {each.name: as_outputs(each.said, shape.target, shape.classes) for each in (ours, *rivals)}
        scores = {name: interval(said, wanted, scored) for name, said in outputs.items()}
        ranked = sorted((ours, *rivals), key=lambda each: -scores[each.name][0])
        rows = tuple(
            (each.name, *map(_short, scores[each.name]), _short(each.validation), each.networks, round(each.seconds, 1))
            for each in ranked
        )
        best = max(rivals, key=lambda each: scores[each.name][0])
        gap, low, high = difference(outputs[ours.name], outputs[best.name], wanted, scored)
        verdict = "better than" if low > 0 else "worse than" if high < 0 else "not clearly different from"
        by = f"{gap:+.4f} {word} (95 % interval {low:+.4f} to {high:+.4f})"
        brief = f"the search is {verdict} {best.name}: {by}"
        text = f"On the same {len(wanted)} test rows {brief}, the best of them. --baselines no leaves them out."
        columns = ("", f"test {word}", "low", "high", f"validation {word}", "networks", "seconds")
        figures = [
            {"name": name, "test": score, "interval": [low, high], "validation": validation, "seconds": took}
            for name, score, low, high, validation, _, took in rows
        ]
        return Section("Baselines", text, columns, rows, brief=brief), figures


def seconds(run: Run[Any]) -> float:
    """What the evaluations of a run took."""
    return sum(row.seconds or 0.0 for row in run.view.evaluations(blobs=False) if not row.reused)


def _short(value: float) -> float:
    return round(value, 4)


def _ok(result: Result[Any]) -> Ok:
    return next(outcome for outcome in result.outcomes.values() if isinstance(outcome, Ok))


def _data(run: Run[Any]) -> Any:
    return _ok(next(iter(run.results()))).data
