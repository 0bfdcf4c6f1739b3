"""Measures the critic study in worlds with a planted taste, against bandits over the same prompts.

python benchmarks/critic.py
python benchmarks/critic.py --quick --strict

Three readers with different tastes judge the answers to 400 queries.  One likes the same things in every answer, one
likes other things for each kind of query, one wants several things at once, which no single prompt asks for.

Everybody chooses among the same eight prompts, gets the same answer for the same prompt and query, and hears the same
noisy feedback.  Regret is how much worse the answer shown is, by the true taste, than the best of the eight answers to
that query in hindsight; below 0 means that evolution found prompts better than all eight.

Tastes are drawn by chance.  Settings of the study were chosen in worlds with other draws (`TUNING`), never in these.
"""

from __future__ import annotations

import os

# Matrices this small are only slowed down by threads, most of all where cores are shared.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import functools
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from measure import Line, Sampled, Table, Target

from fanfold.encoding import derive_seed
from fanfold.stats import mean, spearman
from fanfold.studies.critic import ActorCriticParams, CriticConfig, Generate, StudyEvolution
from fanfold.studies.critic.features import cues
from fanfold.studies.critic.simulated import WORDINGS, kind_of, planted_queries, qualities, respond
from fanfold.studies.critic.strategy import CriticStrategy
from fanfold.types import Ok, Outcome, Result, Trial
from models import parse, publish

