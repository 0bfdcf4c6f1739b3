"""What is searched, how it is scored and on what."""

from __future__ import annotations

import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Concatenate, Generic

from fanfold.cards import card
from fanfold.contracts import check_conclude, check_evaluator, check_strategy
from fanfold.display import display
from fanfold.encoding import derive_seed, encode
from fanfold.errors import ConfigError, check_whole
from fanfold.events import shielded, together
from fanfold.files import check_not_imported
from fanfold.identity import Identity
from fanfold.run_options import RunOptions, takes
from fanfold.running import Conclude, Run, Start
from fanfold.schedule import Schedule
from fanfold.schedules import AllCases
from fanfold.signals import run_guarded
from fanfold.stop import Never, Rule
from fanfold.strategy import Strategy
from fanfold.texts import shortened
from fanfold.trackers import tracking
from fanfold.types import C, Case, Objective, Result


@dataclass(frozen=True)
class Study(Generic[C]):
    """What is searched, how it is scored, on which cases, and when to stop.

    `evaluate(candidate, case)` returns a number or `Ok(score, data, cost)`. Higher is better, or lower with
    `minimize=True`. Instead of one number it may return a dict of several: `objective` names the one that counts, and
    all of them are kept and shown. `evaluate` may be a coroutine function. If it raises, that candidate's evaluation is
    `Failed` and the search continues. `cases` are `Case`s or plain values, each of which becomes the `data` of a case;
    of a data frame, each row does, as a dict. Without cases a candidate is evaluated once.

    An evaluator may have further attributes. `evaluate_block(cells)` receives up to `block_size` (candidate, case)
    pairs at once. With a true `continues`, the evaluator also receives the `Ok` of the candidate on the case before (or
    None), as a third argument and as the third part of each cell. So rungs of a training continue where the last one
    stopped. `check_ready()` is called before the run and raises if nothing can be evaluated: no key, an unknown model,
    a missing package.

    `shared` is what all evaluations use, such as a table or an index: `shared={"index": index}` gives `evaluate` the
    argument `index`. Every worker gets it once, however many evaluations it makes. An evaluation must not change it.

    A trial's score is `aggregate` of its cases' scores. A trial with a failed case has none, unless `failed_score` says
    what a failed case counts. `window` is how many trials may be open at once. An ask knows all but the last `window`
    results, which makes the search the same on every executor. With `in_order=False` results are told as they arrive,
    without waiting for stragglers. The order is recorded, so such a run still resumes exactly.

    With `keep`, blobs that nothing needs any more are pruned as the run goes, so the ledger stays small. These stay:
    the blobs of open and failed trials, of the best `keep` complete trials, and of the trials that the strategy
    `needs()`. If the evaluator `continues`, only the last outcome of a told trial counts, without the data under the
    keys in the evaluator's `passing`. Reading a pruned blob raises `LedgerError`.

    `shown(result)` describes a finished trial in a few words for those who watch the run.  A run says the `remarks`
    when it begins: what was inferred, and how to change it.

    `conclude(run, go)`, a coroutine function, is called after the search and returns the run's `Summary`. It may run
    further studies, for example to score the winner on held-out cases: `await go("held-out", study)` uses the same
    executor and ledger, and is resumed with the run it belongs to. Its `check_ready(former)`, where it has one, is
    called before the first evaluation, with the summary that an earlier part of the run ended with, or None.
    """

    strategy: Strategy[C]
    evaluate: Callable[[C, Case], Any] | Callable[Concatenate[C, Case, ...], Any]
    cases: Iterable[Any] | None = None
    schedule: Schedule = field(default_factory=AllCases)
    stop: Rule = field(default_factory=Never)
    seed: int = 0
    window: int | None = None
    in_order: bool = True
    aggregate: Callable[[Sequence[float]], float] = statistics.fmean
    failed_score: float | None = None
    timeout: float | None = None
    retries: int = 0
    name: str = "study"
    conclude: Conclude | None = None
    shown: Callable[[Result[C]], str] | None = None
    remarks: tuple[str, ...] = ()
    minimize: bool = False
    objective: str | None = None
    keep: int | None = None
    shared: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_strategy(self.strategy)
        check_evaluator(self.evaluate, self.shared)
        if not isinstance(self.name, str):
            raise ConfigError(f"name must be a text, not {self.name!r}")
        for name in ("in_order", "minimize"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be True or False, not {getattr(self, name)!r}")
        check_conclude(self.conclude)
        if not (self.shown is None or callable(self.shown)):
            raise ConfigError(f"shown must be a function or None, not {self.shown!r}")
        if self.objective is not None and not (isinstance(self.objective, str) and self.objective):
            raise ConfigError(f"objective must be the name of a score that evaluate returns, not {self.objective!r}")
        check_whole(self.retries, "retries", 0)
        for name in ("window", "keep"):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name)
        if self.timeout is not None and not (isinstance(self.timeout, Real) and self.timeout > 0):
            raise ConfigError(f"timeout must be a positive number of seconds or None, not {self.timeout!r}")
        score = self.failed_score
        if score is not None and not (isinstance(score, Real) and math.isfinite(score)):
            raise ConfigError(f"failed_score must be a finite number or None, not {score!r}")
        if not isinstance(self.schedule, Schedule):
            raise ConfigError(f"schedule must be a Schedule such as Racing() or Halving(), not {self.schedule!r}")
        if not isinstance(self.stop, Rule):
            raise ConfigError(f"stop must be a rule such as MaxTrials(100) | MaxTime('2h'), not {self.stop!r}")
        if not callable(self.aggregate):
            raise ConfigError(f"aggregate must be a function of a trial's scores, such as max, not {self.aggregate!r}")
        len(self.seeded_cases)  # cases that cannot be used are refused here, not in the middle of a run

    @takes(RunOptions)
    def run(self, options: RunOptions) -> Run[C]:
        """Run the search to its end.

        `executor` says where evaluations run (see `fanfold.executors.make`). `ledger` is the file that stores
        everything; without one, nothing outlives this process. `run` names the run: a name that the ledger knows
        continues where it stopped, and nothing is evaluated again. `reuse` says whose finished evaluations may answer
        an equal one, and `cache` says the same for model calls (`on`, `off`, `refresh`, `offline`).

        `max_trials`, `max_evaluations`, `max_time`, `max_cost` and `target` replace the study's own stopping rule of
        that kind and are combined with the others. A run stops with `OnlyFailures` if its first 25 evaluations, or its
        latest `max_failures`, fail in the same way (None: never). `retry_failed=True`, or a list of kinds such as
        `["timeout"]`, first evaluates the failures of that run again. The search keeps what it was told; the results
        count the new outcomes.

        Ctrl-C or SIGTERM stops asking, gives running evaluations `grace` seconds, saves, and raises `Interrupted`. A
        second one stops at once. `run` also works inside a running event loop, such as a notebook. `RunOptions` lists
        all options.
        """
        with self._displayed(options) as displayed:
            return run_guarded(Start(self, displayed))

    @takes(RunOptions)
    async def run_async(self, options: RunOptions) -> Run[C]:
        """The same as `run` for asynchronous code. Cancelling it stops the run and keeps what is finished."""
        with self._displayed(options) as displayed:
            return await Start(self, displayed)()

    @contextmanager
    def _displayed(self, options: RunOptions) -> Iterator[RunOptions]:
        """The options with a display and trackers among the watchers, where they are wanted."""
        check_not_imported()
        with tracking(options.track) as track, display(options.limit(self.stop), self.shown, options.progress) as shown:
            yield replace(options, watch=together(shielded(options.watch), track, shown))

    def _repr_html_(self) -> str:
        """The study as a notebook shows it."""
        facts = {
            "strategy": type(self.strategy).__name__,
            "evaluator": getattr(self.evaluate, "__qualname__", None) or shortened(repr(self.evaluate)),
            "cases": f"{len(self.seeded_cases):,}",
            "stops": shortened(repr(self.stop)),
            "seed": str(self.seed),
        }
        return card(self.name, "A study that has not run yet: study.run() returns its result.", facts)

    @functools.cached_property
    def seeded_cases(self) -> tuple[Case, ...]:
        """The cases as evaluations see them: each with an id and a seed."""
        return tuple(_cases(self.cases, self.seed))

    @property
    def identity(self) -> dict[str, Any]:
        """What must stay the same for a run to be resumed."""
        return Identity.of(self).record

    @property
    def goal(self) -> Objective:
        """What is searched for among the scores."""
        return Objective(self.objective, self.minimize)

    @property
    def effective_window(self) -> int:
        return self.window if self.window is not None else self.strategy.window


