"""Blobs that a run no longer needs leave the ledger, and nothing else changes."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from fanfold.encoding import encode
from fanfold.errors import LedgerError
from fanfold.events import Event, TrialTold
from fanfold.ledger import Ledger, Pruner
from fanfold.ledger.blobs import BlobReader
from fanfold.running import Run
from fanfold.schedule import Plan, Schedule
from fanfold.schedules import Halving, last_rung
from fanfold.stop import MaxTrials
from fanfold.strategies import Genetic, Sweep
from fanfold.strategies.breeding import Bred, Pick
from fanfold.study import Study
from fanfold.types import Blob, Case, Ok, Result, Trial

SIZE = 20_000


class Heirs:
    """Breeds candidates that start from the weights of a parent; some are siblings of the one before."""

    def __init__(self) -> None:
        self._first: Bred[Any] | None = None
        self._left = 0

    def sample(self, rng: Random) -> Bred[Any]:
        return Bred({"gene": rng.randrange(10**9), "inherited": None})

    def child(self, pick: Pick[Any], rng: Random, rate: float) -> Bred[Any]:
        if self._first is None or not self._left:
            parent = pick()
            assert parent is not None
            self._first, self._left = self._from(parent, rng), 3
            return self._first
        self._left -= 1
        return self._from(self._first.parents[0], rng)

    def _from(self, parent: Result[Any], rng: Random) -> Bred[Any]:
        last = list(parent.outcomes.values())[-1]
        assert isinstance(last, Ok)
        return Bred({"gene": rng.randrange(10**9), "inherited": last.data["weights"]}, (parent,))

    def again(self, bred: Bred[Any], rng: Random, rate: float) -> Bred[Any]:
        return bred

    def learn(self, result: Result[Any], better: bool | None) -> None: ...

    def needs(self) -> list[int]:
        return [] if self._first is None or not self._left else [parent.number for parent in self._first.parents]


class Training:
    """Each rung continues from the state of the one before, the first from what is inherited: all bytes count."""

    continues: ClassVar[bool] = True
    passing: ClassVar[tuple[str, ...]] = ("state",)
    fingerprint = "training-1"

    def __call__(self, candidate: Any, case: Case, previous: Ok | None = None) -> Ok:
        if previous is not None:
            start = previous.data["state"].read() + previous.data["weights"].read()
        else:
            start = b"" if candidate["inherited"] is None else candidate["inherited"].read()
        rng = Random(f"{candidate['gene']} {case.id} {sum(start)}")
        return Ok(rng.random(), {"weights": Blob.of(rng.randbytes(SIZE)), "state": Blob.of(rng.randbytes(SIZE))})


def study(steady: bool = False, keep: int | None = 2, trials: int = 40) -> Study[Any]:
    strategy = Genetic(breeder=Heirs(), population=8, elites=1, steady=steady)
    schedule = Halving(2, asynchronous=True) if steady else Halving(2, cohort=7)
    return Study(
        strategy,
        Training(),
        ["one", "two", "three"],
        schedule,
        MaxTrials(trials),
        aggregate=last_rung,
        keep=keep,
        name="heirs",
    )


def counts(path: Path) -> tuple[int, int]:
    """Blobs that have bytes, and all of them."""
    db = sqlite3.connect(path)
    try:
        (row,) = db.execute("SELECT total(length(data) > 0), count(*) FROM blob").fetchall()
        return int(row[0]), row[1]
    finally:
        db.close()


def outcomes(run: Run[Any]) -> list[Any]:
    return [(result.number, result.score, result.dropped, list(result.outcomes)) for result in run.results()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run[Any], list[Path]]:
    """A run to its end, and its file as a kill after each third tell would have left it."""
    folder = tmp_path_factory.mktemp("whole")
    copies: list[Path] = []

    def watch(event: Event) -> None:
        if isinstance(event, TrialTold) and event.result.number % 3 == 0:
            copies.append(folder / f"{event.result.number}.db")
            with sqlite3.connect(folder / "whole.db") as source, sqlite3.connect(copies[-1]) as target:
                source.backup(target)
            source.close()
            target.close()

    return study().run(ledger=folder / "whole.db", run="r", watch=watch), copies


def test_only_what_is_still_needed_stays_and_the_file_shrinks(whole: Any, tmp_path: Path) -> None:
    run, copies = whole
    everything = study(keep=None).run(ledger=tmp_path / "all.db", run="r")
    assert outcomes(run) == outcomes(everything) and run.trace == everything.trace
    there, blobs = counts(run.ledger.path)
    assert there <= 8 + 2 and blobs == counts(tmp_path / "all.db")[1] == counts(tmp_path / "all.db")[0]
    everything.ledger.close()
    assert run.ledger.path.stat().st_size < 3 * (there + 8) * SIZE < (tmp_path / "all.db").stat().st_size / 3
    assert max(counts(copy)[0] for copy in copies) < 0.6 * blobs  # along the way, not at the end
    assert run.ledger.one("PRAGMA freelist_count") == (0,)


def test_the_best_keep_their_last_weights_and_a_pruned_blob_is_a_clear_error(whole: Any) -> None:
    run, _ = whole
    best = sorted((r for r in run.results() if r.complete), key=lambda r: (-r.score, r.number))[:2]
    for result in best:
        *earlier, last = result.outcomes.values()
        assert len(last.data["weights"].read()) == SIZE
        for blob in (last.data["state"], *(outcome.data["weights"] for outcome in earlier)):
            with pytest.raises(LedgerError, match=f"blob {blob.digest} of .* was pruned"):
                blob.read()
            assert run.ledger.blob_size(blob.digest) is None


@pytest.mark.slow
def test_a_run_killed_at_any_time_ends_as_one_that_was_not(whole: Any) -> None:
    run, copies = whole
    assert len(copies) > 10
    for copy in copies:
        again = study().run(ledger=copy, run="r")
        assert again.trace == run.trace and outcomes(again) == outcomes(run)
        assert counts(copy)[0] <= 10
        again.ledger.close()


@pytest.mark.slow
def test_a_finished_run_can_be_continued(tmp_path: Path) -> None:
    short = study(steady=True, trials=23).run(ledger=tmp_path / "one.db", run="r")
    short.ledger.close()
    longer = study(steady=True, trials=40).run(ledger=tmp_path / "one.db", run="r")
    assert longer.trace == study(steady=True, trials=40).run().trace


@pytest.mark.slow
def test_a_steady_search_prunes_too(tmp_path: Path) -> None:
    run = study(steady=True).run(ledger=tmp_path / "one.db", run="r")
    assert run.trace == study(steady=True, keep=None).run().trace
    assert counts(tmp_path / "one.db")[0] <= 10


@pytest.mark.slow
def test_a_run_does_not_prune_what_another_run_holds(tmp_path: Path) -> None:
    path = tmp_path / "both.db"
    study(steady=True, trials=20).run(ledger=path, run="few").ledger.close()
    study(steady=True, keep=None).run(ledger=path, run="all", reuse="never").ledger.close()
    assert counts(path)[0] == counts(path)[1]  # what was pruned and is put again has its bytes again
    run = study(steady=True).run(ledger=path, run="few", reuse="never")
    assert counts(path)[0] == counts(path)[1]
    assert run.trace == study(steady=True).run().trace


@pytest.mark.slow
def test_a_run_that_reuses_another_evaluates_again_what_was_pruned(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    first = study().run(ledger=path, run="few")
    again = study(keep=None).run(ledger=path, run="all", reuse="ledger")
    assert again.trace == first.trace and again.progress.reused == 0
    assert all(len(result.outcomes["0"].data["state"].read()) == SIZE for result in again.results())


@pytest.mark.slow
def test_blobs_of_an_older_version_stay(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    study(steady=True, trials=20).run(ledger=path, run="r").ledger.close()
    db = sqlite3.connect(path)
    db.execute("DELETE FROM blob_holder")
    db.commit()
    before = set(db.execute("SELECT digest FROM blob WHERE length(data) > 0"))
    for name in ("r", "other"):
        study(steady=True, trials=40).run(ledger=path, run=name, reuse="never").ledger.close()
    assert before <= set(db.execute("SELECT digest FROM blob WHERE length(data) > 0"))
    db.close()


class OneByOne(Schedule):
    """A case after the other, all of them."""

    remembers = False

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        for case in cases:
            yield (case,)
        return None


class Forgetful(Sweep):
    """Needs nothing of what it was told."""

    def needs(self) -> list[int]:
        return []


class Flaky(Training):
    """Fails on the second case until it is mended."""

    fingerprint = "flaky-1"
    broken: ClassVar[bool] = True

    def __call__(self, candidate: Any, case: Case, previous: Ok | None = None) -> Ok:
        if self.broken and case.id == "1" and candidate["gene"] % 2:
            raise OSError("the disk is away")
        return super().__call__(candidate, case, previous)


def test_failed_evaluations_can_be_made_again(tmp_path: Path) -> None:
    flaky = Study(Forgetful(genes(8)), Flaky(), ["one", "two"], OneByOne(), aggregate=last_rung, keep=1)
    flaky.run(ledger=tmp_path / "one.db", run="r").ledger.close()
    Flaky.broken = False
    run = flaky.run(ledger=tmp_path / "one.db", run="r", retry_failed=True)
    assert run.progress.failures == 0
    assert [result.score for result in run.results()] == [result.score for result in flaky.run().results()]


def genes(count: int) -> list[Any]:
    return [{"gene": gene, "inherited": None} for gene in range(count)]


class Twins(Training):
    """Says how often it was called."""

    fingerprint = "twins-1"
    calls: ClassVar[int] = 0

    def __call__(self, candidate: Any, case: Case, previous: Ok | None = None) -> Ok:
        type(self).calls += 1
        return super().__call__(candidate, case, previous)


def test_an_equal_cell_whose_blobs_were_pruned_is_evaluated_again(tmp_path: Path) -> None:
    twice = Study(
        Forgetful([*genes(5), *genes(1)]), Twins(), ["one", "two"], OneByOne(), window=1, aggregate=last_rung, keep=1
    )
    scores = [result.score for result in twice.run(ledger=tmp_path / "one.db", run="r").results()]
    assert scores[0] == scores[-1] and Twins.calls == 12
    # Its case "two" read the state that its case "one" had put again.
    with Ledger(tmp_path / "one.db") as ledger:
        assert list(ledger.read("SELECT count(*) FROM evaluation WHERE reused")) == [(0,)]


class Unread(Training):
    """Reads nothing of what is inherited."""

    fingerprint = "unread-1"

    def __call__(self, candidate: Any, case: Case, previous: Ok | None = None) -> Ok:
        return super().__call__({**candidate, "inherited": None}, case, previous)


def test_weights_that_the_run_holds_are_not_read_and_written_again_for_a_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a generation of networks, that would be most of the time between this one and the last."""
    real, reads = BlobReader.__call__, []

    def read(self: BlobReader, digest: str) -> bytes:
        reads.append(digest)
        return real(self, digest)

    monkeypatch.setattr(BlobReader, "__call__", read)
    strategy = Genetic(breeder=Heirs(), population=8, elites=1)
    Study(strategy, Unread(), ["one"], stop=MaxTrials(40), aggregate=last_rung, keep=2, name="heirs").run()
    assert reads == []


