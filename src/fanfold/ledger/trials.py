"""The trials of a run: pages of them, the best, the history of the search, and who came from whom."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from fanfold.errors import LedgerError
from fanfold.ledger import queries
from fanfold.ledger.page_records import History, TrialOrigin, TrialPage
from fanfold.ledger.reading import RunRows, number_of, text_of
from fanfold.ledger.records import TrialRow
from fanfold.types import Outcome, Result

Order: TypeAlias = Literal["number", "told", "best"]
Which: TypeAlias = Literal["all", "told", "open", "complete", "dropped", "failed"]


class TrialReads(RunRows):
    """What `RunView` reads of trials."""

    def numbers(
        self, *, order: Order = "number", which: Which = "all", first: int = 0, count: int | None = None
    ) -> array[int]:
        """The numbers of `count` trials, starting with the `first`: in order of asking, of telling, or best first."""
        clauses = f"{queries.WHICH[which]} ORDER BY {queries.ORDERS[order]} LIMIT ? OFFSET ?"
        limit = -1 if count is None else count
        return array(
            "q", (number for (number,) in self.ledger.read(f"{queries.NUMBERS} {clauses}", (self.id, limit, first)))
        )

    def trials(
        self,
        *,
        order: Order = "number",
        which: Which = "all",
        first: int = 0,
        count: int | None = None,
        blobs: bool = True,
    ) -> Iterator[TrialRow]:
        """A page of trials, or all. Without `blobs`, candidates keep their references to large parts."""
        return self._trials(self.numbers(order=order, which=which, first=first, count=count), blobs)

    def trials_after(
        self,
        after: Sequence[float] | None = None,
        *,
        order: Order = "number",
        which: Which = "all",
        count: int = 200,
        contains: str = "",
    ) -> TrialPage:
        """The next `count` trials after a key, which `TrialPage.next` gives; those whose candidate contains a text."""
        key = queries.KEYS[order]
        clauses, parameters = [queries.WHICH[which]], [self.id]  # type: tuple[list[str], list[Any]]
        if after is not None:
            clauses.append(f"{key} > (?, ?, ?)")
            parameters += after
        if contains:
            clauses.append("instr(lower(candidate), lower(?))")
            parameters.append(contains)
        sql = f"SELECT number, {key[1:-1]} FROM trial t WHERE run = ? AND {' AND '.join(clauses)} ORDER BY {key[1:-1]}"
        rows = list(self.ledger.read(f"{sql} LIMIT ?", (*parameters, count)))
        page = tuple(self._trials([row[0] for row in rows], blobs=False))
        return TrialPage(page, rows[-1][1:] if len(rows) == count else None)

    def trial(self, number: int) -> TrialRow:
        for row in self._trials([number], blobs=True):
            return row
        (name,) = self.ledger.one("SELECT name FROM run WHERE id = ?", (self.id,))
        raise LedgerError(f"run {name!r} of {self.ledger.path} has no trial {number}")

    def some_trials(self, numbers: Iterable[int]) -> list[TrialRow]:
        """The trials of these numbers, in their order; candidates keep their references to large parts."""
        return list(self._trials(list(numbers), blobs=False))

    def best(self) -> TrialRow | None:
        """The best complete trial; the first of equals."""
        return next(self.trials(order="best", which="complete", count=1), None)

    def lineage(self, number: int) -> list[TrialRow]:
        """The ancestors of a trial, as far as its strategy names parents, and the trial itself; oldest first."""
        rows: dict[int, TrialRow] = {}
        waiting = {number}
        while waiting:
            rows |= {row.number: row for row in self._trials(sorted(waiting), blobs=False)}
            waiting = {parent for at in waiting if at in rows for parent in _parents(rows[at].origin)} - rows.keys()
        return [rows[at] for at in sorted(rows)]

    def origins(self) -> list[TrialOrigin]:
        """Where every trial came from, in the order of asking."""
        sql = "SELECT number, origin, told, score, CAST(dropped AS BLOB) FROM trial WHERE run = ? ORDER BY number"
        rows = list(self.ledger.read(sql, (self.id,)))
        return [
            TrialOrigin(number, *_made(self.ledger.origin(origin)), order, number_of(score), text_of(dropped))
            for number, origin, order, score, dropped in rows
        ]

    def children(self, number: int) -> list[int]:
        """The trials that name this one as a parent."""
        sql = "SELECT number, origin FROM trial WHERE run = ? AND origin GLOB ? ORDER BY number"
        named = list(self.ledger.read(sql, (self.id, f"*[^0-9]{number}[^0-9]*")))  # or have that number elsewhere
        return [child for child, origin in named if number in _parents(self.ledger.origin(origin))]

    def results(self) -> Iterator[Result[Any]]:
        """The told trials in the order of telling, with all outcomes, as a strategy is told them."""
        return self.ledger.results(self.id)

    def outcomes(self, trial: int) -> dict[str, Outcome]:
        """The outcomes of a trial by the id of the case."""
        cases = self._case_ids()
        return {cases[position]: outcome for position, outcome in self.ledger.outcomes(self.id, trial).items()}

    def scores(self) -> Iterator[tuple[int, float, bool]]:
        """Place in the order of telling, score, and whether it is complete, for every told trial with a score."""
        sql = (
            "SELECT told, score, dropped IS NULL FROM trial WHERE run = ? AND told IS NOT NULL "
            "AND typeof(score) = 'real' ORDER BY told"
        )
        for order, score, complete in self.ledger.read(sql, (self.id,)):
            yield order, score, bool(complete)

    def spark(self, most: int = 40) -> list[float]:
        """The best score so far, at up to `most` evenly spaced moments."""
        best = list[float]()
        for _, score, complete in self.scores():
            if complete:
                best.append(max(score, best[-1]) if best else score)
        return [best[at] for at in _even(len(best), most)]

    def history(self, most: int = 2000) -> History:
        """The told trials in their order, thinned evenly to about `most`; every new best is kept."""
        sql = (
            "SELECT told, number, score, dropped IS NULL, evaluations, cost FROM trial "
            "WHERE run = ? AND told IS NOT NULL ORDER BY told"
        )
        history, best, evaluations, cost = History(), None, 0, 0.0  # type: History, float | None, int, float
        rows = list(self.ledger.read(sql, (self.id,)))
        kept = set(_even(len(rows), most))
        for place, (order, number, given, complete, count, paid) in enumerate(rows):
            score = number_of(given)
            evaluations, cost = evaluations + (count or 0), cost + (number_of(paid) or 0.0)
            better = complete and score is not None and (best is None or score > best)
            best = score if better else best
            if better or place in kept:
                history.add(order, number, score, best, bool(complete), evaluations, cost)
        history.seconds.extend(self._ends(history.trial))
        return history

    def _ends(self, numbers: Sequence[int]) -> Iterator[float]:
        """Seconds from the beginning of the run until these trials, in their order, had been evaluated."""
        (latest,) = self.ledger.one("SELECT created FROM run WHERE id = ?", (self.id,))
        created, ends = latest, dict[int, Any]()
        for first in range(0, len(numbers), 500):
            page = str(list(numbers[first : first + 500]))
            ends.update(self.ledger.read(queries.ENDS, (self.id, page)))
        for number in numbers:
            latest = max(latest, number_of(ends.get(number)) or 0.0)
            yield latest - created


def _even(count: int, most: int) -> list[int]:
    """At most about `most` places of `count`, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)}) if most > 1 else [count - 1]


def _parents(origin: Any) -> list[int]:
    parents = origin.get("parents") if isinstance(origin, dict) else None
    return [parent for parent in parents if type(parent) is int] if isinstance(parents, list) else []


def _made(origin: Any) -> tuple[tuple[int, ...], str, int | None]:
    by, generation = (origin.get("by"), origin.get("generation")) if isinstance(origin, dict) else (None, None)
    number = generation if type(generation) is int else None
    return tuple(_parents(origin)), by if isinstance(by, str) else "", number
