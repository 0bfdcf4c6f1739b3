"""What a search for networks found: the winner on the test part, where it came from, and files of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from fanfold import drawings
from fanfold.running import Go, Run
from fanfold.stats import spearman
from fanfold.strategies import Sweep
from fanfold.strategies.pareto import fronts
from fanfold.studies.neuro import genome as genomes
from fanfold.studies.neuro.baselines import Baselines, Rival, seconds
from fanfold.studies.neuro.config import NeuroConfig
from fanfold.studies.neuro.data import Data
from fanfold.studies.neuro.evaluator import Examiner, Trainer
from fanfold.studies.neuro.export import classifier
from fanfold.studies.neuro.finalists import Finale, Finals
from fanfold.studies.neuro.genome import Ensemble, Individual, NetworkGenome, individual_of
from fanfold.studies.neuro.objectives import points_of
from fanfold.studies.neuro.shown import OURS, SCORES, answered, network_section, sizes
from fanfold.studies.neuro.strategy import weights_of
from fanfold.studies.neuro.targets import as_outputs, interval
from fanfold.study import Study
from fanfold.summary import Curve, Section, Summary
from fanfold.types import Ok, Result

#: Rows of the lists that could be long.
MOST_ROWS = 40
#: Wrong images that are kept for the page, and pixels of their longer side.
IMAGES, SIDE = 24, 64


@dataclass(frozen=True)
class NeuroConclusion:
    """Scores the winner of the search on the test part, once, and writes its files."""

    config: NeuroConfig
    trainer: Trainer
    data: Data

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        results = list(run.results())
        winner = run.best_or_none
        if winner is None:
            return Summary({"winner": None}, (Section("No winner", "no network was trained to the last rung"),))
        genome = individual_of(winner.candidate).genome
        finale = await self._finale(run, go)
        rivals = await self._rivals(run, go, _epochs(results))
        if finale is not None:
            genome = finale.ensemble.members[0].genome
        tested = await self._tested(Individual(genome, weights_of(winner)) if finale is None else finale.ensemble, go)
        shape, last = self.data.shape, _last(winner)
        said = None if tested is None else as_outputs(tested.data["said"], shape.target, shape.classes)
        test = None if said is None else interval(said, torch.from_numpy(self.data.test.labels), shape.scored)
        figures: dict[str, Any] = {
            "winner": {"genome": msgspec.to_builtins(genome), "text": genomes.describe(genome)},
            "validation": last.data["accuracy"] if finale is None else finale.score,
            "score": self._score,
            "kind": shape.kind,
            "test": None if test is None else test[0],
            "test_interval": None if test is None else list(test[1:]),
            "test_images": None if said is None else len(said),
            "parameters": last.data["parameters"],
            "epochs": _epochs(results),
        }
        if finale is not None:
            figures |= finale.figures(shape)
        sections = [
            network_section("Best network", self._text(genome, figures), genome, self.data.shape),
            None if finale is None else finale.section,
            None if tested is None else self._compared(run, rivals, tested, figures, finale),
            None if tested is None else self._mistakes(tested),
            self._spent(figures, results),
            self._front(results),
            self._generations(results),
            Section("Lineage of the winner", "", ("trial", "by", self._score, "network"), _lineage(winner, results)),
            self._curves(results),
            self._ways(results),
        ]
        if self.config.results is not None:
            network = classifier(winner, self.data) if finale is None else finale.network(self.data)
            saved = network.save(Path(self.config.results) / run.id)
            figures["folder"] = str(saved.folder)
            sections.append(Section("Files", "\n".join([f"{saved.folder}: {', '.join(saved.files)}", *saved.notes])))
        return Summary(figures, tuple(section for section in sections if section is not None))

    async def _finale(self, run: Run[Any], go: Go) -> Finale | None:
        """The best again on other folds; not where networks are to be small too, because several together are large."""
        if len(self.config.objectives) > 1:
            return None
        config = self.config
        epochs = (config.finalist_epochs, config.epochs)
        return await Finals(self.trainer, self.data, *epochs, config.finalists, config.seed)(run, go)

    async def _tested(self, winner: Individual | Ensemble, go: Go) -> Ok | None:
        """What the winner said of the test images, and how often it was right."""
        if not len(self.data.test):
            return None
        examiner = Examiner(self.trainer.source, self.trainer.training, self.trainer.seed)
        run = await go("test", Study(Sweep([winner]), examiner, seed=self.config.seed, name="test"))
        for result in run.results():
            for outcome in result.outcomes.values():
                if isinstance(outcome, Ok):
                    return outcome
        return None

    async def _rivals(self, run: Run[Any], go: Go, epochs: int) -> list[Rival]:
        """Others that learnt the same rows; they come before the winner is tested, which stays the run's last word."""
        if self.config.baselines == "no" or not len(self.data.test):
            return []
        return await self._baselines.rivals(run, go, epochs)

    @property
    def _baselines(self) -> Baselines:
        return Baselines(self.config, self.trainer, self.data, self.config.space.within(self.data.shape))

    def _compared(
        self, run: Run[Any], rivals: Sequence[Rival], tested: Ok, figures: dict[str, Any], finale: Finale | None
    ) -> Section | None:
        """The winner beside the others."""
        if not rivals:
            return None
        spent = seconds(run) + (0.0 if finale is None else finale.seconds)
        ours = Rival(OURS, figures["validation"], tested.data["said"], spent, run.progress.told)
        section, figures["baselines"] = self._baselines.section(ours, rivals)
        return section

    def _mistakes(self, tested: Ok) -> Section:
        """What the winner took for what, and the first images that it got wrong."""
        said, labels, classes = tested.data["said"], tested.data["labels"], self.data.classes
        if self.data.shape.target != "classes" or self.data.shape.kind != "images":
            return answered(said, labels, classes, self.data.units)
        wrong = [at for at, (answer, label) in enumerate(zip(said, labels)) if answer != label][:IMAGES]
        every = -(-max(self.data.shape.height, self.data.shape.width) // SIDE)  # large images lose pixels
        drawn = []
        if wrong:
            grey = self.data.test.pixels[wrong].mean(axis=1, dtype=np.float32)[:, ::every, ::every]
            low, high = float(grey.min()), float(grey.max())
            scaled = ((grey - low) * (255.0 / ((high - low) or 1.0))).round().astype(np.uint8)
            images = [
                {"pixels": pixels.tobytes(), "caption": f"{classes[labels[at]]} taken for {classes[said[at]]}"}
                | {"wrong": True}
                for at, pixels in zip(wrong, scaled)
            ]
            drawn.append(drawings.images(scaled.shape[2], scaled.shape[1], images))
        return answered(said, labels, classes, wrong=drawn, unit=self._rows)

    @property
    def _score(self) -> str:
        return SCORES[self.data.shape.scored]

    @property
    def _rows(self) -> str:
        return "images" if self.data.shape.kind == "images" else "rows"

    def _text(self, genome: NetworkGenome, figures: dict[str, Any]) -> str:
        score = figures["score"]
        text = f"{genomes.describe(genome)}\nValidation {score} {figures['validation']:.4f}, by which it was chosen"
        if figures["test"] is None:
            return text + "; there is no test part."
        low, high = figures["test_interval"]
        return (
            f"{text}; test {score} {figures['test']:.4f} (95 % interval {low:.4f} to {high:.4f}, "
            f"{figures['test_images']} {self._rows}, looked at once)."
        )

    def _spent(self, figures: dict[str, Any], results: Sequence[Result[Any]]) -> Section:
        """What the rungs saved, and how the networks ended."""
        every = len(results) * self.config.epochs
        spent = figures["epochs"]
        ends = Counter(_end(result) for result in results)
        text = f"{spent} epochs were trained"
        if every:
            text += f"; every network to the end would have taken {every}, {every / max(1, spent):.1f} times as many."
        rows = tuple(sorted(ends.items(), key=lambda pair: -pair[1]))
        return Section("Effort", text, ("end of the training", "networks"), rows)

    def _front(self, results: Sequence[Result[Any]]) -> Section:
        objectives = self.config.objectives
        complete = [result for result in results if result.complete]
        drawn = sizes([_point(result) for result in complete], self._score)
        if len(objectives) == 1 or not complete:
            return drawn
        points = points_of(complete, objectives)
        rows = [
            (complete[at].number, points[at][0], *(-value for value in points[at][1:]), _brief(complete[at]))
            for at in next(fronts(points))
        ]
        columns = ("trial", *objectives, "network")
        return Section("Pareto front", "", columns, tuple(sorted(rows)[:MOST_ROWS]), drawings=drawn.drawings)

    def _generations(self, results: Sequence[Result[Any]]) -> Section:
        """How scores and diversity moved, in steps of one population."""
        rows: list[tuple[Any, ...]] = []
        best = float("-inf")
        ordered = sorted(results, key=lambda result: result.number)
        for first in range(0, len(ordered), self.config.population):
            part = ordered[first : first + self.config.population]
            scores = [result.score for result in part if result.score is not None]
            best = max([best, *(result.score or 0.0 for result in part if result.complete)])
            kinds = len({_shape(result) for result in part})
            spread = statistics.pstdev(scores) if scores else None
            mean = statistics.fmean(scores) if scores else None
            rows.append((f"{part[0].number}-{part[-1].number}", best, mean, spread, kinds))
        head = ("trials", "best so far", f"mean {self._score}", "deviation", "different shapes")
        drawn = tuple(
            Curve(head[at], tuple((float(g), float(row[at])) for g, row in enumerate(rows, 1) if row[at] is not None))
            for at in (1, 2, 3)
        )
        return Section("Search", "", head, tuple(rows[:MOST_ROWS]), drawn, "generations", up=self._score)

    def _curves(self, results: Sequence[Result[Any]]) -> Section:
        """The validation accuracy of the longest trained networks, epoch by epoch."""
        done = [result for result in results if result.complete]
        done = sorted(done, key=lambda result: -(result.score or 0.0))[:5]
        curves = [[accuracy for accuracy, _ in _last(result).data["curve"]] for result in done]
        longest = max((len(curve) for curve in curves), default=0)
        every = max(1, longest // 20)
        rows = [
            (epoch + 1, *(curve[epoch] if epoch < len(curve) else None for curve in curves))
            for epoch in range(longest)
            if (epoch + 1) % every == 0 or epoch == longest - 1
        ]
        names = [f"trial {result.number}" for result in done]
        drawn = tuple(
            Curve(name, tuple((float(at), accuracy) for at, accuracy in enumerate(curve, 1)))
            for name, curve in zip(names, curves)
        )
        text = _foresight(results)
        columns, title = ("epoch", *names), f"Validation {self._score} of the best"
        return Section(title, text, columns, tuple(rows), drawn, "epochs", up=f"validation {self._score}")

    def _ways(self, results: Sequence[Result[Any]]) -> Section:
        scores = {result.number: result.score for result in results}
        made: Counter[str] = Counter()
        better: Counter[str] = Counter()
        for result in results:
            origin = result.trial.origin or {}
            bars = [scores.get(parent) for parent in origin.get("parents", ())]
            known = [bar for bar in bars if bar is not None]
            for way in str(origin.get("by", "")).split("+"):
                made[way] += 1
                better[way] += bool(known) and result.score is not None and result.score > max(known)
        rows = tuple((way, count, better[way]) for way, count in made.most_common(MOST_ROWS))
        return Section("Ways of making networks", "", ("way", "networks", "better than the parent"), rows)


def _last(result: Result[Any]) -> Ok:
    return [outcome for outcome in result.outcomes.values() if isinstance(outcome, Ok)][-1]


def _epochs(results: Sequence[Result[Any]]) -> int:
    epochs = 0
    for result in results:
        oks = [outcome for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
        epochs += max((outcome.data.get("epochs", 0) for outcome in oks), default=0)
    return epochs


def _end(result: Result[Any]) -> str:
    failures = list(result.failures.values())
    if failures:
        return f"failed: {failures[-1].kind}"
    if result.dropped is not None:
        return result.dropped
    if _last(result).data.get("broken"):
        return "diverged"
    return "stopped by patience" if _last(result).data.get("stopped") else "trained to the end"


def _point(result: Result[Any]) -> tuple[int, float, float, str]:
    """A network as it is drawn by accuracy and size."""
    data = _last(result).data
    return result.number, data["accuracy"], data["parameters"], f"trial {result.number}: {_brief(result)}"


def _brief(result: Result[Any]) -> str:
    return genomes.describe(individual_of(result.candidate).genome)


def _shape(result: Result[Any]) -> tuple[Any, ...]:
    genome = individual_of(result.candidate).genome
    return genome.conv, genome.dense, genome.norm


def _lineage(winner: Result[Any], results: Sequence[Result[Any]]) -> tuple[tuple[Any, ...], ...]:
    """From the winner back through its first parents."""
    known = {result.number: result for result in results}
    rows: list[tuple[Any, ...]] = []
    at: Result[Any] | None = winner
    while at is not None and len(rows) < MOST_ROWS:
        origin = at.trial.origin or {}
        rows.append((at.number, origin.get("by", ""), at.score, _brief(at)))
        parents = [parent for parent in origin.get("parents", ()) if parent < at.number]
        at = known.get(parents[0]) if parents else None
    return tuple(rows)


def _foresight(results: Sequence[Result[Any]]) -> str:
    """How well the first epoch told the end, among those that got there."""
    curves = [[accuracy for accuracy, _ in _last(result).data["curve"]] for result in results if result.complete]
    curves = [curve for curve in curves if len(curve) > 1]
    correlation = spearman([curve[0] for curve in curves], [curve[-1] for curve in curves]) if len(curves) > 4 else None
    return "" if correlation is None else f"Rank correlation of the first epoch with the last: {correlation:.2f}."
