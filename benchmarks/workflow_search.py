"""Measures the search over workflows: regret against ground truth with five unit types, and returns with single hosts.

python benchmarks/workflow_search.py --quick --jobs 2
python benchmarks/workflow_search.py --jobs 16 --strict

Contenders spend equal episodes: the search, a random choice, successive halving without a surrogate, and Optuna's TPE
over the same orders.  None has a finale.  What differs is who chooses, and which trainings are whole.

With five unit types, every class of orders is trained on several seeds: the truth.  A class is worth the mean of its
trainings, and one of them at a time is what contenders are shown without inheritance.  With inheritance, and with
single hosts, they train.  Regret is how much less the recommended class is worth than the best.  The search recommends
by its surrogate, the others what returned most among what complied.

Every finished cell is a line of the JSONL file, and is not computed again.  The truth is kept in
benchmarks/data/workflow_table.json.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from measure import Line, Sampled, Table, Target, add_row, machine, read_rows, save_tables

from fanfold.stats import bootstrap
from fanfold.studies.workflow import Config, study
from fanfold.studies.workflow.chooser import Arm, Chooser, HalvingChooser, Shuffled, UpperBound, rate_shown
from fanfold.studies.workflow.conclusion import believed
from fanfold.studies.workflow.evaluator import Train
from fanfold.studies.workflow.spaces import Orders, Workflow, WorkflowSpace, show
from fanfold.studies.workflow.strategy import SearchPlan, WorkflowSearch
from fanfold.studies.workflow.trainings import FinishedTraining, trainings
from fanfold.types import Blob, Case, Ok, Result, Trial

HERE = Path(__file__).parent
TRUTH = HERE / "data" / "workflow_table.json"
REDS = {"B-line": "B_lineAgent", "Meander": "MeanderAgent"}
SEARCH, RANDOM, HALVING, TPE = "the search", "random choice", "successive halving", "Optuna TPE"
#: Without Optuna there is no TPE.
CONTENDERS = (SEARCH, RANDOM, HALVING, *([TPE] if importlib.util.find_spec("optuna") else []))
#: Regret is measured after the episodes of so many whole trainings.
AT = (12, 24)
THRESHOLD = 0.9
#: Parts with single hosts, and what their trainings inherit.
HOSTS = {"hosts alone": "none", "hosts": "nearest"}
#: No setting of the study was chosen on these seeds.
FIRST_SEED = 7001


@dataclass(frozen=True)
class Sizes:
    """Seeds of contenders and of each class of the table; episodes of a training, and trainings of a host run."""

    seeds: int
    table_seeds: int
    units: int
    hosts: int
    host_trainings: int
    at: tuple[int, ...] = AT
    inherited: tuple[str, ...] = ("Meander",)
    update: int = 20


FULL = Sizes(10, 10, 1_200, 2_000, 16)
QUICK = Sizes(3, 4, 400, 600, 4, inherited=())
TINY = Sizes(2, 2, 40, 40, 2, at=(2, 3), inherited=("B-line",))


def config(sizes: Sizes, red: str, grain: str = "units", **more: Any) -> Config:
    whole = sizes.units if grain == "units" else sizes.hosts
    fields = {"red_agent": REDS[red], "grain": grain, "max_episodes_per_workflow": whole, "finale": 0.0}
    looks = {"look_updates": 10, "patience_updates": 10_000}  # no training ends early: budgets are equal
    return Config(**fields, **looks, episodes_per_update=sizes.update, fresh_episodes=4096, results=None, **more)


# -- the truth ---------------------------------------------------------------------------------------------------------


def table_cell(sizes: Sizes, red: str, arm: str, seed: int) -> dict[str, Any]:
    """One training of a class of orders: what it showed at its pause, and what at its end."""
    settings = config(sizes, red)
    one, case = study(settings), Case("0", None, FIRST_SEED + seed)
    pause, whole = settings.rungs
    workflow, shown, state = settings.workflows.parse(arm), [], None
    for learnt, until in ((0, pause), (pause, whole)):
        outcome = one.evaluate(Train(workflow, 0, until - learnt, schedule=whole, learnt=learnt, state=state), case)
        assert isinstance(outcome, Ok)
        state = outcome.data.get("state")
        shown.append([outcome.score, rate_shown(outcome.data), outcome.data["return_variance"]])
    return {"part": "table", "red": red, "arm": arm, "seed": seed, "shown": shown}


@dataclass(frozen=True)
class Truth:
    """What trainings of every class showed, by seed."""

    space: WorkflowSpace
    shown: dict[Workflow, list[list[list[float]]]]

    def worth(self) -> dict[Workflow, float]:
        """The mean return of whole trainings; what does not comply is worth as little as the worst."""
        means = {arm: statistics.fmean(each[1][0] for each in shown) for arm, shown in self.shown.items()}
        rates = {arm: statistics.fmean(each[1][1] for each in shown) for arm, shown in self.shown.items()}
        worst = min(means.values())
        return {arm: mean if rates[arm] >= THRESHOLD else worst for arm, mean in means.items()}

    def regret(self, workflow: Workflow | None) -> float:
        worth = self.worth()
        value = min(worth.values()) if workflow is None else worth[self.space.canonical(workflow)]
        return max(worth.values()) - value

    def outcome(self, train: Train, seed: int) -> Ok:
        """One of the trainings of a class, drawn by the contender's seed and the visit."""
        shown = self.shown[self.space.canonical(train.workflow)]
        paused = train.schedule is not None and train.until < train.schedule
        score, rate, variance = shown[(seed + train.visit) % len(shown)][0 if paused else 1]
        data = {"compliance": rate, "compliance_interval": [rate, rate], "compliance_variance": 1e-4}
        data |= {"return_variance": variance, "episodes": train.episodes}
        data["agent"] = Blob.of(repr((train.workflow, train.visit, train.until)).encode())
        return Ok(score, data | ({"state": Blob.of(b"paused")} if paused else {}))