class InTheFile(Training):
    """The share of what is inherited that the ledger can give back within some seconds."""

    fingerprint = "in-the-file-1"
    path: ClassVar[Path]

    def __call__(self, candidate: Any, case: Case, previous: Ok | None = None) -> Ok:
        with Ledger(self.path, readonly=True) as ledger:
            for _ in range(200):
                with contextlib.suppress(LedgerError):
                    return Ok(float(ledger.blob(candidate["inherited"].digest) == candidate["inherited"].read()))
                time.sleep(0.02)
        return Ok(0.0)


@pytest.mark.slow
def test_what_was_pruned_or_is_held_by_another_run_is_written_for_a_candidate_that_has_it(tmp_path: Path) -> None:
    InTheFile.path = tmp_path / "one.db"
    given = [{"gene": gene, "inherited": Blob.of(b"weights" * 10)} for gene in range(4)]
    for name in ("r", "other"):
        one = Study(Forgetful(given), InTheFile(), ["one"], window=1, keep=1, name="given")
        run = one.run("threads:1", ledger=InTheFile.path, run=name, reuse="never")
        assert [result.score for result in run.results()] == [1.0] * 4  # pruned after each, and there for the next
        assert counts(InTheFile.path) == (0, 1)
        run.ledger.close()
    held = Study(Sweep(given[:1]), InTheFile(), ["one"], name="all")
    held.run("threads:1", ledger=InTheFile.path, run="all").ledger.close()
    few = Study(Forgetful(given), InTheFile(), ["one"], window=1, keep=1, name="given")
    few.run("threads:1", ledger=InTheFile.path, run="third", reuse="never").ledger.close()
    assert counts(InTheFile.path) == (1, 1)


