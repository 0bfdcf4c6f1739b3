"""The guided search: proposes prompts by what it has learnt of their parts; examples first, instructions last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from fanfold.encoding import encode
from fanfold.prompting.beliefs import Beliefs, Features
from fanfold.prompting.breeding import candidate_of, genome_of
from fanfold.prompting.calibration import Calibration
from fanfold.prompting.genome import SECTIONS, SLOT, Genome
from fanfold.prompting.material import Material, broken_rules, mend
from fanfold.prompting.operators import change_choice, varied
from fanfold.strategy import Strategy
from fanfold.types import Ok, Result

#: Prompts that are thought of for every one that is proposed: made at random, and neighbours of the best so far.
FRESH, NEAR = 150, 150
#: How many of the best have neighbours, and how far a draw strays from what is believed.
LEADERS, SPREAD = 4, 0.7
#: How often a random prompt has the task's own labels, and no words at all beside labels and examples.
OWN_LABELS, BARE = 0.5, 0.4
#: So many examples are believed to be worth as much as more of them may be.
FEW = 4
#: How often a random prompt shows as many examples as it may, and how often those most like the input: so many.
FULL, BY_INPUT, NEAREST = 0.5, 0.4, (2, 4, 8, 16)


class GuidedPrompts(Strategy[Genome]):
    """Thompson sampling over prompts: one draw of what labels, clauses and examples are worth, the best prompt for it.

    The first prompt shows all examples and says nothing else: what a search finds must be better than that.  `shots`
    gives input and answer of the problems that may be shown; `seeds` are prompts of the user's own, tried next.  Then
    all examples are shown under the first instruction of the material, and each input those most like it.
    Every result teaches, also that of a prompt that was dropped after a few cases; with a `calibration`, what it would
    have scored if the model preferred no answer.
    """

    def __init__(
        self,
        material: Material,
        shots: Mapping[str, tuple[str, str]],
        seeds: Sequence[Genome] = (),
        calibration: Calibration | None = None,
    ) -> None:
        self._material, self._calibration = material, calibration
        self._answers = {id: answer for id, (_, answer) in shots.items()}
        self._kinds = len(set(self._answers.values()))
        self._labels = material.labels or (Genome().labels,)
        shown, told = self._all_examples(), material.clauses.get("instruction", ())[:1]
        self._opening = [(shown, "all examples"), *((seed, "seed") for seed in seeds)]
        if told:
            self._opening.append((mend(replace(shown, instruction=tuple(told)), material), "all examples, told"))
        if material.by_input and (counts := self._counts()):
            near = replace(shown, examples=tuple(material.examples), nearest=counts[-2:][0])
            self._opening.append((mend(near, material), "nearest examples"))
        self._beliefs = Beliefs()
        self._proposed: dict[str, tuple[str, list[int]]] = {}
        self._numbers: dict[Genome, int] = {}
        self._told = False

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the proposals depend on, besides what is told."""
        parts = {"_material": self._material, "answers": encode(self._answers), "opening": encode(self._opening)}
        return parts if self._calibration is None else {**parts, "calibration": self._calibration}

    def ask(self, n: int) -> list[Genome]:
        if not self._proposed:  # alone: what follows is compared with it from its first case on
            return [self._next()] if n else []
        return [self._next() for _ in range(n)] if self._told else []

    def tell(self, result: Result[Genome]) -> None:
        self._told = True
        genome = genome_of(result)
        if self._calibration is not None:
            result = self._calibration.calibrated(result)
        scores = [outcome.score for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
        if scores:
            mean = result.score if result.score is not None else sum(scores) / len(scores)
            self._beliefs.see(self.features(genome), mean, len(scores))
            self._numbers.setdefault(genome, result.number)

    def origin(self, candidate: Any) -> Any:
        by, parents = self._proposed.get(encode(candidate_of(candidate)), ("guided", []))
        return {"by": by, "parents": parents}

    def features(self, genome: Genome) -> Features:
        """What may make a prompt good: its labels, its clauses, which examples it shows, how many, and the last one."""
        shown, most = genome.examples, max(1, self._material.most_examples)
        features = {f"labels {genome.labels}": 1.0, "examples": len(shown) / most}
        features |= {f"clause {clause.strip()}": 1.0 for clause in genome.clauses} or {"no words": 1.0}
        if genome.worked:
            features["own answers"] = 1.0
        if genome.nearest:
            return {**features, "examples": genome.shown / most, "by input": 1.0, f"nearest {genome.nearest}": 1.0}
        share = math.sqrt(FEW / max(FEW, len(shown)))  # what is not known yet of a prompt does not grow with its length
        features |= {f"example {id}": share for id in shown}
        if shown:
            features |= {f"last {shown[-1]}": 0.5, f"last answer {self._answers[shown[-1]]}": 0.5}
            features["cover"] = len({self._answers[id] for id in shown}) / self._kinds
        return features

    def _next(self) -> Genome:
        if self._opening:
            genome, by = self._opening.pop(0)
            parents: list[Genome] = []
        else:
            genome, by, parents = self._draw()
        self._proposed[encode(genome)] = by, [self._numbers[parent] for parent in parents]
        return genome

    def _draw(self) -> tuple[Genome, str, list[Genome]]:
        """The best prompt of one possible world that was not proposed yet, and the ones it was made from."""
        rng = self.rng
        posterior = self._beliefs.posterior()
        draw = posterior.draw(rng, SPREAD)
        pool: list[tuple[Genome, str, list[Genome]]] = [(self._random(rng), "fresh", []) for _ in range(FRESH)]
        leaders = sorted(self._numbers, key=lambda genome: -posterior.expected(self.features(genome)))[:LEADERS]
        for _ in range(NEAR if leaders else 0):
            leader = rng.choice(leaders)
            pool.append((self._neighbour(leader, leaders, rng), "near the best", [leader]))
        new = {encode(entry[0]): entry for entry in pool if not broken_rules(entry[0], self._material)}
        for known in self._proposed:
            new.pop(known, None)
        if not new:  # everything was tried: another order of the examples is still another prompt
            return self._random(rng), "fresh", []
        return max(new.values(), key=lambda entry: draw.score(self.features(entry[0])))

    # -- prompts -----------------------------------------------------------------------------------------------------

    def _all_examples(self) -> Genome:
        shown = self._material.examples[: self._material.most_examples]
        return mend(Genome(labels=self._labels[0], examples=tuple(shown)), self._material)

    def _random(self, rng: Random) -> Genome:
        most = min(self._material.most_examples, len(self._material.examples))
        examples = self._covering(rng, most if rng.random() < FULL else rng.randint(min(2, most), most))
        by_input = self._by_input(rng) if self._material.by_input and rng.random() < BY_INPUT else {}
        labels = self._labels[0] if rng.random() < OWN_LABELS else rng.choice(self._labels)
        sections: dict[str, Any] = {}
        if rng.random() >= BARE:
            for name in SECTIONS:
                bank = self._material.clauses.get(name, ())
                chance = 0.8 if name == "instruction" else 0.25
                if bank and rng.random() < chance:
                    sections[name] = (rng.choice(bank),)
        if (words := self._material.words) is not None:
            sections = {name: (*sections.get(name, ()), *own) for name, own in words.sections.items()}
        genome = mend(Genome(**{**sections, "examples": examples, "labels": labels, **by_input}), self._material)
        return varied(genome, self._material, rng)

    def _covering(self, rng: Random, count: int) -> tuple[str, ...]:
        """So many examples: first one of every answer, as far as that goes, then any; in any order."""
        ids = list(self._material.examples)
        rng.shuffle(ids)
        firsts = list({self._answers[id]: id for id in reversed(ids)}.values())
        rng.shuffle(firsts)
        shown = [*firsts, *(id for id in ids if id not in firsts)][:count]
        rng.shuffle(shown)
        return tuple(shown)

    def _by_input(self, rng: Random) -> dict[str, Any]:
        """All examples, and how many of them a prompt shows to each input."""
        counts = self._counts()
        return {"examples": self._material.examples, "nearest": rng.choice(counts)} if counts else {}

    def _counts(self) -> list[int]:
        most = min(self._material.most_examples, len(self._material.examples) - 1)
        return [count for count in NEAREST if count <= most]

    def _neighbour(self, genome: Genome, leaders: Sequence[Genome], rng: Random) -> Genome:
        """A prompt with one thing changed."""
        shown, others = list(genome.examples), [id for id in self._material.examples if id not in genome.examples]
        choices = ("choice", "choice") if self._material.choices else ()
        moves = ("swap", "add", "drop", "order", "order", "labels", "words", "union", *choices)
        if genome.nearest:
            moves = ("nearest", "nearest", "labels", "words", *choices)
        move = rng.choice(moves)
        if move == "swap" and shown and others:
            shown[rng.randrange(len(shown))] = rng.choice(others)
        elif move == "add" and others and len(shown) < self._material.most_examples:
            shown.insert(rng.randint(0, len(shown)), rng.choice(others))
        elif move == "drop" and len(shown) > 1:
            shown.pop(rng.randrange(len(shown)))
        elif move == "order":
            rng.shuffle(shown)
        elif move == "union":
            other = rng.choice(leaders)
            both = list(dict.fromkeys([*shown, *other.examples]))
            rng.shuffle(both)
            shown = both[: self._material.most_examples]
        elif move == "labels":
            return replace(genome, labels=rng.choice(self._labels))
        elif move == "words":
            name = rng.choice(SECTIONS)
            bank = self._material.clauses.get(name, ())
            words = () if not bank or rng.random() < 0.3 else (rng.choice(bank),)
            stay = (text for text in getattr(genome, name) if SLOT in text or text.strip() in self._material.fixed)
            section: dict[str, Any] = {name: (*words, *stay)}
            return mend(replace(genome, **section), self._material)
        elif move == "nearest":
            return replace(genome, **self._by_input(rng))
        elif move == "choice":
            return change_choice(genome, self._material, rng) or genome
        return replace(genome, examples=tuple(shown))


class RandomPrompts(GuidedPrompts):
    """The same prompts in the same opening, proposed at random: what the learning must beat."""

    def _draw(self) -> tuple[Genome, str, list[Genome]]:
        for _ in range(FRESH):
            if encode(genome := self._random(self.rng)) not in self._proposed:
                break
        return genome, "random", []