def truth_of(rows: Sequence[dict[str, Any]], sizes: Sizes, red: str) -> Truth:
    space = config(sizes, red).workflows
    shown: dict[Workflow, list[Any]] = {arm: [None] * sizes.table_seeds for arm in space.arms or ()}
    for row in rows:
        if row["part"] == "table" and row["red"] == red:
            shown[space.parse(row["arm"])][row["seed"]] = row["shown"]
    return Truth(space, shown)


# -- contenders --------------------------------------------------------------------------------------------------------


class TpeChooser(Chooser):
    """Optuna's TPE: the order of options by a number for each, with compliance as a constraint."""

    def __init__(self, space: Orders) -> None:
        self.space = space

    def begin(self, seed: int) -> None:
        import optuna

        super().begin(seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", FutureWarning)  # of the constraint, which older versions know no other way
        sampler = optuna.samplers.TPESampler(
            seed=seed % 2**31, constraints_func=lambda trial: (THRESHOLD - trial.user_attrs["rate"],)
        )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._trials: dict[Arm, Any] = {}

    def ask(self, n: int) -> list[Arm]:
        return [self._ask_one() for _ in range(n)]

    def _ask_one(self) -> Arm:
        trial = self._study.ask()
        urgency = {name: trial.suggest_float(name, 0.0, 1.0) for name in self.space.relevant}
        order = sorted(self.space.relevant, key=lambda name: -urgency[name])
        arm = self.space.canonical((*order, *self.space.ignored)), len(self._trials)
        self._trials[arm] = trial
        return arm

    def tell(self, result: Result[Arm]) -> None:
        trial = self._trials[result.candidate]
        outcome = next(iter(result.outcomes.values()))
        trial.set_user_attr("rate", rate_shown(outcome.data) if isinstance(outcome, Ok) else 0.0)
        self._study.tell(trial, -1000.0 if result.score is None else result.score)


def search_of(contender: str, settings: Config, total: int) -> WorkflowSearch:
    """The contender's search: with pauses where it makes use of them."""
    space, whole = settings.workflows, settings.rungs[-1]
    assert isinstance(space, Orders)
    rungs = settings.rungs if contender in (SEARCH, HALVING) else (whole,)
    choosers: dict[str, Callable[[], Chooser]] = {
        SEARCH: lambda: UpperBound(space, whole, THRESHOLD),
        RANDOM: lambda: Shuffled(space),
        HALVING: lambda: HalvingChooser(space, rungs, THRESHOLD),
        TPE: lambda: TpeChooser(space),
    }
    inherit = settings.inherit == "nearest"
    plan = SearchPlan(total, rungs, settings.per_update, THRESHOLD, inherit, 0.0, settings.window)
    return WorkflowSearch(space, choosers[contender](), plan)


def recommended(contender: str, told: Sequence[FinishedTraining], settings: Config) -> FinishedTraining | None:
    """What the contender would have a user take."""
    best = max(told, key=lambda each: each.standing(THRESHOLD), default=None)
    if contender == SEARCH:
        space = settings.workflows
        trained = {space.canonical(each.workflow): each for each in told}
        beliefs = [each for each in believed(told, THRESHOLD, space, settings.rungs[-1]) if each.arm in trained]
        return trained[beliefs[0].arm] if beliefs else best
    return best


def at_budget(told: Sequence[FinishedTraining], episodes: int) -> list[FinishedTraining]:
    """The trainings that were finished with the first so many episodes."""
    used, within = 0, []
    for each in told:
        used += each.data["episodes"]
        if used > episodes:
            break
        within.append(each)
    return within


def replayed(truth: Truth, contender: str, settings: Config, seed: int, most: int) -> list[FinishedTraining]:
    """A search whose trainings are looked up."""
    search = search_of(contender, dataclasses.replace(settings, inherit="none"), most * settings.rungs[-1])
    search.begin(FIRST_SEED + seed)
    waiting: list[Train] = []
    results: list[Result[Any]] = []
    while waiting := [*waiting, *search.ask(search.window - len(waiting))]:
        train = waiting.pop(0)
        outcome, origin = truth.outcome(train, seed), search.origin(train)
        search.tell(Result(Trial(len(results), train, origin), outcome.score, {"0": outcome}))
        plain = {"workflow": train.workflow, "visit": train.visit, "learnt": train.learnt}
        results.append(Result(Trial(len(results), plain, origin), outcome.score, {"0": outcome}))
    return trainings(results, {})


def run_cell(sizes: Sizes, part: str, red: str, contender: str, seed: int) -> dict[str, Any]:
    """A search that trains: with unit types and inheritance, or with single hosts."""
    grain = "hosts" if part in HOSTS else "units"
    settings = config(sizes, red, grain, seed=FIRST_SEED + seed, inherit=HOSTS.get(part, "nearest"))
    most = sizes.host_trainings if part in HOSTS else max(sizes.at)
    strategy = search_of(contender, settings, most * settings.rungs[-1])
    done = dataclasses.replace(study(settings), strategy=strategy).run("inline")
    assert done.summary is not None
    told = trainings(done.results(), {})
    row: dict[str, Any] = {"part": part, "red": red, "contender": contender, "seed": seed, "trials": len(told)}
    for count in () if part in HOSTS else sizes.at:
        chosen = recommended(contender, at_budget(told, count * settings.rungs[-1]), settings)
        row[f"at {count}"] = None if chosen is None else show(chosen.workflow)
    figures = done.summary.figures["chosen"]
    done.ledger.close()
    complies = (figures["compliance"] or 0.0) >= THRESHOLD
    return row | {"return": figures["return"], "complies": complies, "workflow": figures["workflow"]}


# -- cells and tables --------------------------------------------------------------------------------------------------


#: A function and its arguments besides the sizes.
Cell: TypeAlias = tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]


