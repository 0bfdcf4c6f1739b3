"""Measures the critic study on a planted preference: against fixed prompts, a random choice, and itself without parts.

python benchmarks/critic.py --quick
python benchmarks/critic.py --json critic.json --strict

What is compared is the true preference (without the noise of feedback) for the responses that were shown to the second
half of the queries.  Fixed prompts are those of the same first population, each answering all these queries; the best
of them is chosen in hindsight, by the very figure it is compared by.  The world is described in
`fanfold.studies.critic.simulated`.
"""

from __future__ import annotations

import os

# Matrices this small are only slowed down by threads, most of all where cores are shared.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from measure import Line, Sampled, Table, Target

from fanfold.encoding import derive_seed
from fanfold.stats import mean, spearman
from fanfold.strategies import Sweep
from fanfold.studies.critic import CriticConfig, Generate, Step, queries_of, study
from fanfold.studies.critic.evaluator import CriticEvaluator, response_of, slots
from fanfold.studies.critic.features import CUES, cues
from fanfold.studies.critic.simulated import kind_of, preference
from fanfold.studies.critic.strategy import CriticStrategy
from fanfold.study import Study
from fanfold.types import Ok
from models import parse, publish

MODEL, EXECUTOR = "simulated/critic", "async:8"
STUDY, RANDOM, FIXED, TUNED = "the study", "random actor", "best fixed prompt", "best fixed prompt and temperature"
#: Seeds from here on: no setting of the study was chosen by them.
FIRST_SEED = 3001
#: The study with one of its parts missing.
WITHOUT = {"without the critic": {"critic": False}, "without evolution": {"evolve": False}}
#: The cue by which each kind of planted query can be recognised, if at all.
SIGNS = {"instruct": "how to", "fact": "fact", "compare": "compare", "comfort": "feel", "create": "write"}


@dataclass(frozen=True)
class Sizes:
    """Seeds, queries of each run, and the seeds of the runs without a part."""

    seeds: int
    queries: int
    ablations: int


FULL = Sizes(20, 200, 20)
QUICK = Sizes(5, 200, 5)
TINY = Sizes(2, 24, 1)


@dataclass(frozen=True)
class Seen:
    """The second half of a run: what was shown, and of every response its worth and what the critic expected."""

    shown: float
    best: float
    overall: float | None
    within: float | None


