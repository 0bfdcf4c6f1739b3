"""Writes one run to the ledger, and gives back on resume what it wrote."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fanfold.encoding import MARK, Encoded, Stored, blobs_in, encode, references, words
from fanfold.errors import LedgerError, ReplayDivergence
from fanfold.ledger.commits import Commits, Insert, Then
from fanfold.ledger.proof import Proof
from fanfold.ledger.pruning import Pruner
from fanfold.ledger.store import UNREADABLE_ROW, Ledger
from fanfold.ledger.verify import verify
from fanfold.redaction import redact
from fanfold.snapshots import Checkpoint, Unsaved
from fanfold.types import Failed, Ok, Outcome, Result, Trial

#: From so many trials on, the counts of a run that has ended are kept.
LARGE = 10_000
#: How many recorded trials are read at once.
AHEAD = 64
#: The place of a blob that the run holds already.
_HERE = Stored("", 0)
_LAST_TOLD = "SELECT coalesce(max(told) + 1, 0) FROM trial WHERE run = ? AND told >= 0"


class RunJournal:
    """Writes one run, and answers from what the run already holds.

    What is recorded is checked instead of written again: asking something else than recorded raises ReplayDivergence.
    `basis` says what the search is made by; a checkpoint made by anything else is not used.
    """

    def __init__(self, ledger: Ledger, run: int, commits: Commits, basis: str = "") -> None:
        self.ledger = ledger
        self.run = run
        self.commits = commits
        self.basis = basis
        #: Says which blobs can go, where the study lets some go.
        self.pruner: Pruner | None = None
        self.reused = self._count(
            "SELECT count(*) FROM evaluation INDEXED BY evaluation_reused WHERE run = ? AND reused = 1"
        )
        #: Trials with failures that were evaluated again after the search had them: replay needs what it was told.
        self.superseded = {trial for (trial,) in ledger.read("SELECT trial FROM superseded WHERE run = ?", (run,))}
        self._proof = Proof(self)
        #: The last checkpoint, if the record bears it out; otherwise why there is none.
        self.checkpoint: Checkpoint | None = None
        self.unproven: str | None = None
        try:
            self.checkpoint = self._proven()
        except Unsaved as error:
            self.unproven, self._proof = str(error), Proof(self)
        # What a checkpoint proves was checked before it was made.
        verify(ledger, run, 0 if self.checkpoint is None else self.checkpoint.settled)
        self.recorded = self._count("SELECT coalesce(max(number) + 1, 0) FROM trial WHERE run = ?")
        self.recorded_told = self._count(_LAST_TOLD)
        #: Candidate, score and reason for dropping of recorded trials that a replay has not told yet.
        self._ahead: dict[int, tuple[Any, ...]] = {}
        self.elapsed = float(ledger.one("SELECT elapsed FROM run WHERE id = ?", (run,))[0])

    # -- writing -----------------------------------------------------------------------------------------------------

    def asked(self, trial: Trial[Any], text: str, asked_after: int) -> None:
        if self.pruner is not None:
            self.pruner.asked(trial.number, text)
        if trial.number < self.recorded:
            self._check_asked(trial.number, text)
        else:
            what = f"what the strategy's origin() gave for trial {trial.number}"
            origin = None if trial.origin is None else encode(trial.origin, what)
            if MARK in text:
                what = f"the candidate of trial {trial.number}"
                blobs = blobs_in(trial.candidate, text, what, self._place)
                self._keep({digest: blob for digest, blob in blobs.items() if blob is not _HERE})
            self.commits.put(Insert.ASKED, (self.run, trial.number, text, asked_after, origin))

    def told(self, order: int, result: Result[Any]) -> None:
        if self.pruner is not None:
            self.pruner.told(order, result)
        if order >= self.recorded_told or not self._checked_told(result):
            row = (order, result.score, result.dropped, len(result.outcomes), result.cost, self.run, result.number)
            self.commits.put(Insert.TOLD, row)
            if result.number in self.superseded:
                self.commits.put(Insert.TOLD_SCORE, (result.score, self.run, result.number))

    def evaluated(
        self,
        trial: int,
        position: int,
        key: bytes,
        outcome: Outcome,
        times: tuple[float, float, int],
        reused: bool,
        then: Then,
    ) -> None:
        """Write one outcome, whose data is None or `Encoded`; `then` is called when it is durable.

        `times` are the start (seconds since the epoch), the duration, and the number of tries.
        """
        failure = score = data = message = detail = None
        if isinstance(outcome, Failed):
            failure, message, detail = outcome.kind, outcome.message, outcome.detail
        else:
            score = outcome.score
            if outcome.data is not None:
                data = outcome.data.text
                if self.pruner is not None:
                    self.pruner.evaluated(trial, data)
                if self.ledger.blobs is not None and not reused:
                    self.ledger.blobs.came(outcome.data.away, outcome.data.blobs.items())
                self._keep(outcome.data.blobs)
        head = (self.run, trial, position, key, failure, score, data, message, detail)
        self.commits.put(Insert.EVALUATION, (*head, outcome.cost, *times, int(reused)), then)

    def called(self, trial: int, position: int, keys: bytes, cached: bytes) -> None:
        """Write which model calls an evaluation made, in one commit with its outcome."""
        self.commits.put(Insert.CALLED, (self.run, trial, position, keys, cached))

    def current(self, trial: int) -> Mapping[int, Outcome]:
        """The present outcomes of a trial, if some differ from what the search was told; otherwise nothing."""
        return self.ledger.outcomes(self.run, trial) if trial in self.superseded else {}

    def amended(self, result: Result[Any]) -> None:
        """Write the result of a told trial whose failed evaluations were made again."""
        sql = "SELECT score, cost FROM trial WHERE run = ? AND number = ?"
        if self.ledger.one(sql, (self.run, result.number)) != (result.score, result.cost):
            self.commits.put(Insert.AMENDED, (result.score, result.cost, self.run, result.number))

    def keep(self, checkpoint: Checkpoint, elapsed: float) -> None:
        """Write a checkpoint as soon as everything that it builds on is durable."""

        def durable(error: BaseException | None) -> None:
            if error is None:
                checkpoint.record = self._proof.digest(checkpoint.settled, checkpoint.asked, checkpoint.told)
                checkpoint.basis, checkpoint.amended = self.basis, len(self.superseded)
                row = (self.run, checkpoint.told, checkpoint.asked, checkpoint.sealed())
                self.commits.put(Insert.SNAPSHOT, row)

        if not self.ledger.temporary:  # which no resume ever sees
            self.commits.put(Insert.RUN, (time.time(), elapsed, "running", None, self.run), durable)

    def status(self, status: str, reason: str | None, elapsed: float) -> None:
        """Write how the run stands.  What a large one holds when it ends is counted once, for those who list runs."""
        if status != "running" and self._count(_LAST_TOLD) >= LARGE:
            self.commits.put(Insert.COUNTED, (self.run,))
        self.commits.put(
            Insert.RUN, (time.time(), elapsed, status, None if reason is None else words(reason), self.run)
        )

    def note(self, text: str) -> None:
        """Keep one sentence for the user."""
        self.commits.put(Insert.NOTE, (self.run, time.time(), words(redact(text))))

    def prune(self) -> None:
        """Let go of the blobs that the run no longer needs.

        What made them needless was put before, so it is durable no later than this.
        """
        for digest in () if self.pruner is None else self.pruner.unneeded(self.recorded, self.recorded_told):
            self.commits.put(Insert.PRUNED, (digest, self.run))
            self.commits.put(Insert.UNSTORED, (digest, self.run))
            self.commits.put(Insert.LET_GO, (digest, self.run))

    def _keep(self, blobs: Mapping[str, bytes | Stored]) -> None:
        for row in blobs.items():
            self.commits.put(Insert.HELD, (row[0], self.run))
            self.commits.put(Insert.BLOB, row)
        if self.pruner is not None:
            self.pruner.gone -= blobs.keys()

    def _place(self, digest: str) -> Stored | None:
        """Where this run has a blob, whose bytes need not be written again then."""
        if (place := self._stored(digest)) is not None:
            return place
        gone = self.pruner is not None and digest in self.pruner.gone
        return _HERE if not gone and self.ledger.blob.held(digest, self.run) else None

    def _stored(self, digest: str) -> Stored | None:
        """Where this run has a blob in its store; not another run's, which may prune it at any time."""
        return None if self.ledger.blobs is None else self.ledger.blob.stored(digest, self.run)

    # -- what the run already holds ----------------------------------------------------------------------------------

    def lookup(self, key: bytes, everywhere: bool) -> Ok | None:
        """A finished evaluation of this key in this run, or in any: with its blobs, and None where one was pruned."""
        outcome = self.ledger.lookup(key, None if everywhere else self.run)
        if outcome is None or outcome.data is None or not (digests := references(outcome.data.text)):
            return outcome
        if self.pruner is not None and digests & self.pruner.gone:
            return None
        try:
            blobs = {digest: self._stored(digest) or self.ledger.blob(digest) for digest in digests}
        except LedgerError:
            return None
        return replace(outcome, data=Encoded(outcome.data.text, blobs))

    def recall(self, trial: int) -> Mapping[int, Outcome]:
        """The outcomes this run has for a trial, by position of the case, as the search was given them.

        What cannot be read counts as not evaluated: evaluated again, it has the row replaced.
        """
        if trial >= self.recorded:
            return {}
        outcomes = self.ledger.outcomes(self.run, trial)
        if self.pruner is not None:
            self.pruner.recalled(trial, outcomes.values())
        if trial in self.superseded:
            sql = "SELECT position, failure, message, detail, cost FROM superseded WHERE run = ? AND trial = ?"
            outcomes |= {
                position: Failed(failure, message, detail or "", cost)
                for position, failure, message, detail, cost in self.ledger.read(sql, (self.run, trial))
            }
        if UNREADABLE_ROW not in outcomes.values():
            return outcomes
        return {position: outcome for position, outcome in outcomes.items() if outcome is not UNREADABLE_ROW}

    def script(self, after: int = 0, before: int = 2**62) -> array[int]:
        """The numbers of the trials told so far, in order, from the `after`-th on."""
        sql = "SELECT number FROM trial WHERE run = ? AND told >= ? AND told < ? ORDER BY told"
        return array("q", (number for (number,) in self.ledger.read(sql, (self.run, after, before))))

    def asked_after(self, first: int = 0) -> array[int]:
        """How many trials had been told before each of those asked so far, from the `first` on."""
        sql = "SELECT asked_after FROM trial WHERE run = ? AND number >= ? ORDER BY number"
        return array("q", (told for (told,) in self.ledger.read(sql, (self.run, first))))

    def saved_alone(self) -> tuple[int, int, bytes] | None:
        """The state of a strategy that version 0.1.0 saved, after so many tells and asks."""
        told, asked, state = self._snapshot() or (0, 0, b"")
        return (told, asked, state) if state and self.checkpoint is None and self.unproven is None else None

    def _snapshot(self) -> tuple[int, int, bytes] | None:
        sql = "SELECT told, asked, state FROM snapshot WHERE run = ?"
        rows = self.ledger.read(sql, (self.run,))
        return next(((told, asked, state) for told, asked, state in rows if isinstance(state, bytes)), None)

    def _proven(self) -> Checkpoint | None:
        """The last checkpoint, once it is known to be of this record and of this search; raises Unsaved if not."""
        snapshot = self._snapshot()
        checkpoint = None if snapshot is None else Checkpoint.opened(snapshot[2])
        if checkpoint is None or snapshot is None:
            return None
        if checkpoint.basis != self.basis:
            raise Unsaved("its strategy, its schedule or Fanfold has changed since its checkpoint")
        told, asked, settled = checkpoint.told, checkpoint.asked, checkpoint.settled
        sound = (told, asked) == snapshot[:2] and 0 <= settled <= asked
        if not sound or self._proof.digest(settled, asked, told) != checkpoint.record:
            raise Unsaved("its record is not the one that its checkpoint was made from")
        return checkpoint

    def told_row(self, number: int) -> tuple[str, float | None, str | None, str | None]:
        """Candidate, told score, reason for dropping and origin of a told trial."""
        sql = "SELECT candidate, score, dropped, origin FROM trial WHERE run = ? AND number = ? AND told >= 0"
        text, score, dropped, origin = self.ledger.one(sql, (self.run, number))
        return text, self.told_score(number, score), dropped, origin

    def open_rows(self, told: int, asked: int) -> list[tuple[int, str, Any]]:
        """Number, candidate and origin of the trials open after `asked` asks and `told` tells."""
        sql = (
            "SELECT number, candidate, origin FROM trial "
            "WHERE run = ? AND number < ? AND (told IS NULL OR told >= ?) ORDER BY number"
        )
        rows = self.ledger.read(sql, (self.run, asked, told))
        return [(number, text, self.ledger.origin(origin)) for number, text, origin in rows]

    def failed_rows(self) -> list[tuple[Any, ...]]:
        """Trial, position, failure, cost, candidate and origin of failed evaluations; dropped trials are left out."""
        sql = (
            "SELECT e.trial, e.position, e.failure, e.cost, t.candidate, t.origin FROM evaluation e "
            "JOIN trial t ON t.run = e.run AND t.number = e.trial "
            "WHERE e.run = ? AND e.failure IS NOT NULL AND t.dropped IS NULL ORDER BY e.trial, e.position"
        )
        return list(self.ledger.read(sql, (self.run,)))

    def candidate(self, trial: int) -> str:
        """The recorded text of a candidate."""
        text: str = self.ledger.one("SELECT candidate FROM trial WHERE run = ? AND number = ?", (self.run, trial))[0]
        return text

    def _check_asked(self, number: int, text: str) -> None:
        if number not in self._ahead:  # a replay asks in the order of the numbers
            sql = "SELECT number, candidate, score, dropped FROM trial WHERE run = ? AND number >= ? AND number < ?"
            rows = self.ledger.read(sql, (self.run, number, number + AHEAD))
            self._ahead |= {row[0]: row[1:] for row in list(rows)}
        recorded = self._ahead[number][0]
        if recorded != text:
            raise ReplayDivergence(
                f"trial {number} of this run was {_short(recorded)}, but the strategy now asks {_short(text)}: its "
                "code, its settings or a package it uses has changed, or chance comes from elsewhere than self.rng. "
                "Undo that, or start a new run under another name: with reuse='ledger' (--reuse ledger) it takes over "
                "finished evaluations of the same candidates"
            )

    def _checked_told(self, result: Result[Any]) -> bool:
        """Whether a trial is recorded as told; raises where it was told something else."""
        if (row := self._ahead.pop(result.number, None)) is None:  # it was open at a checkpoint
            sql = "SELECT NULL, score, dropped FROM trial WHERE run = ? AND number = ?"
            row = self.ledger.one(sql, (self.run, result.number))
        _, score, dropped = row
        score = self.told_score(result.number, score)
        if (score, dropped) == (result.score, result.dropped):
            return True
        if not isinstance(score, float | None) or not isinstance(dropped, str | None):
            return False  # another program's work: written again
        raise ReplayDivergence(
            f"trial {result.number} of this run scored {score} ({dropped or 'complete'}), but now {result.score} "
            f"({result.dropped or 'complete'}) from the same outcomes: the schedule or the aggregate has changed. "
            "Undo the change, or start a new run under another name"
        )

    def told_score(self, trial: int, score: float | None) -> float | None:
        """What the search was told, where a trial's score has changed since."""
        if trial not in self.superseded:
            return score
        sql = "SELECT told_score FROM superseded WHERE run = ? AND trial = ? LIMIT 1"
        told: float | None = self.ledger.one(sql, (self.run, trial))[0]
        return told

    def _count(self, sql: str) -> int:
        return int(self.ledger.one(sql, (self.run,))[0])


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