def _cases(cases: Iterable[Any] | None, seed: int) -> Iterator[Case]:
    """Cases with ids and seeds: given ones keep theirs, plain values get their position as id."""
    if hasattr(cases, "columns"):  # a data frame: iterated over, it gives the names of its columns
        from fanfold.tables import records

        cases = records(cases)
    if isinstance(cases, str | bytes | Mapping) or not (cases is None or isinstance(cases, Iterable)):
        raise ConfigError(f"cases must be a list of cases, not one {type(cases).__name__}: {cases!r:.80}")
    given = [Case("0")] if cases is None else list(cases)
    if not given:
        raise ConfigError("cases is empty: there is nothing to score candidates on. Give at least one case, or None")
    seen: set[str] = set()
    for position, value in enumerate(given):
        case = value if isinstance(value, Case) else Case(str(position), value)
        if not isinstance(case.id, str) or not case.id:
            raise ConfigError(f"the id of a case must be a text, not {case.id!r}")
        if case.id in seen:
            raise ConfigError(f"two cases have the id {case.id!r}: ids must be unique, results are kept by them")
        seen.add(case.id)
        encode([case.id, case.data], f"case {case.id!r}")  # what the ledger could not keep is refused now
        own = derive_seed(seed, "case", case.id) if case.seed is None else _seed(case)
        yield Case(case.id, case.data, own)


def _seed(case: Case) -> int:
    try:
        seed = operator.index(case.seed)  # type: ignore[arg-type]
    except TypeError:
        seed = 1 << 63
    if not -(1 << 63) <= seed < 1 << 63:
        raise ConfigError(f"the seed of case {case.id!r} must be a whole number of at most 64 bits, not {case.seed!r}")
    return seed