def cells(sizes: Sizes) -> Iterator[Cell]:
    """Everything to be computed; the longest first, so that the last ones end together."""
    seeds = range(sizes.seeds)
    yield from ((run_cell, (part, "Meander", each, seed)) for part in HOSTS for seed in seeds for each in CONTENDERS)
    for red in sizes.inherited:
        yield from ((run_cell, ("nearest", red, each, seed)) for seed in seeds for each in CONTENDERS)
    for red in REDS:
        arms = [show(arm) for arm in config(sizes, red).workflows.arms or ()]
        yield from ((table_cell, (red, arm, seed)) for seed in range(sizes.table_seeds) for arm in arms)


def compute(sizes: Sizes, jobs: int, file: Path) -> list[dict[str, Any]]:
    """The rows of all cells; what the file has is not computed again."""
    rows = read_rows(file)
    mine = json.dumps(dataclasses.astuple(sizes))
    known = {row["cell"] for row in rows}
    named = {json.dumps([each.__name__, *arguments, mine]): (each, arguments) for each, arguments in cells(sizes)}
    for key, row in _computed(sizes, jobs, {key: cell for key, cell in named.items() if key not in known}):
        rows.append({**row, "cell": key})
        add_row(file, rows[-1])
        print(f"{len(rows)} of {len(named)} cells", end="\r", file=sys.stderr, flush=True)
    return [row for row in rows if row["cell"] in named]