def config_of(sizes: Sizes, seed: int, **changes: Any) -> CriticConfig:
    settings: dict[str, Any] = {"model": MODEL, "feedback": "simulated", "total": sizes.queries, "seed": seed}
    return CriticConfig(**{**settings, "bootstrap_queries": min(20, sizes.queries // 4), **changes})


def run(config: CriticConfig) -> Seen:
    """One run of the study, and the truth about it."""
    done = replace(study(config), conclude=None).run(EXECUTOR)
    worth: dict[int, list[float]] = {}
    shown: list[float] = []
    expected: dict[int, list[float]] = {}
    for result in done.results():
        step = msgspec.convert(result.candidate, Step)
        if step.number < config.total // 2:
            continue
        if isinstance(step, Generate):
            had = [response_of(outcome.data) for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
            worth[step.number] = [preference(step.query, text[0]) for text in had if text is not None]
        else:
            shown.append(preference(step.query, step.shown[0].response))
            expected[step.number] = result.trial.origin["expected"]
    done.ledger.close()
    pairs = [pair for number, guesses in expected.items() for pair in zip(guesses, worth[number], strict=True)]
    inside = [found for number in expected if (found := spearman(expected[number], worth[number])) is not None]
    return Seen(
        statistics.fmean(shown),
        statistics.fmean(max(values) for values in worth.values()),
        spearman(*zip(*pairs)),
        statistics.fmean(inside) if inside else None,
    )


def fixed(config: CriticConfig) -> tuple[float, float]:
    """The best of the first population in hindsight: at the usual temperature, and at the best one."""
    queries = queries_of(config)
    search = CriticStrategy(config, queries)
    search.begin(derive_seed(config.seed, "strategy"))
    prompts, asked = [member.prompt for member in search.population.members], queries[config.total // 2 :]
    found: dict[float, float] = {}
    for temperature in config.temperatures:
        warm = (temperature,) * len(prompts)
        steps = [Generate(number, query, tuple(prompts), warm) for number, query in enumerate(asked)]
        answering = Study(Sweep(steps), CriticEvaluator(MODEL), slots(len(prompts)))
        worth: dict[str, list[float]] = {}
        for result in answering.run("async:64").results():
            for slot, outcome in result.outcomes.items():
                text, _ = response_of(outcome.data) or ("", 0) if isinstance(outcome, Ok) else ("", 0)
                worth.setdefault(slot, []).append(preference(asked[result.number], text))
        found[temperature] = max(map(statistics.fmean, worth.values()))
    return found[0.7], max(found.values())


def _seeds(sizes: Sizes) -> range:
    return range(FIRST_SEED, FIRST_SEED + sizes.seeds)


def measure(sizes: Sizes) -> Iterator[Table]:
    seeds = _seeds(sizes)
    ours = [run(config_of(sizes, seed)) for seed in seeds]
    rivals: dict[str, list[float]] = {
        RANDOM: [run(config_of(sizes, seed, actor="random")).shown for seed in seeds],
        FIXED: [],
        TUNED: [],
    }
    for seed in seeds:
        plain, tuned = fixed(config_of(sizes, seed))
        rivals[FIXED].append(plain)
        rivals[TUNED].append(tuned)
    rivals["best of the responses to each query"] = [seen.best for seen in ours]
    for name, changes in WITHOUT.items():
        rivals[name] = [run(config_of(sizes, seed, **changes)).shown for seed in seeds[: sizes.ablations]]
    yield _compared(sizes, [seen.shown for seen in ours], rivals)
    yield _critic(sizes, ours)


def _compared(sizes: Sizes, ours: Sequence[float], rivals: Mapping[str, Sequence[float]]) -> Table:
    lines = [Line(STUDY, _interval("preference", ours))]
    for name, theirs in rivals.items():
        ahead = [a - b for a, b in zip(ours, theirs)]
        target = Target("ahead low", 0.0, at_most=False) if name in (RANDOM, FIXED) else None
        lines.append(Line(name, {**_interval("preference", theirs), **_interval("ahead", ahead)}, target))
    half = f"queries {sizes.queries // 2 + 1}-{sizes.queries}"
    return Table(f"True preference of what was shown, {half}, {sizes.seeds} seeds, 95 % intervals of the mean", lines)


def _interval(name: str, values: Sequence[float]) -> dict[str, Sampled]:
    """The mean and its limits as columns of their own; the mean's column holds the samples."""
    found = mean(values)
    low, high = (found.low, found.high) if len(values) > 1 else (float("nan"),) * 2
    return {name: _Mean(tuple(values)), f"{name} low": Sampled((low,)), f"{name} high": Sampled((high,))}


class _Mean(Sampled):
    """Samples of which the mean is shown, because it is what the interval is about."""

    def __str__(self) -> str:
        return f"{statistics.fmean(self.samples):.3f}"


def _critic(sizes: Sizes, ours: Sequence[Seen]) -> Table:
    """How well the critic ranks responses it has not been told of."""
    overall = [seen.overall for seen in ours if seen.overall is not None]
    within = [seen.within for seen in ours if seen.within is not None]
    queries = [query for seed in _seeds(sizes) for query in queries_of(config_of(sizes, seed))]
    told = statistics.fmean(dict(zip(CUES, cues(query)))[SIGNS[kind_of(query)]] for query in queries)
    lines = [
        Line("all responses of the second half", _interval("rank correlation", overall)),
        Line("among the responses to one query", _interval("rank correlation", within)),
    ]
    title = "The critic's rank correlation with the true preference"
    return Table(f"{title} (the kind of {told:.0%} of the queries shows in their words)", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(__doc__ or "", "critic.json", arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
