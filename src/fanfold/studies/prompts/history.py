"""What a search for prompts tried, read once: its first prompts, its finalists, what they scored and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import UNSET

from fanfold.prompting.breeding import credit, genome_of
from fanfold.prompting.calibration import Calibration
from fanfold.prompting.genome import Genome
from fanfold.running import Run
from fanfold.studies.prompts.objectives import accuracy, length
from fanfold.types import Result

#: Problems that a prompt must all have right to count as always right.
ALWAYS = 16


class SearchHistory:
    """The told trials of the search, read once.

    With a `calibration`, `results` are of the prompts with their biases; as they were asked, prompts are found, too.
    """

    def __init__(self, told: Sequence[Result[Any]], calibration: Calibration | None = None) -> None:
        self.told = told
        self.results = told if calibration is None else [calibration.calibrated(result) for result in told]
        self.complete = [result for result in self.results if result.complete]
        self._ranked = {genome_of(result): result for result in reversed(self.complete)}
        self._best = {genome_of(result): result for result in reversed(told) if result.complete} | self._ranked

    @property
    def first(self) -> Genome | None:
        """The prompt the search began with: the best-scoring of the seeds would hide how weak they were."""
        seeds = [result for result in self.told if (result.trial.origin or {}).get("by") == "seed"]
        return genome_of(seeds[0]) if seeds else None

    @property
    def baseline(self) -> Genome | None:
        """The prompt that shows all examples, where the search began with it."""
        return self._opened("all examples")

    @property
    def nearest(self) -> Genome | None:
        """The prompt that shows each input the examples most like it and says nothing else, where it was tried."""
        return self._opened("nearest examples")

    def _opened(self, by: str) -> Genome | None:
        return next((genome_of(each) for each in self.told if (each.trial.origin or {}).get("by") == by), None)

    def any_training(self, genome: Genome) -> Result[Any] | None:
        """Its result on the problems of the search, also where it was dropped early."""
        return self._best.get(genome) or next((each for each in self.told if genome_of(each) == genome), None)

    @property
    def ways(self) -> tuple[tuple[Any, ...], ...]:
        """How often each way of making prompts was used, and how often it beat the better parent."""
        earned = sorted(credit(self.results).items(), key=lambda entry: (-entry[1][1], entry[0]))
        return tuple((way, tries, better) for way, (better, tries) in earned)

    def finalists(self, count: int) -> list[Genome]:
        def standing(genome: Genome) -> tuple[float, float, int, int]:
            result = self._ranked[genome]
            mean = accuracy(result)
            return -mean, -self.saving(genome, mean), len(genome.head().split()), result.number

        return sorted(self._ranked, key=standing)[:count]

    def asked(self, genome: Genome) -> Genome:
        """A prompt as the search asked it: without biases."""
        return replace(genome, biases=UNSET) if genome.biases else genome

    def saving(self, genome: Genome, mean: float) -> float:
        """What decides between prompts that are always right: which takes fewer tokens; the more the better."""
        result = self.any_training(genome)
        if result is None or mean < 1.0 or len(result.outcomes) < ALWAYS:
            return 0.0
        return length(result)

    def training(self, genome: Genome) -> Result[Any] | None:
        return self._best.get(genome)

    def calls(self, run: Run[Any]) -> dict[str, Any]:
        """Cells that were run and those that racing, and equal cells, saved."""
        number = len(run.view.cases())
        full = number * len(self.results)
        ran = run.progress.told_evaluations - run.progress.reused  # of prompts that were told, not those under way
        metrics = run.view.counts()
        return {
            "made": metrics.calls,
            "full": full,
            "saved": full - ran,
            "from_ledger": metrics.cached + metrics.shared,
            "seconds": run.progress.elapsed,
            "cost": run.progress.cost,
        }
