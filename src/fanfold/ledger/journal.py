"""The writing side of one run: what is asked, evaluated and told goes to the ledger, and comes back on resume."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from fanfold.encoding import BLOB_KEY, blobs_in, encode
from fanfold.errors import ReplayDivergence
from fanfold.ledger.commits import Commits, Insert, Then
from fanfold.ledger.store import Ledger
from fanfold.types import Failed, Outcome, Result, Trial


class RunJournal:
    """Writes one run, and answers from what the run already holds.

    What is recorded is checked instead of written again: asking something else than recorded raises ReplayDivergence.
    """

    def __init__(self, ledger: Ledger, run: int, commits: Commits) -> None:
        self.ledger = ledger
        self.run = run
        self.commits = commits
        self.recorded = self._count("SELECT count(*) FROM trial WHERE run = ?")
        self.recorded_told = self._count("SELECT count(*) FROM trial WHERE run = ? AND told IS NOT NULL")
        self.reused = self._count("SELECT count(*) FROM evaluation WHERE run = ? AND reused = 1")
        self.elapsed = float(ledger.one("SELECT elapsed FROM run WHERE id = ?", (run,))[0])

    # -- writing -----------------------------------------------------------------------------------------------------

    def asked(self, trial: Trial[Any], text: str, asked_after: int) -> None:
        if trial.number < self.recorded:
            self._check_asked(trial.number, text)
        else:
            self._keep_blobs(trial.candidate, text)
            origin = None if trial.origin is None else encode(trial.origin, f"the origin of trial {trial.number}")
            self.commits.put(Insert.ASKED, (self.run, trial.number, text, asked_after, origin))

    def told(self, order: int, result: Result[Any]) -> None:
        if order < self.recorded_told:
            self._check_told(order, result)
        else:
            row = (order, result.score, result.dropped, len(result.outcomes), result.cost, self.run, result.number)
            self.commits.put(Insert.TOLD, row)

    def evaluated(
        self,
        trial: int,
        position: int,
        key: bytes,
        outcome: Outcome,
        times: tuple[float, float, int],
        reused: bool,
        then: Then,
    ) -> str | None:
        """Write one outcome; `then` is called when it is durable.  Gives the JSON of its data.

        `times` are the start (seconds since the epoch), the duration, and the number of tries.
        """
        failure = score = data = message = detail = None
        if isinstance(outcome, Failed):
            failure, message, detail = outcome.kind, outcome.message, outcome.detail
        else:
            score = outcome.score
            if outcome.data is not None:
                data = encode(outcome.data, f"the data returned for trial {trial}")
                self._keep_blobs(outcome.data, data)
        head = (self.run, trial, position, key, failure, score, data, message, detail)
        self.commits.put(Insert.EVALUATION, (*head, outcome.cost, *times, int(reused)), then)
        return data

    def snapshot(self, told: int, asked: int, state: bytes) -> None:
        self.commits.put(Insert.SNAPSHOT, (self.run, told, asked, state))

    def status(self, status: str, reason: str | None, elapsed: float) -> None:
        self.commits.put(Insert.RUN, (time.time(), elapsed, status, reason, self.run))

    def _keep_blobs(self, value: Any, text: str) -> None:
        if f'"{BLOB_KEY}"' in text:
            for blob in blobs_in(value):
                self.commits.put(Insert.BLOB, (blob.digest, blob.read()))

    # -- what the run already holds ----------------------------------------------------------------------------------

    def recall(self, trial: int) -> Mapping[int, Outcome]:
        """The outcomes this run has for a trial, by position of the case."""
        return self.ledger.outcomes(self.run, trial) if trial < self.recorded else {}

    def script(self, after: int = 0) -> array[int]:
        """The numbers of the trials told so far, in order, from the `after`-th on."""
        sql = "SELECT number FROM trial WHERE run = ? AND told >= ? ORDER BY told"
        return array("q", (number for (number,) in self.ledger.read(sql, (self.run, after))))

    def last_snapshot(self) -> tuple[int, int, bytes] | None:
        sql = "SELECT told, asked, state FROM snapshot WHERE run = ?"
        return next(((told, asked, bytes(state)) for told, asked, state in self.ledger.read(sql, (self.run,))), None)

    def told_rows(self, before: int) -> Iterator[tuple[Any, ...]]:
        """Number, candidate, score and dropped of the trials told before the `before`-th, in order."""
        sql = "SELECT number, candidate, score, dropped FROM trial WHERE run = ? AND told < ? ORDER BY told"
        return self.ledger.read(sql, (self.run, before))

    def open_rows(self, told: int, asked: int) -> list[tuple[int, str, Any]]:
        """Number, candidate and origin of the trials that were open when `asked` had been asked and `told` told."""
        sql = (
            "SELECT number, candidate, origin FROM trial "
            "WHERE run = ? AND number < ? AND (told IS NULL OR told >= ?) ORDER BY number"
        )
        rows = self.ledger.read(sql, (self.run, asked, told))
        return [(number, text, self.ledger.origin(origin)) for number, text, origin in rows]

    def _check_asked(self, number: int, text: str) -> None:
        sql = "SELECT candidate FROM trial WHERE run = ? AND number = ?"
        recorded = self.ledger.one(sql, (self.run, number))[0]
        if recorded != text:
            raise ReplayDivergence(
                f"trial {number} of this run was {_short(recorded)}, but the strategy now asks {_short(text)}: its "
                "code, its settings or a package it uses has changed. Undo that, or start a new run under another name"
            )

    def _check_told(self, order: int, result: Result[Any]) -> None:
        sql = "SELECT score, dropped FROM trial WHERE run = ? AND number = ?"
        score, dropped = self.ledger.one(sql, (self.run, result.number))
        if (score, dropped) != (result.score, result.dropped):
            raise ReplayDivergence(
                f"trial {result.number} of this run scored {score} ({dropped or 'complete'}), but now {result.score} "
                f"({result.dropped or 'complete'}) from the same outcomes: the schedule or the fold has changed. "
                "Undo the change, or start a new run under another name"
            )

    def _count(self, sql: str) -> int:
        return int(self.ledger.one(sql, (self.run,))[0])


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