def _computed(sizes: Sizes, jobs: int, wanted: dict[str, Cell]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of cells as they are done."""
    if jobs == 1:
        yield from ((key, function(sizes, *arguments)) for key, (function, arguments) in wanted.items())
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # processes that take every core each slow all of them to a crawl
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(function, sizes, *arguments): key for key, (function, arguments) in wanted.items()}
        yield from ((waiting[future], future.result()) for future in concurrent.futures.as_completed(waiting))


def tables(sizes: Sizes, rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    rows = sorted(rows, key=lambda row: row["seed"])  # contenders are compared seed by seed
    for red in REDS:
        truth, settings = truth_of(rows, sizes, red), config(sizes, red)
        worth = sorted(truth.worth().values(), reverse=True)
        spread = f"best {worth[0]:.1f}, median {statistics.median(worth):.1f}, worst {worth[-1]:.1f}"
        about = f"{red}, {len(worth)} classes of orders ({spread}), {sizes.units:,} episodes each"
        by_seed = {
            each: [replayed(truth, each, settings, seed, max(sizes.at)) for seed in range(sizes.seeds)]
            for each in CONTENDERS
        }
        for count in sizes.at:
            limit = count * settings.rungs[-1]
            regrets = {
                each: [_regret(truth, each, at_budget(told, limit), settings) for told in runs]
                for each, runs in by_seed.items()
            }
            yield compared(f"Regret after {count} trainings, {_inherited('none')}: {about}", regrets)
            inherited = {
                each: [
                    truth.regret(None if row[f"at {count}"] is None else truth.space.parse(row[f"at {count}"]))
                    for row in rows
                    if row["part"] == "nearest" and row["red"] == red and row["contender"] == each
                ]
                for each in CONTENDERS
            }
            if inherited[SEARCH]:
                yield compared(f"Regret after {count} trainings, {_inherited('nearest')}: {about}", inherited)
    for part, inherit in HOSTS.items():
        hosts = [row for row in rows if row["part"] == part]
        worst = max(-row["return"] for row in hosts)  # what does not comply counts as no better than that
        losses = {
            each: [-row["return"] if row["complies"] else worst for row in hosts if row["contender"] == each]
            for each in CONTENDERS
        }
        title = f"Loss per fresh episode of the best compliant policy, {_inherited(inherit)}: Meander, single hosts"
        about = f"{sizes.host_trainings} trainings of {sizes.hosts:,} episodes"
        yield compared(f"{title}, {about}", losses, halved=False)


def _inherited(inherit: str) -> str:
    return "nothing inherited" if inherit == "none" else "the nearest policy inherited"


def _regret(truth: Truth, contender: str, told: Sequence[FinishedTraining], settings: Config) -> float:
    chosen = recommended(contender, told, settings)
    return truth.regret(None if chosen is None else chosen.workflow)


def compared(title: str, values: dict[str, list[float]], halved: bool = True) -> Table:
    """Medians with their limits; `ahead` is by how much the search is better than a contender on the same seeds."""
    lines = []
    chance = statistics.median(values[RANDOM])
    for contender, own in values.items():
        columns = _median("value", own)
        if contender == SEARCH:
            columns["of random's"] = _Plain((statistics.median(own) / chance if chance else 0.0,))
            lines.append(Line(contender, columns, Target("of random's", 0.5) if halved else None))
            continue
        ahead = [theirs - ours for ours, theirs in zip(values[SEARCH], own)]
        columns |= _median("ahead", ahead)
        target = Target("ahead low", 0.01, at_most=False) if contender == RANDOM and len(own) > 1 else None
        lines.append(Line(contender, columns, target))
    return Table(title, lines)


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


def keep_truth(sizes: Sizes, rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Write the table of all classes with its date and settings."""
    shown = {red: {show(arm): each for arm, each in truth_of(rows, sizes, red).shown.items()} for red in REDS}
    about = {"date": datetime.date.today().isoformat(), "sizes": dataclasses.asdict(sizes), "first_seed": FIRST_SEED}
    columns = "of each seed, after half of a training and after all of it: return, compliance, variance of the return"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**about, "columns": columns, "table": shown}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a few minutes on two cores")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--cells", type=Path, default=HERE / "results" / "workflow_search.jsonl", help="finished cells")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "workflow_search.json", help="the samples")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    where = machine()
    rows = compute(sizes, options.jobs, options.cells)
    if not options.quick:
        keep_truth(sizes, rows, TRUTH)
    return save_tables(tables(sizes, rows), where, options.json, options.strict, sizes=dataclasses.asdict(sizes))


if __name__ == "__main__":
    sys.exit(main())