class Followed:
    """A pruner that is told of a run by hand."""

    def __init__(self, evaluate: Any = Training) -> None:
        self.needed: list[int] | None = []
        self.pruner = Pruner(evaluate, lambda: self.needed, 1)

    def ask(self, number: int, inherited: str = "") -> None:
        self.pruner.asked(number, encode({"inherited": Blob(inherited, bytes.fromhex)} if inherited else {}))

    def tell(self, number: int, score: float = 0.0, *weights: str) -> None:
        outcomes = {case: Ok(score, {"weights": Blob(name, bytes.fromhex)}) for case, name in enumerate(weights)}
        for outcome in outcomes.values():
            self.pruner.evaluated(number, encode(outcome.data))
        self.pruner.told(number, Result(Trial(number, None), score, {str(case): ok for case, ok in outcomes.items()}))


def test_what_an_open_trial_starts_from_stays_until_it_is_told() -> None:
    followed = Followed()
    followed.ask(0)
    followed.tell(0, 0.5, "parent")
    followed.ask(1)
    followed.tell(1, 0.9, "best")
    followed.ask(2, "parent")
    assert followed.pruner.unneeded(0, 0) == []
    followed.ask(3, "parent")
    followed.tell(2, 0.1, "early", "late")
    assert followed.pruner.unneeded(0, 0) == ["early", "late"]
    followed.tell(3)
    assert followed.pruner.unneeded(0, 0) == ["parent"]


