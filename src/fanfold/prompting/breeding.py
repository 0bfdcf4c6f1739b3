"""How a genetic search makes prompts: by operators that earn their place, by crossover, or by having a model write."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias, TypeVar

import msgspec

from fanfold.errors import ConfigError
from fanfold.prompting.genome import SECTIONS, Candidate, Genome, Labels
from fanfold.prompting.material import Material, faults, mend
from fanfold.prompting.operators import CHOICES, OPERATORS, crossover, varied
from fanfold.strategies.breeding import Bred, Pick
from fanfold.strategies.reflective import SAMPLES, How, ShownCase, Written, shown_case
from fanfold.types import Ok, Result

#: What a model may be asked to do with a prompt.
RECIPES: tuple[How, ...] = ("paraphrase", "shorten", "reflect", "combine", "expand")
#: How many failed cases a model is shown.
MOST_FAILURES = 3
#: A prompt of so few words is not shortened.
_SHORT = 6

#: How often each kind of change is tried before anything is known about it, all operators of the kind together: what is
#: said and shown matters more than single words.
_KINDS = {"choice": 1.0, "clause": 1.0, "example": 1.0, "labels": 0.5, "section": 0.5, "word": 0.25}

_Told: TypeAlias = Result[Candidate]
_Arm = TypeVar("_Arm", bound=str)
_T = TypeVar("_T")


class Bandit:
    """Which arms to try first: drawn by weight and by what they earned, the recent past counting more.

    The belief about an arm is Beta(wins + 1, losses + 1); its chance to come first is in proportion to its weight (what
    is thought of it beforehand) times the square of a draw from that belief.  Each lesson of weight w first fades the
    arm's earlier ones by `memory ** w`, so that a belief never rests on more than about 1 / (1 - memory) lessons, and
    an arm that paid at the beginning is left when it has stopped paying.
    """

    def __init__(self, arms: Mapping[str, float], memory: float = 0.98) -> None:
        self._memory = memory
        self._weights = dict(arms)
        self._earned = dict.fromkeys(arms, (0.0, 0.0))

    @property
    def standing(self) -> dict[str, tuple[float, float]]:
        """Wins and losses of each arm, as far as they are remembered."""
        return dict(self._earned)

    def ranked(self, arms: Iterable[_Arm], rng: Random) -> list[_Arm]:
        """The arms in the order in which to try them."""
        drawn = {}
        for arm in arms:
            wins, losses = self._earned[arm]
            weight = self._weights[arm] * rng.betavariate(wins + 1, losses + 1) ** 2
            # The order of these is that of drawing by weight, one after the other, without putting back.
            drawn[arm] = math.log(1.0 - rng.random()) / max(weight, 1e-9)
        return sorted(drawn, key=lambda arm: -drawn[arm])

    def learn(self, arm: str, won: bool, weight: float = 1.0) -> None:
        """One try of an arm paid or did not; arms it does not know are ignored."""
        if arm in self._earned:
            wins, losses = (earned * self._memory**weight for earned in self._earned[arm])
            self._earned[arm] = (wins + weight * won, losses + weight * (not won))


class PromptBreeder:
    """Breeds prompts for `Genetic(breeder=...)`.

    A sample is a variation of one of the `seeds`, or put together from the material.  A child is a parent, or with
    probability `crossover_rate` two parents crossed, changed by one or several operators (more at a higher mutation
    rate); a `fresh_share` of them are samples, so that a search in a rut meets something new.  With a `writer` there is
    a model to ask, and a share of the children (`model_share`) is left to it: they are `Written` candidates, which the
    evaluator has written.  Which operator, and what the model is asked to do, is learnt from what made children better
    than their better parent; operators that made a child together share the credit.  A child's `by` names them
    ("crossover+clause insert", "reflect").  State is two numbers per operator.
    """

    def __init__(
        self,
        material: Material,
        seeds: Iterable[Genome] = (),
        writer: bool = False,
        model_share: float = 0.3,
        crossover_rate: float = 0.5,
        fresh_share: float = 0.1,
        operators: Iterable[str] = OPERATORS,
    ) -> None:
        shares = {"model_share": model_share, "crossover_rate": crossover_rate, "fresh_share": fresh_share}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, not {share!r}")
        self._seeds = tuple(seeds)
        for number, seed in enumerate(self._seeds):
            if not isinstance(seed, Genome):
                raise ConfigError(f"seed {number} is not a prompt: {seed!r:.60}; write Genome.of(text)")
            if wrong := faults(seed, material):
                raise ConfigError(f"seed {number} cannot be used: {wrong[0]}. Change the seed or the material's limits")
        self._material = material
        self._model_share = model_share if writer else 0.0
        self._crossover_rate = crossover_rate
        self._fresh_share = fresh_share
        known = {**OPERATORS, **(CHOICES if material.choices else {})}
        self._operators = {name: known[name] for name in known if name in CHOICES or name in set(operators)}
        self.bandit = Bandit({**_weights(known), **dict.fromkeys(RECIPES, 1.0)})

    def sample(self, rng: Random) -> Bred[Candidate]:
        banked = any(self._material.clauses.values())
        if self._seeds and (not banked or rng.random() < 0.5):
            genome, _ = self._changed(rng.choice(self._seeds), rng.randint(1, 3), rng)
            return Bred(genome, by="seed variation")
        return Bred(self._composed(rng), by="composition")

    def child(self, pick: Pick[Candidate], rng: Random, rate: float) -> Bred[Candidate]:
        if rng.random() < self._fresh_share:
            return self.sample(rng)
        mother = pick()
        assert mother is not None
        if rng.random() < self._model_share and (written := self._written(mother, pick, rng)) is not None:
            return written
        genome = self._own(mother)
        parents: tuple[_Told, ...] = (mother,)
        by: list[str] = []
        father = pick(but=mother) if rng.random() < self._crossover_rate else None
        if father is not None and (crossed := crossover(genome, self._own(father), rng)) != genome:
            genome, parents, by = mend(crossed, self._material), (mother, father), ["crossover"]
        genome, names = self._changed(genome, rng.randint(1, 1 + round(4 * rate)), rng)
        return Bred(genome, parents, "+".join([*by, *names]) or "copy")

    def again(self, bred: Bred[Candidate], rng: Random, rate: float) -> Bred[Candidate]:
        if isinstance(bred.candidate, Written):
            return replace(bred, candidate=replace(bred.candidate, sample=_sample(rng)))
        genome, names = self._changed(bred.candidate, 1, rng)
        return replace(bred, candidate=genome, by="+".join([bred.by, *names]) if bred.parents else bred.by)

    def learn(self, result: _Told, better: bool | None) -> None:
        if better is not None:
            names = _names(result)
            for name in names:
                self.bandit.learn(name, better, 1 / len(names))

    def _own(self, result: _Told) -> Genome:
        """The prompt of a result; a model may have written more than the material allows."""
        return mend(genome_of(result), self._material)

    def _changed(self, genome: Genome, times: int, rng: Random) -> tuple[Genome, list[str]]:
        """The prompt after so many operators, and their names: each time the first that has something to do."""
        names: list[str] = []
        seen = {genome}  # a chain of changes does not end where it began
        for _ in range(times):
            for name in self.bandit.ranked(self._operators, rng):
                changed = self._operators[name](genome, self._material, rng)
                if changed not in seen:
                    genome = changed
                    seen.add(genome)
                    names.append(name)
                    break
        return genome, names

    def _composed(self, rng: Random) -> Genome:
        material = self._material
        sections: dict[str, Any] = {}
        for name in SECTIONS:
            bank = material.clauses.get(name, ())
            wanted = rng.choice((1, 1, 2)) if name == "instruction" else rng.choice((0, 1))
            sections[name] = tuple(rng.sample(bank, min(wanted, len(bank))))
            if material.words is not None:
                sections[name] += getattr(material.words, name)
        shown = rng.randint(0, min(material.most_examples, len(material.examples)))
        labels: Sequence[Labels] = material.labels or [seed.labels for seed in self._seeds] or [Genome().labels]
        examples = tuple(rng.sample(material.examples, shown))
        return varied(mend(Genome(**sections, examples=examples, labels=rng.choice(labels)), material), material, rng)

    def _written(self, mother: _Told, pick: Pick[Candidate], rng: Random) -> Bred[Candidate] | None:
        """What a model is to write; None where this parent gives it nothing to do."""
        genome = genome_of(mother)
        for how in self.bandit.ranked(RECIPES, rng):
            parents: tuple[_Told, ...] = (mother,)
            failures = failures_of(mother, rng) if how == "reflect" else ()
            if how == "combine" and (father := pick(but=mother)) is not None:
                parents += (father,)
            genomes = tuple(genome_of(parent) for parent in parents)
            possible = {
                "paraphrase": genome.words > 0,
                "shorten": genome.words > _SHORT,
                "reflect": bool(failures),
                "combine": len({other.head() for other in genomes} - {""}) == 2,
                "expand": genome.words <= self._material.most_words // 2,
            }
            if possible[how]:
                return Bred(Written(how, genomes, failures, _sample(rng)), parents, how)
        return None


def _weights(operators: Iterable[str]) -> dict[str, float]:
    """The weight of each operator: its share of what its kind has."""
    kinds = Counter(name.split()[0] for name in operators)
    return {name: _KINDS[name.split()[0]] / kinds[name.split()[0]] for name in operators}


def genome_of(result: Result[Any]) -> Genome:
    """The prompt that a result is about; of one that a model was to write, what it wrote.

    Where it could write nothing there is none, and the prompt it was to start from stands for it.
    """
    candidate = candidate_of(result.candidate)
    if isinstance(candidate, Genome):
        return candidate
    for outcome in result.outcomes.values():
        if isinstance(outcome, Ok) and isinstance(outcome.data, Mapping) and "genome" in outcome.data:
            genome = candidate_of(outcome.data["genome"])
            assert isinstance(genome, Genome)
            return genome
    return candidate.parents[0]


def candidate_of(value: Any) -> Candidate:
    """A candidate as it was asked, though it may have lost its type on the way through a ledger."""
    if isinstance(value, Genome | Written):
        return value
    written = isinstance(value, Mapping) and "how" in value
    return _converted(value, Written[Genome]) if written else _converted(value, Genome)


def failures_of(result: Result[Any], rng: Random | None = None) -> tuple[ShownCase, ...]:
    """Up to three cases that a prompt got wrong: the worst of them, or with `rng` any."""
    found: list[tuple[float, str, ShownCase]] = []
    for case, outcome in result.outcomes.items():
        if not isinstance(outcome, Ok) or not isinstance(outcome.data, Mapping):
            continue
        if outcome.score < 1.0 and {"input", "expected", "said"} <= outcome.data.keys():
            found.append((outcome.score, case, shown_case(case, outcome)))
    found.sort(key=lambda entry: entry[:2])
    if rng is not None:
        found = rng.sample(found, min(MOST_FAILURES, len(found)))
    return tuple(failure for _, _, failure in found[:MOST_FAILURES])


def credit(results: Iterable[Result[Any]]) -> dict[str, tuple[int, int]]:
    """What each way of making prompts earned in a run: children better than their better parent, and children told.

    Needs nothing but the results with their origins, so it can be told from a ledger alone.
    """
    told = {result.number: result for result in results}
    earned: dict[str, tuple[int, int]] = {}
    for result in told.values():
        origin = result.trial.origin
        parents = origin.get("parents", ()) if isinstance(origin, Mapping) else ()
        bars = [told[number].score for number in parents if number in told]
        bar = max((score for score in bars if score is not None), default=None)
        if bar is None:
            continue
        for name in dict.fromkeys(_names(result)):
            better, tries = earned.get(name, (0, 0))
            earned[name] = (better + (result.score is not None and result.score > bar), tries + 1)
    return earned


def _names(result: Result[Any]) -> list[str]:
    origin = result.trial.origin
    return [name for name in str(origin.get("by", "")).split("+") if name] if isinstance(origin, Mapping) else []


def _sample(rng: Random) -> int:
    return rng.randint(1, SAMPLES)


def _converted(value: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is not a prompt of this study: {value!r:.100} ({error})") from error
