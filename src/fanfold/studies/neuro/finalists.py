"""The best networks of a search again, on other folds of the data: what they are worth, and which to average.

The score that a search chose a network by is partly luck.  So the genomes of the best few are trained from nothing on
folds that each set other rows aside, of as many rows as the validation part.  The mean over the folds ranks them, and
the networks of the best genomes, as many as validate best together, answer as one: rows that one of them set aside,
others have learnt from.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fanfold.encoding import derive_seed, digest
from fanfold.running import Go, Run
from fanfold.strategies import Sweep
from fanfold.studies.neuro import targets
from fanfold.studies.neuro.augmentation import meant
from fanfold.studies.neuro.data import Data, Images, Resident, Source, resident
from fanfold.studies.neuro.evaluator import Trainer
from fanfold.studies.neuro.export import Classifier, together
from fanfold.studies.neuro.genome import Ensemble, Individual, Shape, describe, individual_of, key
from fanfold.studies.neuro.layout import parameters
from fanfold.studies.neuro.morph import unpacked
from fanfold.studies.neuro.shown import SCORES
from fanfold.studies.neuro.splits import split, strata
from fanfold.studies.neuro.strategy import weights_of
from fanfold.studies.neuro.training import scored
from fanfold.study import Study
from fanfold.summary import Section
from fanfold.types import Blob, Case, Ok, Outcome, Result

#: Folds that finalists are trained on, and networks that must have been tried for each finalist.
FOLDS, TRIED = 3, 8
#: Times as many epochs for a finalist that varies its images: it sees none of them twice.
LONGER = 2


@dataclass(frozen=True)
class Finale:
    """Networks that answer together, and what they are worth on rows that they had not seen.

    `temperature` is what their outputs are divided by so that their chances fit such rows.
    """

    ensemble: Ensemble
    score: float
    temperature: float
    section: Section
    seconds: float

    @property
    def weights(self) -> list[Blob]:
        return [member.inherited for member in self.ensemble.members if member.inherited is not None]

    def figures(self, shape: Shape) -> dict[str, Any]:
        return {
            "ensemble": [weights.digest for weights in self.weights],
            "temperature": self.temperature,
            "parameters": sum(parameters(member.genome, shape) for member in self.ensemble.members),
        }

    def network(self, data: Data) -> Classifier:
        return together(self.weights, data, self.score, self.temperature)


@dataclass(frozen=True)
class FoldTrainer:
    """Trains networks from nothing on the fold that a case names."""

    trainer: Trainer
    folds: int
    #: Times as many epochs for networks that vary their images.
    longer: int = 1

    passing: ClassVar[tuple[str, ...]] = ("state",)

    @functools.cached_property
    def fingerprint(self) -> str:
        parts = (self.trainer.fingerprint, self.folds, *([] if self.longer == 1 else [self.longer]))
        return f"neuro-folds-1@{digest(repr(parts)).hex()[:16]}"

    def __call__(self, candidate: Any, case: Case) -> Outcome:
        data = fold(self.trainer.source, case.data["fold"], self.folds, self.trainer.seed)
        varied = any(meant(individual_of(candidate).genome.augment, data.augment))
        epochs = case.data["epochs"] * (self.longer if varied else 1)
        trainer = replace(self.trainer, source=data, last=epochs)
        return trainer(candidate, replace(case, data={**case.data, "epochs": epochs}))


@functools.lru_cache(maxsize=2 * FOLDS)
def fold(source: Source | Data, number: int, folds: int, seed: int) -> Data:
    """The data with other rows for validation: those of one fold of all rows that are not for the test."""
    data = resident(source, "cpu", "float32", seed).data
    whole = _joined(data.train, data.validation)
    parts = split(strata(whole.labels, data.shape.target), [len(data.validation)] * folds, seed, data.name)[1:]
    rest = np.setdiff1d(np.arange(len(whole)), parts[number])
    return replace(data, train=whole.take(rest), validation=whole.take(parts[number]))


def _joined(one: Images, other: Images) -> Images:
    def both(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    return Images(both("pixels"), both("labels"), None if one.weights is None else both("weights"))


@dataclass(frozen=True)
class Finals:
    """Trains the best `most` networks of a search on folds, and chooses those that answer together.

    Without a number of `epochs`, it is `usual`, and `LONGER` times that for networks that vary their images.
    """

    trainer: Trainer
    data: Data
    epochs: int | None
    usual: int
    most: int
    seed: int

    async def __call__(self, run: Run[Any], go: Go) -> Finale | None:
        """None where too few networks were tried, or there are too few rows."""
        best = _best(list(run.results()), min(self.most, run.progress.told // TRIED))
        rows = len(self.data.train) + len(self.data.validation) - self.data.shape.classes
        folds = min(FOLDS, rows // (2 * len(self.data.validation)))
        if not best or folds < 1:
            return None
        cases = [
            Case(f"fold {k + 1}", {"epochs": self.epochs or self.usual, "fold": k}, derive_seed(self.seed, "fold", k))
            for k in range(folds)
        ]
        genomes = [Individual(individual_of(result.candidate).genome) for result in best]
        trainer = FoldTrainer(self.trainer, folds, LONGER if self.epochs is None else 1)
        done = await go("finalists", Study(Sweep(genomes), trainer, cases, seed=self.seed, name="finalists"))
        trained = {result.number: result for result in done.results() if result.complete}
        if not trained:
            return None
        spent = sum(row.seconds or 0.0 for row in done.cells())
        return replace(self._finale(best, trained, folds), seconds=spent)

    def _finale(self, best: Sequence[Result[Any]], trained: Mapping[int, Result[Any]], folds: int) -> Finale:
        parts = [Resident(fold(self.trainer.source, k, folds, self.trainer.seed)) for k in range(folds)]
        networks = {number: _networks(result) for number, result in trained.items()}
        validated = Validated(self.data.shape, parts, networks)
        ranked = sorted(networks, key=lambda number: validated.worth([number]), reverse=True)
        # The larger of equals: it depends less on luck.
        count = max(range(1, len(ranked) + 1), key=lambda many: (validated.worth(ranked[:many])[0], many))
        numbers = ranked[:count]
        members = [member for number in numbers for member in networks[number]]
        if 0 in numbers and (weights := weights_of(best[0])) is not None:  # trained in the search already
            members.insert(0, Individual(individual_of(best[0].candidate).genome, weights))
        score = SCORES[self.data.shape.scored]
        rows = tuple(
            (
                best[number].number,
                best[number].score,
                validated.worth([number])[0],
                "yes" if number in numbers else "no",
                describe(individual_of(best[number].candidate).genome),
            )
            for number in ranked
        )
        worth = validated.worth(numbers)[0]
        text = f"{len(members)} networks answer together: {score} {worth:.4f} on rows that they had not learnt from."
        head = ("trial", f"{score} in the search", f"mean of {folds} folds", "answers", "network")
        section = Section("Finalists", text, head, rows)
        return Finale(Ensemble(tuple(members)), worth, validated.temperature(numbers), section, 0.0)


class Validated:
    """Finalists by number, one network for each fold, and their outputs for the rows that the fold set aside."""

    def __init__(self, shape: Shape, parts: Sequence[Resident], networks: Mapping[int, Sequence[Individual]]) -> None:
        self.shape, self.wanted = shape, [part.validation[1] for part in parts]
        self._outputs = {
            number: [_outputs(member, part) for member, part in zip(members, parts, strict=True)]
            for number, members in networks.items()
        }

    def outputs(self, numbers: Sequence[int]) -> list[Tensor]:
        """What some of them say together, fold by fold."""
        return [torch.stack(same).mean(0) for same in zip(*(self._outputs[number] for number in numbers))]

    def worth(self, numbers: Sequence[int]) -> tuple[float, float]:
        """The mean score over the folds, and the loss, less being better, to tell equals apart."""
        pairs = list(zip(self.outputs(numbers), self.wanted))
        scores = [float(targets.score(outputs, wanted, self.shape.scored)) for outputs, wanted in pairs]
        losses = [float(targets.loss(outputs, wanted, self.shape.target)) for outputs, wanted in pairs]
        return fmean(scores), -fmean(losses)

    def temperature(self, numbers: Sequence[int]) -> float:
        return targets.temperature(torch.cat(self.outputs(numbers)), torch.cat(self.wanted), self.shape.target)


def _best(results: Sequence[Result[Any]], count: int) -> list[Result[Any]]:
    """The best complete results of different genomes; of equals, the first."""
    complete = [result for result in results if result.complete and result.score is not None]
    kinds: dict[str, Result[Any]] = {}
    for result in sorted(complete, key=lambda result: (-(result.score or 0.0), result.number)):
        kinds.setdefault(key(individual_of(result.candidate).genome), result)
    return list(kinds.values())[:count]


def _networks(result: Result[Any]) -> list[Individual]:
    genome = individual_of(result.candidate).genome
    outcomes = result.outcomes.values()
    return [Individual(genome, outcome.data["weights"]) for outcome in outcomes if isinstance(outcome, Ok)]


def _outputs(member: Individual, part: Resident) -> Tensor:
    assert member.inherited is not None
    genome, arrays = unpacked(member.inherited.read())
    net = {name: torch.tensor(np.asarray(array, np.float32)) for name, array in arrays.items()}
    return scored([(genome, net)], part.validation[0])
