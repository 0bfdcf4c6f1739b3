"""Measures the search over workflows: regret against ground truth with five unit types, and returns with single hosts.

python benchmarks/workflow_search.py --quick --jobs 2
python benchmarks/workflow_search.py --jobs 16 --strict

Contenders spend equal episodes: the search, a random choice, successive halving without a surrogate, and Optuna's TPE
over the same orders.  None has a finale.  What differs is who chooses, and which trainings are whole.

With five unit types, every class of orders is trained on several seeds: the truth.  A class is worth the mean of its
trainings.  Without inheritance, contenders are shown one of them for each training, drawn with replacement, so there
are hundreds of runs of each.  Regret is how much less the recommended class is worth than the best.  The search
recommends by its surrogate, the others what returned most among what complied.  With inheritance, and with single
hosts, contenders train, and the loss of the policy that a user would take is measured on fresh episodes.

Every finished cell is a line of the JSONL file, and is not computed again.  The truth is kept in
benchmarks/data/workflow_table.json; without that file it is computed again.
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
import random
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
    """Seeds of contenders that train and of those that look up, and of each class of the table; sizes of trainings."""

    seeds: int
    draws: int
    table_seeds: int
    units: int
    hosts: int
    host_trainings: int
    at: tuple[int, ...] = AT
    inherited: tuple[str, ...] = ("B-line", "Meander")
    update: int = 20

    @property
    def key(self) -> str:
        """All that the result of a cell depends on."""
        return json.dumps([self.units, self.hosts, self.host_trainings, self.at, self.update])


FULL = Sizes(10, 500, 10, 1_200, 2_000, 16)
QUICK = Sizes(3, 30, 4, 400, 600, 4, inherited=())
TINY = Sizes(2, 3, 2, 40, 40, 2, at=(2, 3), inherited=("B-line",))


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
        """One of the trainings of a class, drawn for each seed and visit: another visit may draw it again."""
        shown = self.shown[self.space.canonical(train.workflow)]
        paused = train.schedule is not None and train.until < train.schedule
        drawn = random.Random(f"{FIRST_SEED + seed} {show(train.workflow)} {train.visit}").choice(shown)
        score, rate, variance = drawn[0 if paused else 1]
        data = {"compliance": rate, "compliance_interval": [rate, rate], "compliance_variance": 1e-4}
        data |= {"return_variance": variance, "episodes": train.episodes}
        data["agent"] = Blob.of(repr((train.workflow, train.visit, train.until)).encode())
        return Ok(score, data | ({"state": Blob.of(b"paused")} if paused else {}))


def kept_truth(sizes: Sizes, file: Path) -> list[dict[str, Any]]:
    """The rows of a table that was written before with the same sizes."""
    kept = json.loads(file.read_text()) if file.exists() else {"sizes": {}}
    if any(kept["sizes"].get(name) != getattr(sizes, name) for name in ("table_seeds", "units", "update")):
        return []
    return [
        {"part": "table", "red": red, "arm": arm, "seed": seed, "shown": shown}
        for red, arms in kept["table"].items()
        for arm, seeds in arms.items()
        for seed, shown in enumerate(seeds)
    ]


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


def cells(sizes: Sizes, contenders: Sequence[str] = CONTENDERS) -> Iterator[Cell]:
    """Everything to be computed; the longest first, so that the last ones end together."""
    for seed in range(sizes.seeds):
        yield from ((run_cell, (part, "Meander", each, seed)) for part in HOSTS for each in contenders)
        yield from ((run_cell, ("nearest", red, each, seed)) for red in sizes.inherited for each in contenders)
    for red in REDS:
        arms = [show(arm) for arm in config(sizes, red).workflows.arms or ()]
        yield from ((table_cell, (red, arm, seed)) for seed in range(sizes.table_seeds) for arm in arms)


def compute(
    sizes: Sizes, jobs: int, file: Path, contenders: Sequence[str] = CONTENDERS, truth: Path = TRUTH
) -> list[dict[str, Any]]:
    """The rows of all cells; what the files have is not computed again."""

    def key(function: str, *arguments: Any) -> str:
        return json.dumps([function, *arguments, sizes.key])

    kept = [{**row, "cell": key("table_cell", row["red"], row["arm"], row["seed"])} for row in kept_truth(sizes, truth)]
    rows = [*kept, *read_rows(file)]
    known = {row["cell"] for row in rows}
    named = {key(each.__name__, *arguments): (each, arguments) for each, arguments in cells(sizes, contenders)}
    for cell, row in _computed(sizes, jobs, {cell: each for cell, each in named.items() if cell not in known}):
        rows.append({**row, "cell": cell})
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


def tables(sizes: Sizes, rows: Sequence[dict[str, Any]], jobs: int = 1) -> Iterator[Table]:
    rows = sorted(rows, key=lambda row: row["seed"])  # contenders are compared seed by seed
    for red in REDS:
        truth = truth_of(rows, sizes, red)
        worth = sorted(truth.worth().values(), reverse=True)
        spread = f"best {worth[0]:.1f}, median {statistics.median(worth):.1f}, worst {worth[-1]:.1f}"
        about = f"{red}, {len(worth)} classes of orders ({spread}), {sizes.units:,} episodes each"
        looked_up = regrets(truth, sizes, red, jobs)
        trained = [row for row in rows if row["part"] == "nearest" and row["red"] == red]
        for count in sizes.at:
            yield compared(f"Regret after {count} trainings, {_inherited('none')}: {about}", looked_up[count])
        for count in sizes.at if trained else ():
            chosen = {
                each: [None if row[f"at {count}"] is None else truth.space.parse(row[f"at {count}"]) for row in mine]
                for each, mine in _by_contender(trained).items()
            }
            inherited = {each: [truth.regret(workflow) for workflow in own] for each, own in chosen.items()}
            yield compared(f"Regret after {count} trainings, {_inherited('nearest')}: {about}", inherited)
        if trained:
            about = f"{red}, {max(sizes.at)} trainings of {sizes.units:,} episodes"
            yield losses(f"{_inherited('nearest')}: {about}", trained)
    for part, inherit in HOSTS.items():
        about = f"Meander, single hosts, {sizes.host_trainings} trainings of {sizes.hosts:,} episodes"
        if trained := [row for row in rows if row["part"] == part]:
            yield losses(f"{_inherited(inherit)}: {about}", trained)


def _by_contender(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each contender, of seeds that all of them have."""
    grouped = {each: [row for row in rows if row["contender"] == each] for each in CONTENDERS}
    present = {each: mine for each, mine in grouped.items() if mine}
    seeds = set.intersection(*({row["seed"] for row in mine} for mine in present.values()))
    return {each: [row for row in mine if row["seed"] in seeds] for each, mine in present.items()}


