"""How cells are evaluated: the evaluator, its limits, its tries, and the key under which an outcome is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from fanfold.attempt import Abandoned, Backoff, attempt
from fanfold.blobs import Ticket
from fanfold.context import here
from fanfold.encoding import MARK, apart, digest, encode, own_data
from fanfold.errors import ConfigError, ExecutorBroken, PlaceLost, WorkerDied
from fanfold.evaluation import PLAIN, arguments, block_size, failure_of, for_blocks, for_one
from fanfold.executors import Executor
from fanfold.executors.parcels import LARGE, Parcel
from fanfold.search_loop import Cell
from fanfold.tracing import spanned
from fanfold.types import Case, Failed, Objective, Outcome

#: A cell and the key under which its outcome is kept.
Keyed: TypeAlias = "tuple[bytes, Cell[Any]]"


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """What bounds the evaluations of a run, and where finished results may be taken from."""

    timeout: float | None
    retries: int
    #: Seconds in which a call that was told to end may do so before it is abandoned.
    grace: float
    #: `run`: equal cells of this run are evaluated once; `ledger`: of any run in the file; `never`: each time again.
    reuse: str
    #: How many evaluations in a row may fail in the same way; None: any number.
    max_failures: int | None


class Tried(NamedTuple):
    """The outcomes of some cells, how often they were tried, and whether the last try had to be left behind."""

    outcomes: list[Outcome]
    tries: int
    abandoned: bool = False


class EvaluationFailed(Exception):
    """Carries a failed outcome through `attempt`, which judges exceptions."""

    def __init__(self, outcome: Failed) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Work:
    """An evaluator and the limits of its evaluations."""

    def __init__(
        self,
        evaluate: Any,
        fingerprint: str,
        cases: Sequence[Case],
        limits: WorkLimits,
        objective: Objective = PLAIN,
        ticket: Ticket | None = None,
        shared: Mapping[str, Any] | None = None,
        fetches: bool = False,
    ) -> None:
        """`shared` goes to every evaluation by name; where workers fetch it and large cases, each does so once."""
        self.limits = limits
        self._evaluate = evaluate
        self._objective = objective
        #: Whether what an evaluation gets is its own anyway: it was sent to it.
        self._sent = fetches
        self._fingerprint = fingerprint if objective == PLAIN else f"{fingerprint} {objective}"
        self._cases: dict[str, bytes] = {}
        #: Large cases, as evaluations get them: one for all in this process, and where workers fetch it, by name.
        self._large: dict[str, Any] = {}
        for case in cases:
            text = encode(case, f"case {case.id!r}")
            self._cases[case.id] = key = digest(text)
            if len(text) > LARGE or MARK in text:
                self._large[case.id] = Parcel.of(key.hex(), case) if fetches else case
        shared = dict(shared or {})
        if fetches:
            shared = {name: _parcel(f"{self._fingerprint} {name}", name, value) for name, value in shared.items()}
        self._one = for_one(evaluate, objective, ticket, shared)
        self._block = for_blocks(evaluate, objective, ticket, shared)
        #: How many cells an evaluator takes at once.
        self.most_cells = 1 if self._block is None else block_size(evaluate)
        #: Whether a block failed as a whole, which is said once.
        self.split = False

    def key(self, cell: Cell[Any]) -> bytes:
        return digest(self._fingerprint, cell.text, self._cases[cell.case.id])

    def evaluate(
        self, cells: Sequence[Keyed], executor: Executor, time: Callable[[], float] | None
    ) -> Awaitable[Tried]:
        """Evaluate a cell, or a block of them, as often as its limits allow; `time` is what its clock goes by."""
        tried = self._tried(cells, executor, time)
        if (spans := here().spans) is None:
            return tried
        first = cells[0][1]
        return spanned(spans, first.trial.number, first.case.id, tried)

    async def _tried(self, cells: Sequence[Keyed], executor: Executor, time: Callable[[], float] | None) -> Tried:
        """Tries of a cell or a block.

        A single cell that fails is a `Failed` outcome.  What is raised is the place's doing, or a block's that failed
        as a whole.
        """
        limits, tries = self.limits, CellTries(self, cells, executor)
        again = self.again if len(cells) == 1 else None
        timeout = limits.timeout and limits.timeout * len(cells)
        try:
            made = await attempt(tries, again=again, timeout=timeout, time=time, grace=limits.grace)
        except (ExecutorBroken, ConfigError, PlaceLost):
            raise
        except Exception as error:
            if len(cells) > 1:
                raise
            return Tried([self._failure(error, tries.made)], tries.made, isinstance(error, Abandoned))
        return Tried(list(made) if len(cells) > 1 else [made], tries.made)

    def run(self, cells: Sequence[Keyed], executor: Executor, last: bool) -> Awaitable[Any]:
        """Evaluate cells once; in the last try, an error of the evaluator's is an outcome."""
        if self._block is not None and len(cells) > 1:
            return executor.run(self._block, [self._arguments(cell) for _, cell in cells])
        outcome = executor.run(self._one, *self._arguments(cells[0][1]))
        return outcome if last else _judged(outcome)

    def again(self, error: Exception, n: int) -> float | None:
        """A worker that died is given a second try elsewhere; other failures as many as the study allows.

        What is the place's fault uses up no tries: the dispatcher looks for another place.
        """
        if isinstance(error, ExecutorBroken | ConfigError | PlaceLost):
            return None
        tries = self.limits.retries + 1
        return Backoff(max(2, tries) if isinstance(error, WorkerDied) else tries)(error, n)

    def _failure(self, error: Exception, tries: int) -> Failed:
        if isinstance(error, TimeoutError):
            return Failed("timeout", f"no answer within {self.limits.timeout:g} s")
        if isinstance(error, WorkerDied):
            return Failed("worker-died", f"{error} (tried {tries} times)")
        return failure_of(error)

    def _arguments(self, cell: Cell[Any]) -> tuple[Any, ...]:
        candidate, case, previous = cell.trial.candidate, self._large.get(cell.case.id), cell.previous
        if not self._sent:
            candidate = apart(candidate)
            case = case or own_data(cell.case)
            previous = own_data(previous)
        return arguments(self._evaluate, candidate, case or cell.case, previous, self._objective)


class CellTries:
    """Evaluates a cell or a block whenever it is called; `made` is how often that was.

    Not a closure: thousands of evaluations may wait at once.
    """

    __slots__ = ("_cells", "_executor", "_work", "made")

    def __init__(self, work: Work, cells: Sequence[Keyed], executor: Executor) -> None:
        self._work, self._cells, self._executor = work, cells, executor
        self.made = 0

    def __call__(self) -> Awaitable[Any]:
        self.made += 1
        return self._work.run(self._cells, self._executor, self.made > self._work.limits.retries)


async def _judged(evaluated: Awaitable[Outcome]) -> Outcome:
    """The outcome of a try that is not the last: an error of the evaluator's is raised, to be tried again."""
    outcome = await evaluated
    if isinstance(outcome, Failed) and outcome.kind == "error":
        raise EvaluationFailed(outcome)
    return outcome


def _parcel(key: str, name: str, value: Any) -> Parcel:
    from fanfold.executors.worker_process import packed  # here, because few runs need it

    try:
        packed(value)
    except Exception as error:
        raise ConfigError(
            f"shared[{name!r}] cannot be sent to a worker ({error}): keep locks, files and connections out of it, or "
            "run on threads"
        ) from error
    return Parcel.of(digest(key).hex(), value)
