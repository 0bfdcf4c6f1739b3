"""Measures the search over workflows: GP-UCB against a random choice of workflows, at equal episodes.

python benchmarks/workflow_search.py --quick
python benchmarks/workflow_search.py --json workflow_search.json --strict

What is compared is the best compliant workflow of a run: the mean return of its policy on fresh episodes that no choice
was made by.  All contenders train alike, inherit alike and stop alike; what differs is who chooses.  By default the
search spends its last quarter on its best workflow; without that finale, only the choice differs from chance.  Without
inheritance the same is asked again, because there nothing is learnt twice.  The full sizes also train all 120
workflows once, with as many episodes for each: what the best of them is worth is the truth that regret is about.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from measure import Line, Sampled, Table, Target

from fanfold.stats import bootstrap
from fanfold.studies.workflow import Config, run_options, study
from models import parse, publish

#: Seeds from here on: no setting of the study was chosen by them.
FIRST_SEED = 7001
REDS = {"B-line": "B_lineAgent", "Meander": "MeanderAgent"}
SEARCH, CHOICE, RANDOM = "the search", "GP-UCB without its finale", "random choice"
#: The same is found on one worker as on two.
WORKERS = 2


@dataclass(frozen=True)
class Sizes:
    """Seeds, episodes of each run and of one training, and whether all workflows are trained, too."""

    seeds: int
    episodes: int
    each: int
    fresh: int
    alone: bool
    everything: bool


FULL = Sizes(5, 200_000, 5_000, 4096, alone=True, everything=True)
QUICK = Sizes(5, 60_000, 5_000, 4096, alone=False, everything=False)
TINY = Sizes(2, 200, 100, 16, alone=False, everything=False)


@dataclass(frozen=True)
class Seen:
    """The result of a run."""

    value: float
    compliance: float
    complies: bool
    trainings: int


def run(sizes: Sizes, red: str, seed: int, **changes: Any) -> Seen:
    """One run, and its result."""
    config = Config(
        red_agent=red,
        seed=seed,
        n_workers=WORKERS,
        total_episodes=sizes.episodes,
        max_episodes_per_workflow=sizes.each,
        fresh_episodes=sizes.fresh,
        results=None,
        **changes,
    )
    done = study(config).run(run_options(config)["executor"])
    assert done.summary is not None
    figures = done.summary.figures
    done.ledger.close()
    shown = 0.0 if figures["compliance"] is None else figures["compliance"]
    return Seen(figures["return"], shown, figures["complies"], figures["trainings"])


def measure(sizes: Sizes) -> Iterator[Table]:
    for name, red in REDS.items():
        yield _compared(sizes, name, red, "policies inherited from the nearest workflow", inherit="nearest")
        if sizes.alone:
            yield _compared(sizes, name, red, "every training starts from scratch", inherit="none")
        if sizes.everything:
            seen = run(sizes, red, FIRST_SEED, exhaustive=True)
            yield Table(f"All workflows once, {name}", [Line("the best of them", _columns([seen]))])


def _compared(sizes: Sizes, name: str, red: str, how_begun: str, **changes: Any) -> Table:
    seeds = range(FIRST_SEED, FIRST_SEED + sizes.seeds)
    contenders: dict[str, dict[str, Any]] = {
        SEARCH: {"mode": "search"},
        CHOICE: {"mode": "search", "finale": 0.0},
        RANDOM: {"mode": "random"},
    }
    found: dict[str, list[Seen]] = {contender: [] for contender in contenders}
    for seed in seeds:
        for contender, mode in contenders.items():
            found[contender].append(run(sizes, red, seed, **mode, **changes))
            print(f"  {name}, {contender}, seed {seed}: {found[contender][-1]}", file=sys.stderr, flush=True)

    def line(contender: str, target: Target | None = None) -> Line:
        ahead = [ours.value - theirs.value for ours, theirs in zip(found[contender], found[RANDOM])]
        return Line(contender, _columns(found[contender]) | _median("ahead", ahead), target)

    wanted = Target("ahead", 0.0, at_most=False)
    lines = [line(SEARCH, wanted), line(CHOICE), Line(RANDOM, _columns(found[RANDOM]))]
    count = f"{sizes.episodes:,} episodes, {sizes.seeds} seeds"
    return Table(f"Return of the best compliant workflow, {name}, {count}, {how_begun}; medians", lines)


def _columns(seen: Sequence[Seen]) -> dict[str, Sampled]:
    return {
        **_median("return", [each.value for each in seen]),
        "compliance": Sampled(tuple(each.compliance for each in seen)),
        "complied": Sampled((statistics.fmean(each.complies for each in seen),)),
        "trainings": Sampled(tuple(float(each.trainings) for each in seen)),
    }


def _median(name: str, values: Sequence[float]) -> dict[str, Sampled]:
    """The median and its bootstrapped limits, as columns of their own."""
    columns = {name: _Plain(tuple(values))}
    if len(values) > 1:
        limits = bootstrap(values, statistics.median, FIRST_SEED)
        columns |= {f"{name} low": _Plain((limits.low,)), f"{name} high": _Plain((limits.high,))}
    return dict(columns)


class _Plain(Sampled):
    """Samples that may be on both sides of 0, where a spread in per cent means nothing."""

    def __str__(self) -> str:
        return f"{self.median:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(__doc__ or "", "workflow_search.json", arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
