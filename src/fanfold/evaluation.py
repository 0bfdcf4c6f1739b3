"""How a cell is evaluated where it runs: the user's function is called, and whatever happens becomes an outcome.

Every field of an outcome is checked here and nowhere else: scores and costs are finite floats, kinds are words, texts
can be kept, and data is `Encoded`.  Worker processes import this module, so it imports little.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import CoroutineType, MappingProxyType
from typing import TYPE_CHECKING, Any

from fanfold.errors import CallFailed, NoWayHome, StoreError
from fanfold.executors.base import is_coroutine_function
from fanfold.redaction import redact
from fanfold.types import Case, Failed, Objective, Ok, Outcome

if TYPE_CHECKING:
    from fanfold.blobs import Ticket

PLAIN = Objective()
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def for_one(
    evaluate: Any,
    objective: Objective = PLAIN,
    ticket: Ticket | None = None,
    shared: Mapping[str, Any] = _NOTHING,
) -> One | OneAsync:
    """The function that evaluates one cell; with a ticket, a worker puts large blobs into the store of its run."""
    kind = OneAsync if is_coroutine_function(evaluate) else One
    return kind(bound(evaluate, shared), objective, ticket)


def for_blocks(
    evaluate: Any,
    objective: Objective = PLAIN,
    ticket: Ticket | None = None,
    shared: Mapping[str, Any] = _NOTHING,
) -> Block | BlockAsync | None:
    """The function that evaluates many cells at once, where the evaluator offers it."""
    block = getattr(evaluate, "evaluate_block", None)
    if not callable(block) or block_size(evaluate) < 2:
        return None
    kind = BlockAsync if is_coroutine_function(block) else Block
    return kind(bound(block, shared), objective, ticket)


def bound(evaluate: Any, shared: Mapping[str, Any]) -> Any:
    """An evaluator with what its study shares, as arguments by name."""
    return functools.partial(evaluate, **shared) if shared else evaluate


def block_size(evaluate: Any) -> int:
    return int(getattr(evaluate, "block_size", 64))


def arguments(
    evaluate: Any, candidate: Any, case: Case, previous: Outcome | None, objective: Objective = PLAIN
) -> tuple[Any, ...]:
    """The arguments of an evaluator: one that continues also gets the outcome of the case before, if it was Ok."""
    if not getattr(evaluate, "continues", False):
        return candidate, case
    return candidate, case, objective.natural_outcome(previous) if isinstance(previous, Ok) else None


@dataclass(frozen=True, slots=True)
class One:
    """Evaluates one cell where it is called, and turns whatever happens into an outcome that can travel."""

    evaluate: Any
    objective: Objective = PLAIN
    ticket: Ticket | None = None

    @property
    def __wrapped__(self) -> Any:
        return self.evaluate

    def __call__(self, *arguments: Any) -> Outcome:
        process = os.getpid()
        try:
            outcome = outcome_of(self.evaluate(*arguments), self.objective)
            return outcome if self.ticket is None else _aside([outcome], self.ticket)[0]
        except (KeyboardInterrupt, NoWayHome, StoreError):  # the latter: nobody's evaluation can run here
            raise
        except BaseException as error:  # a plain function cannot be cancelled: whatever it raises is its own doing
            return failure_of(error)
        finally:
            if os.getpid() != process:
                _end_child()


@dataclass(frozen=True, slots=True)
class OneAsync:
    """`One` for evaluators that are coroutine functions."""

    evaluate: Any
    objective: Objective = PLAIN
    ticket: Ticket | None = None

    @property
    def __wrapped__(self) -> Any:
        return self.evaluate

    async def __call__(self, *arguments: Any) -> Outcome:
        try:
            outcome = outcome_of(await self.evaluate(*arguments), self.objective)
            return outcome if self.ticket is None else _aside([outcome], self.ticket)[0]
        except BaseException as error:
            if _from_outside(error):
                raise
            return failure_of(error)


@dataclass(frozen=True, slots=True)
class Block:
    """Evaluates many cells in one call.  Raises an ordinary error where that failed as a whole."""

    evaluate_block: Any
    objective: Objective = PLAIN
    ticket: Ticket | None = None

    @property
    def __wrapped__(self) -> Any:
        return self.evaluate_block

    def __call__(self, cells: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        process = os.getpid()
        try:
            outcomes = outcomes_of(self.evaluate_block(cells), len(cells), self.objective)
            return outcomes if self.ticket is None else _aside(outcomes, self.ticket)
        except (KeyboardInterrupt, NoWayHome, StoreError):
            raise
        except BaseException as error:
            raise RuntimeError(failure_of(error).message) from None
        finally:
            if os.getpid() != process:
                _end_child()


@dataclass(frozen=True, slots=True)
class BlockAsync:
    """`Block` for evaluators that are coroutine functions."""

    evaluate_block: Any
    objective: Objective = PLAIN
    ticket: Ticket | None = None

    @property
    def __wrapped__(self) -> Any:
        return self.evaluate_block

    async def __call__(self, cells: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        try:
            outcomes = outcomes_of(await self.evaluate_block(cells), len(cells), self.objective)
            return outcomes if self.ticket is None else _aside(outcomes, self.ticket)
        except BaseException as error:
            if _from_outside(error):
                raise
            raise RuntimeError(failure_of(error).message) from None


def _end_child() -> None:
    """End a process that an evaluator forked and that came back in its place: its parent gives the answer."""
    os.write(2, b"an evaluator forked, and its child returned: the child ends here\n")  # takes no lock
    os._exit(1)


def _aside(outcomes: list[Outcome], ticket: Ticket) -> list[Outcome]:
    """The outcomes with their large blobs in the store of the run."""
    kept = iter(ticket.kept([each.data for each in outcomes if isinstance(each, Ok) and each.data is not None]))
    return [
        replace(each, data=next(kept)) if isinstance(each, Ok) and each.data is not None else each for each in outcomes
    ]


def _from_outside(error: BaseException) -> bool:
    """Whether this may be Ctrl-C, a cancellation or the run's own refusal, and not the evaluator's doing."""
    if isinstance(error, Exception):
        return isinstance(error, NoWayHome | StoreError)  # nobody's evaluation can run here
    import asyncio  # loaded wherever something is awaited

    return isinstance(error, KeyboardInterrupt | asyncio.CancelledError)


def outcomes_of(values: Any, count: int, objective: Objective = PLAIN) -> list[Outcome]:
    """Read what `evaluate_block` returned for so many cells: one bad value among them fails alone."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping | Set):
        raise TypeError(f"evaluate_block returned {_brief(values)}: return a list with one outcome for each cell")
    listed = list(itertools.islice(values, count + 1))  # an endless generator must not hang
    if len(listed) != count:
        gave = len(listed) if len(listed) < count else "more"
        raise ValueError(f"evaluate_block was given {count} cells and gave {gave} outcomes")
    return [outcome_of(value, objective) for value in listed]


