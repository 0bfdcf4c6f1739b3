"""What a search leaves to the one that continues it: checkpoints, and the record of what was asked and told."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fanfold.encoding import decode, encode
from fanfold.schedule import Schedule
from fanfold.snapshots import Checkpoint, Unsaved, same_type, saves, unsaved
from fanfold.stop import Both, Either, Plateau, Rule
from fanfold.strategy import Strategy, revived
from fanfold.tally import Tally
from fanfold.types import Outcome, Trial

#: How many tells lie between two checkpoints of a strategy whose replay is expensive.
SAVE_EVERY = 50


@dataclass(slots=True)
class Record:
    """What an earlier part of a run asked and told beyond its checkpoint.

    `script` is the order in which it told its trials; while it lasts it decides what is told next, so a barrier-free
    run is rebuilt exactly.  `asked_after` has, for each trial from `first` on, how many were told before it was asked:
    limits may have delayed an ask, and what was known then decides what was asked.
    """

    first: int = 0
    script: deque[int] = field(default_factory=deque)
    asked_after: Sequence[int] = ()

    def left(self, asked: int) -> int:
        """How many trials are recorded beyond so many."""
        return self.first + len(self.asked_after) - asked

    def room(self, asked: int, told: int, room: int) -> int:
        """How many of the next `room` trials were asked before more than `told` were told."""
        place = asked - self.first
        ahead = enumerate(self.asked_after[place : place + room])
        return next((count for count, after in ahead if after > told), room)


class Saver:
    """When a search is saved: `told` is what its last checkpoint has, None if it cannot be saved.

    `waits` says whether the strategy has given all that it has until something is told.
    """

    def __init__(self, strategy: Strategy[Any], told: int) -> None:
        self.told: int | None = told
        self.waits = False
        self._often = saves(strategy) and not getattr(strategy, "replays_quickly", False)

    def due(self, told: int) -> bool:
        """Whether a checkpoint is due by the number of tells; the dispatcher adds some by time."""
        return told % SAVE_EVERY == 0 and self._often

    def new(self, told: int, least: int) -> bool:
        return self.told is not None and told >= self.told + least


class OpenRow(Protocol):
    """A trial that has been asked and not told, with what has arrived of it."""

    trial: Trial[Any]
    text: str
    outcomes: dict[str, Outcome]


def captured(
    strategy: Strategy[Any], schedule: Schedule, stop: Rule, tally: Tally, rows: Mapping[int, OpenRow], waits: bool
) -> Checkpoint:
    """The search as data; raises Unsaved where a part of it cannot be."""
    if (reason := unsaved(strategy, schedule)) is not None:
        raise Unsaved(reason)
    for row in rows.values():
        _check_returns(strategy, row.trial.candidate, row.text)
    if tally.best is not None:
        with contextlib.suppress(_Unread):  # its blobs do come back
            _check_returns(strategy, tally.best.candidate, encode(tally.best.candidate))
    return Checkpoint(
        tally.told,
        tally.asked,
        min(rows, default=tally.asked),
        strategy.save() if saves(strategy) else b"",
        schedule.save() if saves(schedule) else b"",
        tally.save([outcome for row in rows.values() for outcome in row.outcomes.values()]),
        {repr(part): part.counted for part in _leaves(stop) if type(part) is Plateau},
        waits,
    )


def _check_returns(strategy: Strategy[Any], candidate: Any, text: str) -> None:
    """Raise Unsaved for a candidate that would come back from its JSON as something else."""
    if not same_type(revived(strategy, decode(text, _unread)), candidate):
        raise Unsaved(f"candidates such as {type(candidate).__name__} {text[:60]} do not come back from JSON")


class _Unread(Unsaved):
    """A blob would have to be read."""


def _unread(digest: str) -> bytes:
    raise _Unread(f"the blob {digest} of an open trial would have to be read")


def set_counts(rule: Rule, counts: Mapping[str, Any]) -> bool:
    """Take over what the stopping rules have counted; False where one that counts is not among them."""
    for part in _leaves(rule):
        if type(part) is Plateau and repr(part) in counts:
            reference, since = counts[repr(part)]
            part.counted = reference, since
        elif part.remembers or not (type(part).__module__ == Rule.__module__ or "remembers" in vars(type(part))):
            return False
    return True


def _leaves(rule: Rule) -> Iterator[Rule]:
    if isinstance(rule, Either | Both):
        for part in rule.rules:
            yield from _leaves(part)
    else:
        yield rule