def test_what_the_strategy_needs_stays() -> None:
    followed = Followed()
    for number in range(3):
        followed.ask(number)
        followed.tell(number, number, f"early {number}", f"late {number}")
    followed.needed = [0]
    assert followed.pruner.unneeded(0, 0) == ["early 0", "early 1", "early 2", "late 1"]
    followed.needed = None
    followed.tell(3, 0.0, "more")
    assert followed.pruner.unneeded(0, 0) == []  # nothing is known: all that is left stays


def test_outcomes_that_do_not_continue_each_other_all_stay() -> None:
    followed = Followed(evaluate=len)
    for number in range(2):
        followed.ask(number)
        followed.tell(number, number, f"one {number}", f"two {number}")
    assert followed.pruner.unneeded(0, 0) == ["one 0", "two 0"]


def test_a_resume_prunes_nothing_before_it_has_caught_up() -> None:
    followed = Followed()
    for number in range(3):
        followed.ask(number)
        followed.tell(number, number, f"weights {number}")
        assert followed.pruner.unneeded(4, 2) == []
    followed.ask(3, "weights 1")
    assert followed.pruner.unneeded(4, 5) == []
    assert followed.pruner.unneeded(4, 3) == ["weights 0"]


def test_a_genetic_search_needs_its_members_and_the_parents_of_those_that_wait() -> None:
    strategy = Genetic(breeder=Heirs(), population=16, elites=1, tournament=1)
    strategy.begin(1)
    for number, candidate in enumerate(strategy.ask(16)):
        outcome = Ok(float(number), {"weights": Blob.of(bytes([number]))})
        strategy.tell(Result(Trial(number, candidate), outcome.score, {"0": outcome}))
    assert strategy.needs() == set(range(16))
    first = strategy.ask(1)[0]
    numbers = {Blob.of(bytes([number])).digest: number for number in range(16)}
    rest = strategy.needs()
    asked = [first, *strategy.ask(14)]
    assert {numbers[candidate["inherited"].digest] for candidate in asked[1:]} | {15} <= rest < set(range(16))
    # The last litter goes on in the next generation.
    assert strategy.needs() == {15, numbers[asked[-1]["inherited"].digest]}