def losses(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """What the policies that contenders deliver lose in fresh episodes."""
    worst = max(-row["return"] for row in rows)  # what does not comply counts as no better than that
    lost = {
        each: [-row["return"] if row["complies"] else worst for row in mine]
        for each, mine in _by_contender(rows).items()
    }
    return compared(f"Loss per fresh episode of the best compliant policy, {title}", lost, halved=False)


def _inherited(inherit: str) -> str:
    return "nothing inherited" if inherit == "none" else "the nearest policy inherited"


def regrets(truth: Truth, sizes: Sizes, red: str, jobs: int) -> dict[int, dict[str, list[float]]]:
    """The regret of all contenders on all seeds, after so many trainings, where trainings are looked up."""
    asked = [(truth, sizes, red, each, seed) for each in CONTENDERS for seed in range(sizes.draws)]
    if jobs == 1:
        found = list(map(_regrets, asked))
    else:
        with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            found = list(pool.map(_regrets, asked, chunksize=10))
    return {
        count: {each: [regret[count] for regret, cell in zip(found, asked) if cell[3] == each] for each in CONTENDERS}
        for count in sizes.at
    }


def _regrets(asked: tuple[Truth, Sizes, str, str, int]) -> dict[int, float]:
    truth, sizes, red, contender, seed = asked
    settings, after = config(sizes, red), {}
    told = replayed(truth, contender, settings, seed, max(sizes.at))
    for count in sizes.at:
        chosen = recommended(contender, at_budget(told, count * settings.rungs[-1]), settings)
        after[count] = truth.regret(None if chosen is None else chosen.workflow)
    return after


def compared(title: str, values: dict[str, list[float]], halved: bool = True) -> Table:
    """Medians and means; `ahead` is by how much the search is better than a contender on the same seeds, in the mean.

    The median of these differences says little where there are few classes: it is 0 as soon as half of the seeds
    recommend the same.
    """
    lines = []
    chance = statistics.median(values[RANDOM])
    for contender, own in values.items():
        columns: dict[str, Sampled] = {"value": _Plain(tuple(own)), "mean": _Plain((statistics.fmean(own),))}
        if len(own) > 1:
            limits = bootstrap(own, statistics.median, FIRST_SEED)
            columns |= {"low": _Plain((limits.low,)), "high": _Plain((limits.high,))}
        if contender == SEARCH:
            columns["of random's"] = _Plain((statistics.median(own) / chance if chance else 0.0,))
            lines.append(Line(contender, columns, Target("of random's", 0.5) if halved else None))
            continue
        columns |= _ahead([theirs - ours for ours, theirs in zip(values[SEARCH], own)])
        target = Target("ahead low", 0.01, at_most=False) if contender == RANDOM and len(own) > 1 else None
        lines.append(Line(contender, columns, target))
    return Table(f"{title}, {len(values[SEARCH])} seeds", lines)


def _ahead(differences: Sequence[float]) -> dict[str, Sampled]:
    """The mean of paired differences with its bootstrapped limits, and their median."""
    columns: dict[str, Sampled] = {"ahead": _Plain((statistics.fmean(differences),))}
    if len(differences) > 1:
        limits = bootstrap(differences, statistics.fmean, FIRST_SEED)
        columns |= {"ahead low": _Plain((limits.low,)), "ahead high": _Plain((limits.high,))}
    return columns | {"median ahead": _Plain(tuple(differences))}


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
    parser.add_argument("--seeds", type=int, help="so many seeds where contenders train, instead of all")
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, help="only these where contenders train")
    parser.add_argument("--cells", type=Path, default=HERE / "results" / "workflow_search.jsonl", help="finished cells")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "workflow_search.json", help="the samples")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    sizes = dataclasses.replace(sizes, seeds=options.seeds or sizes.seeds)
    where = machine()
    rows = compute(sizes, options.jobs, options.cells, options.contenders)
    if not options.quick and not kept_truth(sizes, TRUTH):
        keep_truth(sizes, rows, TRUTH)
    done = tables(sizes, rows, options.jobs)
    return save_tables(done, where, options.json, options.strict, sizes=dataclasses.asdict(sizes))


if __name__ == "__main__":
    sys.exit(main())
