"""How a cell is evaluated where it runs: the user's function is called, and whatever happens becomes an outcome.

Worker processes import this module, so it imports little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fanfold.errors import CallFailed, NoWayHome
from fanfold.executors.base import is_coroutine_function
from fanfold.redaction import redact
from fanfold.types import Case, Failed, Ok, Outcome


def for_one(evaluate: Any) -> One | OneAsync:
    """The function that evaluates one cell."""
    return OneAsync(evaluate) if is_coroutine_function(evaluate) else One(evaluate)


def for_blocks(evaluate: Any) -> Block | BlockAsync | None:
    """The function that evaluates many cells at once, where the evaluator offers it."""
    block = getattr(evaluate, "evaluate_block", None)
    if not callable(block) or block_size(evaluate) < 2:
        return None
    return BlockAsync(block) if is_coroutine_function(block) else Block(block)


def block_size(evaluate: Any) -> int:
    return int(getattr(evaluate, "block_size", 64))


def arguments(evaluate: Any, candidate: Any, case: Case, previous: Outcome | None) -> tuple[Any, ...]:
    """What an evaluator is called with: one that continues is also given what came of the case before, if it was Ok."""
    if not getattr(evaluate, "continues", False):
        return candidate, case
    return candidate, case, previous if isinstance(previous, Ok) else None


@dataclass(frozen=True, slots=True)
class One:
    """Evaluates one cell where it is called, and turns whatever happens into an outcome that can travel."""

    evaluate: Any

    def __call__(self, *arguments: Any) -> Outcome:
        try:
            return outcome_of(self.evaluate(*arguments))
        except NoWayHome:
            raise  # nobody's evaluation can make its calls here: the run is refused
        except (Exception, SystemExit) as error:
            return failure_of(error)


@dataclass(frozen=True, slots=True)
class OneAsync:
    """`One` for evaluators that are coroutine functions."""

    evaluate: Any

    async def __call__(self, *arguments: Any) -> Outcome:
        try:
            return outcome_of(await self.evaluate(*arguments))
        except NoWayHome:
            raise  # nobody's evaluation can make its calls here: the run is refused
        except (Exception, SystemExit) as error:
            return failure_of(error)


@dataclass(frozen=True, slots=True)
class Block:
    """Evaluates many cells in one call."""

    evaluate_block: Any

    def __call__(self, cells: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        values = list(self.evaluate_block(cells))
        if len(values) != len(cells):
            raise ValueError(f"evaluate_block was given {len(cells)} cells and gave {len(values)} outcomes")
        return [outcome_of(value) for value in values]


@dataclass(frozen=True, slots=True)
class BlockAsync:
    """`Block` for evaluators that are coroutine functions."""

    evaluate_block: Any

    async def __call__(self, cells: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        values = await self.evaluate_block(cells)
        return Block(lambda cells: values)(cells)


def outcome_of(value: Any) -> Outcome:
    """Read what an evaluator returned: a number or an outcome; anything else is a failure that says so."""
    if isinstance(value, Failed):
        return value
    found = value if isinstance(value, Ok) else Ok(value)
    score = found.score
    if not isinstance(score, bool | int | float) and not hasattr(score, "__float__"):
        return Failed("bad-score", f"the evaluator returned {_brief(score)}: return a finite number or Ok(score, ...)")
    try:
        number = float(score)
    except (TypeError, ValueError) as error:
        return Failed("bad-score", f"the evaluator returned {_brief(score)}, which is not one number: {error}")
    if not math.isfinite(number):
        return Failed("bad-score", f"the evaluator returned the score {number}: return a finite number, or raise")
    return replace(found, score=number) if number is not score else found


def failure_of(error: BaseException) -> Failed:
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    import traceback  # only where something failed

    kind = error.kind if isinstance(error, CallFailed) else "error"
    return Failed(kind, redact(message), redact("".join(traceback.format_exception(error))))


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
