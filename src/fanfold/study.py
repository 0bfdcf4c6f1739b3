"""What is searched, how it is scored and on what."""

from __future__ import annotations

import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from fanfold.encoding import derive_seed, encode
from fanfold.errors import ConfigError
from fanfold.identity import Identity
from fanfold.run_options import RunOptions, takes
from fanfold.running import Conclude, Run, Start
from fanfold.schedule import Schedule
from fanfold.schedules import AllCases
from fanfold.signals import run_guarded
from fanfold.stop import Never, Rule
from fanfold.strategy import Strategy
from fanfold.types import C, Case, Result


@dataclass(frozen=True)
class Study(Generic[C]):
    """What is searched, how it is scored, on what, and when it is enough.

    `evaluate(candidate, case)` gives a number (higher is better) or `Ok(score, data, cost)`; it may be a coroutine
    function, and may raise: that candidate's evaluation is then `Failed` and the search continues.  `cases` are `Case`s
    or plain values (each becomes the `data` of a case); without them a candidate is evaluated once.  An evaluator with
    an attribute `evaluate_block(cells)` is given up to `block_size` (candidate, case) pairs at once.  One with a true
    attribute `continues` is also given, as a third argument and third of each cell, the `Ok` of the candidate on the
    case before, or None where it has none: rungs of a training can continue where the last one stopped.

    A method `check_ready()` of the evaluator is called before the run begins and raises where nothing can be evaluated:
    no key, an unknown model, a package that is missing.

    A trial's score is `aggregate` of its cases' scores; a trial with a failed case has none, unless `failed_score` says
    what a failed case counts. `window` is how many trials may be open at once: an ask knows all but the last `window`
    results, which makes the search the same on every executor. With `in_order=False` results are told as they come (no
    waiting for stragglers); the order is recorded, so such a run still resumes exactly.

    `shown(result)` gives a few words about a finished trial for those who watch the run.

    `conclude(run, go)`, a coroutine function, is called when the search is over and gives the run's `Summary`; on its
    way it may run further studies beside, such as one that scores the winner on held-out cases:
    `await go("held-out", study)` has the same executor and ledger, and is resumed with the run it belongs to.
    """

    strategy: Strategy[C]
    evaluate: Callable[[C, Case], Any]
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

    def __post_init__(self) -> None:
        if not callable(getattr(self.strategy, "ask", None)) or not callable(getattr(self.strategy, "tell", None)):
            raise ConfigError(f"strategy must have ask() and tell(), and {self.strategy!r} has not")
        if not callable(self.evaluate):
            raise ConfigError(f"evaluate must be a function of (candidate, case), not {self.evaluate!r}")
        for name, value, least in (("window", self.window, 1), ("retries", self.retries, 0)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ConfigError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(f"timeout must be a positive number of seconds or None, not {self.timeout!r}")
        if self.failed_score is not None and not math.isfinite(self.failed_score):
            raise ConfigError(f"failed_score must be a finite number or None, not {self.failed_score!r}")
        len(self.seeded_cases)  # cases that cannot be used are refused here, not in the middle of a run

    @takes(RunOptions)
    def run(self, options: RunOptions) -> Run[C]:
        """Run the search to its end.

        `executor` says where evaluations run (`fanfold.executors.make` lists the words).  `ledger` is the file that
        keeps everything; without one, nothing outlives this process.  `run` names the run: a name the ledger knows
        is continued where it stopped, with nothing evaluated again.  `reuse` says whose finished evaluations may
        answer an equal one, `cache` the same for model calls (`on`, `off`, `refresh`, `offline`).

        `max_trials`, `max_evaluations`, `max_time`, `max_cost` and `target` replace the study's own stopping rule of
        that kind, and join the others.  A run whose first 25 evaluations, or whose latest `max_failures`, fail in the
        same way stops with `OnlyFailures` (None: never).  `retry_failed=True`, or a list of kinds such as
        `["timeout"]`, evaluates what failed in the run of that name again before it continues; the search keeps what
        it was told, the results count the new outcomes.

        Ctrl-C or SIGTERM stops asking, gives what runs `grace` seconds, saves, and raises `Interrupted`; a second one
        stops at once.  Works inside a running event loop too (a notebook).  `RunOptions` lists all options.
        """
        return run_guarded(Start(self, options))

    @takes(RunOptions)
    async def run_async(self, options: RunOptions) -> Run[C]:
        """`run` for code that is itself asynchronous; cancelling it stops the run and keeps what is finished."""
        return await Start(self, options)()

    @functools.cached_property
    def seeded_cases(self) -> tuple[Case, ...]:
        """The cases as evaluations see them: each with an id and a seed."""
        return tuple(_cases(self.cases, self.seed))

    @property
    def identity(self) -> dict[str, Any]:
        """What must stay the same for a run to be resumed."""
        return Identity.of(self).record

    @property
    def effective_window(self) -> int:
        return self.window if self.window is not None else self.strategy.window


def _cases(cases: Iterable[Any] | None, seed: int) -> Iterator[Case]:
    """Cases with ids and seeds: given ones keep theirs, plain values get their position as id."""
    if isinstance(cases, str | bytes | Mapping):
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