def outcome_of(value: Any, objective: Objective = PLAIN) -> Outcome:
    """Read what an evaluator returned: a number, several by name, or an outcome; anything else is a failure."""
    if objective.minimize:
        return objective.natural_outcome(outcome_of(value, Objective(objective.name)))  # its negative, and back
    if type(value) is float and math.isfinite(value):
        return Ok(value)
    if type(value) is Ok and value.data is None and type(value.score) is type(value.cost) is float:  # noqa: SIM102
        if math.isfinite(value.score) and 0.0 <= value.cost < math.inf:
            return value
    try:
        if isinstance(value, Failed):
            return _failed(value)
        value = value if isinstance(value, Ok) else Ok(value)
        return _ok(_named(value, objective.name) if isinstance(value.score, Mapping) and value.score else value)
    except UnnamedScore as error:
        return Failed("bad-score", str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of a class of the user's own
        return failure_of(error)


class UnnamedScore(ValueError):
    """An evaluator returned several scores, and which of them counts cannot be told."""


def _named(value: Ok, name: str | None) -> Ok:
    """The outcome with the score that counts, and all of them in its data."""
    from fanfold.errors import nearest

    scores: Mapping[Any, Any] = value.score  # type: ignore[assignment]
    for key, score in scores.items():
        if not isinstance(key, str) or _number(score) is None:
            said = f"the evaluator returned the score {_brief(key)} = {_brief(score)}"
            raise UnnamedScore(f"{said}: return numbers, and what else is to be kept as Ok(score, data)")
    if name is None:
        raise UnnamedScore(
            f"the evaluator returned the scores {', '.join(scores)}, and not one number: say which one counts, "
            f"as in Study(..., objective={next(iter(scores))!r})"
        )
    if name not in scores:
        raise UnnamedScore(f"the evaluator returned no score {name!r}, the objective{nearest(name, scores)}")
    numbers = {key: _number(score) for key, score in scores.items()}
    data = value.data if isinstance(value.data, dict) else {} if value.data is None else {"data": value.data}
    return Ok(scores[name], {**data, "scores": numbers}, value.cost)


def _ok(value: Ok) -> Outcome:
    cost, score = _number(value.cost), _number(value.score)
    if cost is None or cost < 0.0:
        return Failed("bad-data", f"the evaluator returned {_cost_problem(value.cost)}")
    if score is None:
        return Failed("bad-score", _score_problem(value.score), cost=cost)
    if value.data is None:
        return Ok(score, None, cost)
    from fanfold.encoding import pack

    try:
        return Ok(score, pack(value.data), cost)
    except Exception as error:
        from fanfold.encoding import words

        return Failed("bad-data", words(error), cost=cost)


def _failed(value: Failed) -> Failed:
    from fanfold.encoding import words

    cost = _number(value.cost)
    if cost is None or cost < 0.0:
        problem, cost = _cost_problem(value.cost), 0.0
    elif (kind := _word(value.kind)) is None:
        problem = f"the kind {_brief(value.kind)}: give one word"
    else:
        return Failed(kind, words(value.message), words(value.detail), cost)
    said = words(f"the evaluator returned Failed with {problem}; its message was: {words(value.message)}")
    return Failed("bad-data", said, words(value.detail), cost)


def _word(kind: Any) -> str | None:
    """A failure's kind; None where it is not one word.  No commas either: kinds are named in lists."""
    return str.__str__(kind) if isinstance(kind, str) and re.fullmatch(r"[\w.:/+-]{1,80}", kind) else None


def _number(value: Any) -> float | None:
    """A finite float, of whatever kind of number that was; None where it is not one."""
    if type(value) is not float:
        if not isinstance(value, int) and (not hasattr(type(value), "__float__") or _complex(value)):
            return None
        try:
            # One number as it is, or for one row: `float` would warn of a tensor that has a gradient.
            value = float(value.item() if getattr(value, "shape", None) in ((), (1,)) else value)
        except Exception:  # an array, an integer beyond 1e308, a class of the user's own
            return None
    number: float = value
    return number if math.isfinite(number) else None


def _complex(value: Any) -> bool:
    """Whether `float` would drop an imaginary part, as it does with numpy's numbers."""
    import numbers

    return isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real)


def _score_problem(score: Any) -> str:
    if isinstance(score, CoroutineType):
        score.close()  # or Python warns that nobody awaited it
        return "the evaluator returned a coroutine: make it a coroutine function (async def) that awaits it"
    if isinstance(score, float):
        return f"the evaluator returned the score {score}: return a finite number, or raise"
    return f"the evaluator returned {_brief(score)}, which is not one number: return a finite number or Ok(score, ...)"


def _cost_problem(cost: Any) -> str:
    return f"the cost {_brief(cost)}: give a finite number of at least 0"


def failure_of(error: BaseException) -> Failed:
    """An exception as an outcome, whatever its own methods do."""
    import traceback  # only where something failed

    from fanfold.encoding import words

    kind = (_word(error.kind) if isinstance(error, CallFailed) else None) or "error"
    name, text = type(error).__name__, words(error, sys.maxsize)  # cut only after keys are taken out of it
    try:
        detail = "".join(traceback.format_exception(error))
    except Exception as problem:
        detail = f"(no traceback: formatting it raised {type(problem).__name__})"
    return Failed(kind, words(redact(f"{name}: {text}" if text else name)), words(redact(detail)))


def _brief(value: Any) -> str:
    from fanfold.encoding import brief

    return brief(value)