#: What somebody might bring: each asks for one or two things.
PROMPTS = (
    "You are a helpful assistant.",
    "You are a patient teacher. Answer in numbered steps. Explain the reasons.",
    "You are an editor who values every word. Begin with the answer itself.",
    "You are a practical friend. Be warm and encouraging. End with a question.",
    "You are a specialist. Be formal and precise.",
    "Be playful and vivid. Write prose without lists.",
    "Answer in bullet points. Say what you are not sure of.",
    "You are a careful adviser. Give numbers and quantities. Add one concrete example.",
)
#: Groups of things that no answer has at once.
EXCLUSIVE = (("steps", "points"), ("warm", "formal"))
LIKED = ("steps", "points", "short", "warm", "formal", "vivid", "unsure", "figures", "example", "direct", "asks")
WORLDS = {"one taste": ("steady", 1), "by kind of query": ("kind", 2), "all at once": ("together", 3)}
TUNING = {f"{kind} {draw}": (kind, draw) for kind in ("steady", "kind", "together") for draw in (101, 102, 103)}
NOISE, CARELESS = 0.12, 0.05
OURS, ALONE = "critic, 5 answers", "critic, 1 answer"
EVOLVED, FRUGAL = "critic, 5 answers, evolution (default)", "critic, 1 answer, evolution"
RANDOM, FIXED, GREEDY, LINUCB = "random prompt", "best fixed prompt", "epsilon-greedy", "LinUCB"
HINDSIGHT = "best in hindsight"
#: Settings of the rivals; the best in hindsight counts.
EPSILONS, ALPHAS = (0.05, 0.1, 0.2), (0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Sizes:
    """Seeds, and queries of each run."""

    seeds: int
    queries: int


FULL = Sizes(5, 400)
QUICK = Sizes(3, 200)
TINY = Sizes(2, 24)


@dataclass(frozen=True)
class World:
    """A writer, and a reader with a taste."""

    kind: str
    draw: int
    seed: int

    @functools.cached_property
    def tastes(self) -> Mapping[str, Mapping[str, float]]:
        """What is liked and disliked by kind of query."""
        rng = random.Random(derive_seed(self.draw, "taste", self.kind))
        if self.kind == "kind":
            return {kind: _taste(rng, (1.2, 0.6, -0.6, -0.4)) for kind in WORDINGS}
        wanted = (1.0, 0.8, 0.6, -0.8, -0.6, -0.4) if self.kind == "steady" else (1.0,) * 4
        return dict.fromkeys(WORDINGS, _taste(rng, wanted))

    @functools.cache  # noqa: B019 (a world lives as long as its run)
    def answer(self, prompt: str, query: str) -> str:
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": query}]
        rng = random.Random(derive_seed(self.seed, "answer", prompt, query))
        return respond("m", messages, {"temperature": 0.7}, rng)

    def worth(self, query: str, response: str) -> float:
        """How much the reader really likes a response, between 0 and 1."""
        seen, taste = qualities(query, response), self.tastes[kind_of(query)]
        wanders = 0.3 * seen["wanders"]
        if self.kind == "together":
            share = sum(seen[name] > 0.3 for name in taste) / len(taste)
            return max(0.0, share**2 - wanders)
        liked = sum(weight * seen[name] for name, weight in taste.items()) - wanders
        return 1.0 / (1.0 + math.exp(-2.0 * (liked - 0.3)))

    def feedback(self, query: str, response: str) -> float:
        """What the reader says: always the same about the same answer, noisy, and now and then without looking."""
        rng = random.Random(derive_seed(self.seed, "feedback", query, response))
        if rng.random() < CARELESS:
            return rng.random()
        return min(1.0, max(0.0, self.worth(query, response) + rng.gauss(0.0, NOISE)))

    def best(self, query: str) -> float:
        return max(self.worth(query, self.answer(prompt, query)) for prompt in PROMPTS)


def _taste(rng: random.Random, weights: Sequence[float]) -> dict[str, float]:
    """So many things that an answer can all have, with what they count."""
    names: list[str] = []
    for name in rng.sample(LIKED, len(LIKED)):
        rivals = {other for group in EXCLUSIVE if name in group for other in group}
        if len(names) < len(weights) and not rivals & set(names):
            names.append(name)
    return dict(zip(names, weights))


@dataclass(frozen=True)
class Played:
    """One method over all queries: the true worth of what was shown, the calls, and how well a critic ranked."""

    worth: list[float]
    calls: int
    within: float | None = None


def play(world: World, queries: Sequence[str], **changes: Any) -> Played:
    """The study's own search, driven without an engine."""
    params = ActorCriticParams(num_candidates=changes.pop("candidates", 5))
    config = CriticConfig(
        model="simulated/critic", prompts=PROMPTS, total=len(queries), temperatures=(0.7,), actor_critic=params,
        evolution=StudyEvolution(population_size=len(PROMPTS)), seed=world.seed, **changes,
    )  # fmt: skip
    search = CriticStrategy(config, queries)
    search.begin(derive_seed(world.seed, "strategy"))
    shown, inside, calls = [], [], 0
    while steps := search.ask(1):
        (step,) = steps
        outcomes: dict[str, Outcome] = {}
        if isinstance(step, Generate):
            texts = [world.answer(prompt.text, step.query) for prompt in step.prompts]
            outcomes = {f"slot-{slot}": Ok(0.0, {"text": text, "tokens": 60}) for slot, text in enumerate(texts)}
            calls += len(texts)
        else:
            (one,) = step.shown
            shown.append(world.worth(step.query, one.response))
            outcomes = {"slot-0": Ok(world.feedback(step.query, one.response))}
            candidates = search.memory.waiting[step.number].candidates
            truth = [world.worth(step.query, each.shown.response) for each in candidates]
            ranked = spearman([each.expected for each in candidates], truth)
            inside += [] if ranked is None or step.number < len(queries) // 2 else [ranked]
        search.tell(Result(Trial(0, step), 0.0, outcomes))
    return Played(shown, calls, statistics.fmean(inside) if inside else None)


# -- the rivals --------------------------------------------------------------------------------------------------------


def bandit(world: World, queries: Sequence[str], choose: Any, learn: Any = None) -> Played:
    """One prompt for each query, by a rule that is told the feedback."""
    shown = []
    for query in queries:
        arm = choose(query)
        text = world.answer(PROMPTS[arm], query)
        shown.append(world.worth(query, text))
        if learn is not None:
            learn(query, arm, world.feedback(query, text))
    return Played(shown, len(queries))


def at_random(world: World, queries: Sequence[str]) -> Played:
    rng = random.Random(derive_seed(world.seed, "random"))
    return bandit(world, queries, lambda query: rng.randrange(len(PROMPTS)))


def best_fixed(world: World, queries: Sequence[str]) -> Played:
    runs = [bandit(world, queries, lambda query, arm=arm: arm) for arm in range(len(PROMPTS))]
    return max(runs, key=lambda run: statistics.fmean(run.worth))


def epsilon_greedy(world: World, queries: Sequence[str], epsilon: float) -> Played:
    rng = random.Random(derive_seed(world.seed, "greedy"))
    sums, counts = [0.0] * len(PROMPTS), [0] * len(PROMPTS)

    def choose(query: str) -> int:
        if rng.random() < epsilon or not any(counts):
            return rng.randrange(len(PROMPTS))
        return max(range(len(PROMPTS)), key=lambda arm: sums[arm] / counts[arm] if counts[arm] else math.inf)

    def learn(query: str, arm: int, score: float) -> None:
        sums[arm], counts[arm] = sums[arm] + score, counts[arm] + 1

    return bandit(world, queries, choose, learn)


def linucb(world: World, queries: Sequence[str], alpha: float) -> Played:
    """A linear model of each prompt's feedback, from the cues of the query, and a bonus for what is not known."""
    size = len(cues("")) + 1
    inverse = [np.eye(size) for _ in PROMPTS]
    pull = [np.zeros(size) for _ in PROMPTS]

    def context(query: str) -> Any:
        return np.array([1.0, *cues(query)])

    def choose(query: str) -> int:
        x = context(query)
        values = [x @ inv @ b + alpha * math.sqrt(x @ inv @ x) for inv, b in zip(inverse, pull)]
        return int(np.argmax(values))

    def learn(query: str, arm: int, score: float) -> None:
        x = context(query)
        inv = inverse[arm]
        inverse[arm] = inv - np.outer(inv @ x, x @ inv) / (1.0 + x @ inv @ x)
        pull[arm] = pull[arm] + score * x

    return bandit(world, queries, choose, learn)


# -- tables ------------------------------------------------------------------------------------------------------------


def contest(kind: str, draw: int, sizes: Sizes) -> dict[str, list[Played]]:
    """Every method on every seed; of rivals with a setting, the one that is best over all seeds."""
    worlds = [World(kind, draw, seed) for seed in range(1, sizes.seeds + 1)]
    asked = [(world, planted_queries(sizes.queries, world.seed)) for world in worlds]
    greedy = [[epsilon_greedy(*each, epsilon) for each in asked] for epsilon in EPSILONS]
    bounds = [[linucb(*each, alpha) for each in asked] for alpha in ALPHAS]
    return {
        OURS: [play(*each, evolve=False) for each in asked],
        ALONE: [play(*each, evolve=False, candidates=1) for each in asked],
        EVOLVED: [play(*each, evolve=True) for each in asked],
        FRUGAL: [play(*each, evolve=True, candidates=1) for each in asked],
        RANDOM: [at_random(*each) for each in asked],
        FIXED: [best_fixed(*each) for each in asked],
        GREEDY: max(greedy, key=_total),
        LINUCB: max(bounds, key=_total),
        HINDSIGHT: [Played([world.best(query) for query in queries], 0) for world, queries in asked],
    }


def _total(runs: Sequence[Played]) -> float:
    return sum(statistics.fmean(run.worth) for run in runs)


def measure(sizes: Sizes, worlds: Mapping[str, tuple[str, int]] = WORLDS) -> Iterator[Table]:
    """A table for each world, then what evolution adds in all of them."""
    added: dict[str, list[float]] = {}
    ranks: dict[str, list[float]] = {}
    for name, (kind, draw) in worlds.items():
        played = contest(kind, draw, sizes)
        yield _table(name, played, sizes)
        added[name] = [_gap(plain, evolved) for plain, evolved in zip(played[OURS], played[EVOLVED])]
        ranks[name] = [run.within for run in played[OURS] if run.within is not None]
    yield Table(
        f"What evolution adds to the true worth of what is shown, at equal calls, {sizes.seeds} seeds",
        [Line(name, _interval("gain", gains), Target("gain low", 0.0, at_most=False)) for name, gains in added.items()],
    )
    yield Table(
        "The critic's rank correlation with the true worth, among the answers to one query, second half",
        [Line(name, _interval("correlation", values)) for name, values in ranks.items()],
    )


def _table(name: str, played: Mapping[str, Sequence[Played]], sizes: Sizes) -> Table:
    lines = []
    best, ours = played[HINDSIGHT], played[EVOLVED]
    for method, runs in played.items():
        if method == HINDSIGHT:
            continue
        regret = [_gap(run, top) for run, top in zip(runs, best)]
        ahead = [_gap(run, own) for run, own in zip(runs, ours)]
        calls = Sampled(tuple(run.calls / sizes.queries for run in runs))
        compared = {} if method == EVOLVED else _interval("default ahead", ahead)
        target = Target("default ahead low", 0.0, at_most=False) if method in (RANDOM, FIXED, GREEDY, LINUCB) else None
        lines.append(Line(method, {"calls a query": calls, **_interval("regret", regret), **compared}, target))
    title = f"Regret against the best of {len(PROMPTS)} prompts for each query in hindsight"
    return Table(f"World '{name}': {title}, {sizes.queries} queries, {sizes.seeds} seeds, 95 % intervals", lines)


def _gap(worse: Played, better: Played) -> float:
    return statistics.fmean(better.worth) - statistics.fmean(worse.worth)


def _interval(name: str, values: Sequence[float]) -> dict[str, Sampled]:
    """The mean and its limits as columns of their own; the mean's column holds the samples."""
    found = mean(values)
    low, high = (found.low, found.high) if len(values) > 1 else (float("nan"),) * 2
    return {name: _Mean(tuple(values)), f"{name} low": Sampled((low,)), f"{name} high": Sampled((high,))}


class _Mean(Sampled):
    """Samples of which the mean is shown, because it is what the interval is about."""

    def __str__(self) -> str:
        return f"{statistics.fmean(self.samples):.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(__doc__ or "", "critic.json", arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
