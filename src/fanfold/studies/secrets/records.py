"""What a run's ledger says about its games, read row by row: compact records for the statistics, words left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fanfold.ledger import RunView
from fanfold.studies.secrets.evaluator import met
from fanfold.studies.secrets.game import LOST


class Meeting(NamedTuple):
    """One conversation of a clean game: who opened (`a`), whom it met, and which of them revealed."""

    trial: int
    scenario: int
    twin: int
    #: Its place in the game: in a twin of the case the same two meet there, and the other one opens.
    place: int
    a: int
    b: int
    gave_a: int
    gave_b: int


class GameResult(NamedTuple):
    """The points of a clean game, by seat."""

    trial: int
    scenario: int
    twin: int
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Pairing:
    """A row of the study: who sits where, and the game."""

    trial: int
    labels: tuple[str, ...]
    game: Mapping[str, Any]

    @property
    def label(self) -> str:
        return " vs ".join(self.labels)

    @property
    def talks(self) -> int:
        """Conversations in one game."""
        return int(self.game["rounds"]) * (len(self.labels) // 2)


@dataclass(slots=True)
class Records:
    """All games of a run.  Those that failed, or in which a reply was lost or cut off, are only counted, by kind."""

    pairings: tuple[Pairing, ...]
    planned: int
    meetings: list[Meeting] = field(default_factory=list)
    results: list[GameResult] = field(default_factory=list)
    #: How many games of a trial are apart, by (trial, kind): `failed: timeout`, `refusal`, `length`, ...
    apart: Counter[tuple[int, str]] = field(default_factory=Counter)
    messages: int = 0
    #: Games in which a message was cut off, wherever they are counted.
    cut_off: int = 0
    #: Leaks by (label of who leaked, rule), in clean games and others, and where the first one of a rule is.
    rules: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: For every secret the judge was asked about: what the rules say, and what the judge says.
    by_rules: list[bool] = field(default_factory=list)
    by_judge: list[bool | None] = field(default_factory=list)

    @property
    def games(self) -> int:
        """The most games that a pairing has, whatever became of them."""
        return max((self.played(each.trial) for each in self.pairings), default=0) or 1

    def played(self, trial: int) -> int:
        return sum(each.trial == trial for each in self.results) + self.apart_of(trial)

    @property
    def clean(self) -> int:
        return len(self.results)

    @property
    def failed(self) -> int:
        return sum(count for (_, kind), count in self.apart.items() if kind.startswith("failed"))

    @property
    def status(self) -> str:
        """How the job ended: `failed` where every game that was tried failed, `completed`, or `stopped` before."""
        tried = self.clean + sum(self.apart.values())
        if tried and self.failed == tried:
            return "failed"
        return "completed" if tried == self.planned else "stopped"

    def apart_of(self, trial: int) -> int:
        return sum(count for (which, _), count in self.apart.items() if which == trial)


def read(view: RunView, planned: int | None = None, cut_off: str = "apart") -> Records:
    """The records of a run; `planned` is how many pairings it was to have, by default those it came to.

    Games in which a message was cut off are `apart`, or `count` like any other.
    """
    pairings = tuple(pairing_of(trial.number, trial.candidate) for trial in view.trials())
    places = [(case.data["scenario"], case.data["opener"]) for case in view.cases()]
    kinds = LOST if cut_off == "count" else (*LOST, "length")
    records = Records(pairings, (planned or len(pairings)) * len(places))
    for row in view.evaluations(blobs=False):
        if row.failure is not None:
            records.apart[row.trial, f"failed: {row.failure}"] += 1
        else:
            _take(records, (row.trial, row.position), places[row.position], row.data, kinds)
    return records


def pairing_of(trial: int, game: Mapping[str, Any]) -> Pairing:
    """The row of the study that a recorded game is."""
    labels = tuple(
        agent["model"] if agent["style"] == "regular" else f"{agent['model']} ({agent['style']})"
        for agent in game["agents"]
    )
    return Pairing(trial, labels, game)


def _take(
    records: Records, cell: tuple[int, int], case: tuple[int, int], data: Mapping[str, Any], kinds: tuple[str, ...]
) -> None:
    trial, (scenario, twin) = cell[0], case
    labels = records.pairings[trial].labels  # trials are numbered in the order of asking, from 0
    records.messages += data["messages"]
    leaks, odd = data.get("leaks", ()), data.get("odd", ())
    for _, seat, rule in leaks:
        records.rules[labels[seat], rule] += 1
        records.first.setdefault(rule, cell)
    leaked, talks = {(number, seat) for number, seat, _ in leaks}, met(data)
    for number, verdicts in enumerate(data.get("judged", ())):
        for at, verdict in enumerate(verdicts):
            # Not what the game counts, which may have listened to the judge.
            records.by_rules.append((number, talks[number][at]) in leaked)
            records.by_judge.append(None if verdict is None else bool(verdict))
    records.cut_off += "length" in odd
    kind = next((kind for kind in kinds if kind in odd), None)
    if kind is not None:
        records.apart[trial, kind] += 1
        return
    records.results.append(GameResult(trial, scenario, twin, tuple(map(float, data["scores"]))))
    for place, (a, b, gave_a, gave_b) in enumerate(talks):
        records.meetings.append(Meeting(trial, scenario, twin, place, a, b, gave_a, gave_b))
