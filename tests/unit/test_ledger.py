"""The ledger keeps what happened: durable before it is told, in few commits, once, and readable while it grows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import (
    Blob,
    Case,
    ConfigError,
    Failed,
    Ledger,
    LedgerError,
    MaxCost,
    MaxTrials,
    Ok,
    Plateau,
    Progress,
    Random,
    Result,
    Strategy,
    Study,
    Sweep,
)
from fanfold.events import EvaluationFinished, Event, TrialTold
from fanfold.stop import Rule
from fanfold.types import Trial


class Counted:
    """An evaluator that counts its calls by candidate and case."""

    fingerprint = "counted"

    def __init__(self, outcome: Callable[[Any, Case], Any] = lambda candidate, case: float(candidate)) -> None:
        self.calls: Counter[tuple[Any, str]] = Counter()
        self._outcome = outcome
        self._lock = threading.Lock()

    def __call__(self, candidate: Any, case: Case) -> Any:
        with self._lock:
            self.calls[candidate, case.id] += 1
        return self._outcome(candidate, case)


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """What any other program sees in the file at this moment."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


# -- commits -------------------------------------------------------------------------------------------------


class Commits:
    """Counts the commits of all connections from now on, and lets the disk refuse one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int | None = None) -> None:
        self.count = 0
        commits = self

        class Counting(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                commits.count += sql == "COMMIT"
                if sql == "COMMIT" and commits.count == refused:
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(sql, *parameters)

        monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Counting))


@pytest.mark.slow
def test_many_evaluations_share_few_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"

    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(0)
        return float(candidate)

    commits = Commits(monkeypatch)
    Study(Sweep(range(1000)), evaluate).run("async:64", ledger=path)
    assert query(path, "SELECT count(*), sum(score) FROM evaluation") == [(1000, sum(range(1000)))]
    assert 4 < commits.count <= 1000 // 10


def test_an_outcome_is_told_only_after_everyone_can_see_it_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    told: list[int] = []

    class Watchful(Strategy[int]):
        """Looks, whenever it is told something, whether another connection can see it already."""

        window = 8

        def ask(self, n: int) -> list[int]:
            return [self.rng.randrange(1000) for _ in range(n)]

        def tell(self, result: Result[int]) -> None:
            sql = f"SELECT score FROM evaluation WHERE trial = {result.number} ORDER BY position"
            told.append(result.number)
            assert [score for (score,) in query(path, sql)] == [result.candidate + 0.0, result.candidate + 1.0]

    def evaluate(candidate: int, case: Case) -> float:
        return float(candidate + case.data)

    study = Study(Watchful(), evaluate, cases=[0, 1], stop=MaxTrials(40))
    study.run("threads:4", ledger=path)
    assert told == list(range(40))


def test_a_refused_commit_tells_nobody_and_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    told: list[Event] = []

    def watch(event: Event) -> None:
        if isinstance(event, TrialTold):
            told.append(event)
        if isinstance(event, EvaluationFinished) and event.trial == 20:
            with contextlib.closing(sqlite3.connect(path)) as db:
                db.execute("DROP TABLE evaluation")

    study = Study(Sweep(range(60)), Counted(), window=4)
    with pytest.raises(LedgerError, match="no such table"):
        study.run(ledger=path, run="run", watch=watch)
    assert len(told) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("refused", range(4, 10))
def test_after_a_refused_commit_the_file_still_fits_together(
    refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    done: list[tuple[int, int]] = []

    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(0.001 * (1 + candidate % 3))
        done.append((candidate, case.data))
        return float(candidate + case.data)

    study = Study(Sweep(range(30)), evaluate, cases=[0, 1, 2], window=6)
    with monkeypatch.context() as patch:
        Commits(patch, refused)
        with pytest.raises(LedgerError, match=r"disk .* is full"):
            study.run("async:8", ledger=path, run="run")
    assert query(path, "SELECT * FROM evaluation WHERE trial NOT IN (SELECT number FROM trial)") == []
    recorded = query(path, "SELECT candidate, position FROM evaluation JOIN trial ON trial = number")
    done.clear()
    whole = study.run("async:8", ledger=path, run="run")
    assert not {(int(candidate), position) for candidate, position in recorded} & set(done)
    assert whole.trace == study.run("async:8").trace


# -- blobs ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.binary(max_size=5000))
def test_bytes_in_the_data_of_an_outcome_come_back(data: bytes) -> None:
    def evaluate(candidate: int, case: Case) -> Ok:
        return Ok(1.0, {"weights": [Blob.of(data), "beside"], "n": candidate})

    run = Study(Sweep([1]), evaluate).run()
    with run.ledger:
        (result,) = run.results()
        outcome = result.outcomes["0"]
        assert isinstance(outcome, Ok)
        blob, beside = outcome.data["weights"]
        assert (blob.read(), beside, outcome.data["n"]) == (data, "beside", 1)


@pytest.mark.slow
def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def evaluate(candidate: int, case: Case) -> Ok:
        return Ok(1.0, Blob.of(bytes(100_000) if candidate % 2 else b"even"))

    study = Study(Sweep(range(20)), evaluate)
    for name in ("one", "two"):
        study.run("threads:4", ledger=path, run=name, reuse="never").ledger.close()
    assert sorted(query(path, "SELECT length(data) FROM blob")) == [(4,), (100_000,)]


def test_bytes_in_a_candidate_are_kept_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def evaluate(candidate: dict[str, Any], case: Case) -> float:
        return float(len(candidate["genes"].read()))

    study = Study(Sweep([{"genes": Blob.of(b"x" * n)} for n in (10, 20, 10)]), evaluate)
    run = study.run(ledger=path, run="run")
    assert [result.candidate["genes"].read() for result in run.results()] == [b"x" * 10, b"x" * 20, b"x" * 10]
    assert len(query(path, "SELECT * FROM blob")) == 2
    assert study.run(ledger=path, run="run").trace == run.trace


def test_bytes_in_a_case_are_kept_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def evaluate(candidate: int, case: Case) -> float:
        return float(len(case.data.read()))

    run = Study(Sweep([1]), evaluate, cases=[Blob.of(b"picture")]).run(ledger=path, run="run")
    (case,) = run.ledger.cases(run.ledger.run("run").id)
    assert case.data.read() == b"picture"


def test_a_blob_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(LedgerError, match="abc123"):
        ledger.blob("abc123")


# -- reuse ---------------------------------------------------------------------------------------------------


def test_equal_cells_of_one_run_are_evaluated_once() -> None:
    counted = Counted()
    run = Study(Sweep([1, 2, 1, 1, 2, 3]), counted, cases=[0, 1], window=2).run()
    assert set(counted.calls.values()) == {1} and len(counted.calls) == 6
    assert [result.score for result in run.results()] == [1, 2, 1, 1, 2, 3]
    assert run.progress.reused == 6


def test_equal_cells_in_flight_share_one_evaluation() -> None:
    def slow(candidate: int, case: Case) -> Ok:
        threading.Event().wait(0.05)
        return Ok(candidate, {"by": "one"})

    counted = Counted(slow)
    run = Study(Sweep([5] * 8), counted, window=8).run("threads:8")
    assert counted.calls == {(5, "0"): 1}
    assert [result.outcomes["0"].data for result in run.results()] == [{"by": "one"}] * 8


def test_equal_cells_in_flight_share_a_failure_too() -> None:
    def fail(candidate: int, case: Case) -> float:
        threading.Event().wait(0.05)
        raise ValueError("no")

    counted = Counted(fail)
    run = Study(Sweep([5] * 4), counted, window=4).run("threads:4")
    assert counted.calls == {(5, "0"): 1}
    assert [result.outcomes["0"].message for result in run.results()] == ["ValueError: no"] * 4


@pytest.mark.slow
def test_what_is_reused_costs_nothing_however_often_it_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study = Study(Sweep([1, 1, 1, 1]), Counted(lambda candidate, case: Ok(1.0, cost=0.5)), window=1)
    live = study.run(ledger=path, run="run")
    assert live.ledger.run("run").cost == 0.5
    assert study.run(ledger=path, run="run").progress.cost == live.progress.cost == 0.5
    assert query(path, "SELECT sum(cost) FROM trial") == [(0.5,)]


@pytest.mark.slow
def test_a_resumed_run_stops_at_the_same_cost(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study = Study(
        Sweep([1, 1, 1, 2, 2, 3, 3, 4, 5, 6]),
        Counted(lambda candidate, case: Ok(1.0, cost=1.0)),
        window=1,
        stop=MaxCost(4),
    )
    whole = study.run()
    crash_after(study, 4, path)
    assert study.run(ledger=path, run="run").trace == whole.trace


@pytest.mark.slow
def test_runs_share_evaluations_only_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    counted = Counted()
    study = Study(Sweep([1, 2, 3]), counted)
    study.run(ledger=path, run="first")
    study.run(ledger=path, run="apart", reuse="run")
    assert set(counted.calls.values()) == {2}
    shared = study.run(ledger=path, run="shared", reuse="ledger")
    assert set(counted.calls.values()) == {2} and shared.progress.reused == 3
    assert query(path, "SELECT count(*), sum(cost) FROM evaluation WHERE reused") == [(3, 0.0)]


@pytest.mark.slow
def test_another_evaluator_case_or_candidate_is_no_match(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study = Study(Sweep([1]), Counted(), cases=[Case("a", data=1, seed=1)])
    study.run(ledger=path, run="first")
    other = Counted()
    other.fingerprint = "other"
    for name, changed in {
        "evaluator": replace(study, evaluate=other),
        "case": replace(study, cases=[Case("a", data=2, seed=1)]),
        "seed": replace(study, cases=[Case("a", data=1, seed=2)]),
        "candidate": replace(study, strategy=Sweep([2])),
    }.items():
        assert changed.run(ledger=path, run=name, reuse="ledger").progress.reused == 0


@pytest.mark.slow
def test_a_failure_answers_for_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def refuse(candidate: int, case: Case) -> Failed:
        return Failed("error", "not today")

    Study(Sweep([1]), Counted(refuse)).run(ledger=path, run="first")
    counted = Counted()
    assert Study(Sweep([1]), counted).run(ledger=path, run="second", reuse="ledger").best is not None
    assert counted.calls == {(1, "0"): 1}


def test_never_evaluates_each_cell_anew_but_a_resume_repeats_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    counted = Counted()
    study = Study(Sweep([1, 1, 1, 1]), counted)
    study.run("threads:2", ledger=path, run="run", reuse="never")
    study.run("threads:2", ledger=path, run="run", reuse="never")
    assert counted.calls == {(1, "0"): 4}


def test_a_word_that_is_no_way_to_reuse_is_refused() -> None:
    with pytest.raises(ConfigError, match="'always'"):
        Study(Sweep([1]), Counted()).run(reuse="always")  # type: ignore[arg-type]


# -- going on ------------------------------------------------------------------------------------------------


class Crash(Exception):
    """What ends a run in its middle."""


class CrashAfter(Rule):
    """Decides as another rule does, until so many trials are told."""

    def __init__(self, rule: Rule, told: int) -> None:
        self.rule, self.told = rule, told

    def check(self, progress: Progress) -> str | None:
        if progress.told == self.told:
            raise Crash
        return self.rule.check(progress)

    def allowance(self, progress: Progress) -> float:
        return self.rule.allowance(progress)


def crash_after(study: Study[Any], told: int, path: Path, **how: Any) -> None:
    """Run a study, as the run "run", until so many trials are told."""
    with pytest.raises(Crash):
        replace(study, stop=CrashAfter(study.stop, told)).run(ledger=path, run="run", **how)


class Learner(Strategy[int]):
    """Sums what it is told, asks accordingly, and can be saved."""

    window = 4

    def __init__(self, tells: list[int], loads: list[int]) -> None:
        self.tells, self.loads = tells, loads
        self.total = self.asked = 0

    def __deepcopy__(self, memo: Any) -> Learner:
        return Learner(self.tells, self.loads)  # copies keep one common count

    def ask(self, n: int) -> list[int]:
        self.asked += n
        return [(self.total * 31 + self.asked - n + i) % 1009 for i in range(n)]

    def tell(self, result: Result[int]) -> None:
        self.tells.append(result.number)
        self.total += int(result.score or 0)

    def save(self) -> bytes:
        return f"{self.total} {self.asked}".encode()

    def load(self, state: bytes) -> None:
        self.total, self.asked = (int(part) for part in state.split())
        self.loads.append(self.total)


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("first", [49, 50, 120])
def test_a_strategy_with_snapshots_goes_on_from_the_last_without_replay(
    first: int, in_order: bool, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    tells: list[int] = []
    loads: list[int] = []
    counted = Counted(lambda candidate, case: Ok(float(candidate % 97), cost=0.25))
    study = Study(Learner(tells, loads), counted, stop=MaxTrials(160), in_order=in_order)
    whole = study.run(reuse="never")
    calls = sum(counted.calls.values())
    tells.clear()
    crash_after(study, first, path, reuse="never")
    assert len(tells) == first
    tells.clear()
    resumed = study.run(ledger=path, run="run", reuse="never")
    assert len(loads) == (first >= 50)
    assert len(tells) == 160 - first // 50 * 50
    assert sum(counted.calls.values()) == 2 * calls
    assert (resumed.trace, resumed.best) == (whole.trace, whole.best)
    assert replace(resumed.progress, elapsed=0.0) == replace(whole.progress, elapsed=0.0)


@pytest.mark.slow
def test_a_resumed_run_stops_on_the_same_plateau(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study = Study(Random(lambda rng: rng.randrange(10**6)), Counted(), window=4, stop=Plateau(25), seed=3)
    whole = study.run()
    assert whole.progress.told > 30
    crash_after(study, whole.progress.told - 5, path)
    assert study.run(ledger=path, run="run").trace == whole.trace


def test_a_finished_run_stays_finished_when_it_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    counted = Counted()
    study = Study(Random(lambda rng: rng.randrange(10**6)), counted, window=4, stop=Plateau(25), seed=3)
    done = study.run(ledger=path, run="run")
    calls = sum(counted.calls.values())
    assert study.run(ledger=path, run="run").trace == done.trace
    assert sum(counted.calls.values()) == calls


def test_the_counts_of_a_resumed_run_are_those_of_the_whole_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study = Study(Sweep([1, 1, 2, 2, 3, 3, 4, 4]), Counted(), window=2)
    whole = study.run()
    crash_after(study, 5, path)
    resumed = study.run(ledger=path, run="run")
    assert replace(resumed.progress, elapsed=0.0) == replace(whole.progress, elapsed=0.0)


# -- reading -------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_telling_with_everything_that_was_kept(tmp_path: Path) -> None:
    def evaluate(candidate: int, case: Case) -> Ok:
        if candidate == 3:
            raise ValueError("three")
        return Ok(candidate * 10 + case.data, {"saw": [candidate, case.data]}, cost=0.5)

    told: list[Result[Any]] = []

    def watch(event: Event) -> None:
        if isinstance(event, TrialTold):
            told.append(event.result)

    study = Study(Sweep(range(6)), evaluate, cases=[0, 1], in_order=False)
    run = study.run("threads:3", ledger=tmp_path / "ledger.db", run="run", watch=watch)
    assert list(run.results()) == told
    with Ledger(tmp_path / "ledger.db", readonly=True) as ledger:
        assert list(ledger.results(ledger.run("run").id)) == told


@pytest.mark.slow
def test_results_are_given_one_by_one(tmp_path: Path) -> None:
    run = Study(Sweep(range(300)), Counted()).run(ledger=tmp_path / "ledger.db")
    results: Iterator[Result[Any]] = run.results()
    first = next(results)
    assert first.trial == Trial(0, 0)
    assert sum(1 for _ in results) == 299


def test_a_reading_that_is_given_up_leaves_no_error_behind(tmp_path: Path) -> None:
    run = Study(Sweep(range(20)), Counted()).run(ledger=tmp_path / "ledger.db")
    rows = run.ledger.read("SELECT * FROM evaluation")
    next(rows)
    run.ledger.close()
    rows.close()  # type: ignore[attr-defined]


def test_a_large_commit_is_written_at_its_end_and_not_page_by_page(tmp_path: Path) -> None:
    with Ledger(tmp_path / "one.db") as ledger:
        log, db = tmp_path / "one.db-wal", ledger.writer
        db.execute("BEGIN IMMEDIATE")
        before = log.stat().st_size
        for n in range(16):
            db.execute("INSERT INTO blob VALUES (?, zeroblob(500000))", (str(n),))
        assert log.stat().st_size == before
        db.execute("COMMIT")
        assert log.stat().st_size > 8_000_000


def test_a_ledger_opened_for_reading_cannot_be_written(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.db").close()
    with Ledger(tmp_path / "ledger.db", readonly=True) as ledger:
        with pytest.raises(LedgerError, match="reading only"):
            _ = ledger.writer
        with pytest.raises(LedgerError):
            list(ledger.read("DELETE FROM run"))


def test_without_a_path_nothing_is_left_behind() -> None:
    run = Study(Sweep([1]), Counted()).run()
    folder = run.ledger.path.parent
    assert folder.exists() and run.ledger.temporary
    run.ledger.close()
    assert not folder.exists()


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/x",
        "a/b",
        "a\\b",
        "a\0b",
        " ",
        "a b",
        ".hidden",
        "-flag",
        "x" * 81,
        "ä",
        "run\n",
        "a;b",
        "..",
        "%2e",
    ],
)
def test_a_name_that_could_leave_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a run's name"):
        Study(Sweep([1]), Counted()).run(ledger=tmp_path / "ledger.db", run=name)
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_cannot_have_the_name_of_whatever_run_is_the_newest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fanfold resume last"):
        Study(Sweep([1]), Counted()).run(ledger=tmp_path / "ledger.db", run="last")
    assert Ledger(tmp_path / "ledger.db", readonly=True).find("last") is None


@pytest.mark.parametrize(
    ("name", "begins"),
    [("my study", "my-study-2"), ("Résumés (v2)", "Resumes-v2-2"), ("実験", "study-2"), ("x" * 90, "x" * 40 + "-2")],
)
def test_a_study_may_have_any_name(name: str, begins: str, tmp_path: Path) -> None:
    assert Study(Sweep([1]), Counted(), name=name).run(ledger=tmp_path / "ledger.db").id.startswith(begins)


def test_an_empty_name_is_refused_or_replaced_by_one_of_our_own(tmp_path: Path) -> None:
    assert Study(Sweep([1]), Counted(), name="mine").run(ledger=tmp_path / "ledger.db", run="").id.startswith("mine-")


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", fullmatch=True))
def test_every_plain_name_can_be_used(name: str) -> None:
    run = Study(Sweep([1]), Counted()).run(run=name)
    with run.ledger:
        assert run.id == name and run.ledger.run(name).status == "finished"


@pytest.mark.slow
def test_a_run_is_found_by_its_name_or_an_unambiguous_beginning(tmp_path: Path) -> None:
    study = Study(Sweep([1]), Counted())
    names: Sequence[str] = ("alpha", "alpha-2", "beta", "gamma.1")
    for name in names:
        study.run(ledger=tmp_path / "ledger.db", run=name).ledger.close()
    with Ledger(tmp_path / "ledger.db", readonly=True) as ledger:
        assert [run.name for run in ledger.runs()] == list(reversed(names))
        assert ledger.run("alpha").name == "alpha"
        assert ledger.run("alpha-").name == "alpha-2"
        assert ledger.run("b").name == "beta"
        with pytest.raises(LedgerError, match=r"several runs in .* begin with 'al': alpha, alpha-2$"):
            ledger.run("al")
        with pytest.raises(LedgerError, match="did you mean 'beta'"):
            ledger.run("betta")


def test_whoever_opens_the_file_of_a_temporary_ledger_need_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fanfold.ledger import store

    waits: list[bool] = []
    connect = store.connect

    def noted(path: Path, **options: Any) -> Any:
        if not options.get("readonly"):
            waits.append(options["durable"])
        return connect(path, **options)

    monkeypatch.setattr(store, "connect", noted)
    with Ledger() as temporary, Ledger(temporary.path), Ledger(tmp_path / "kept.db"):
        assert waits == [False, False, True]


# ---------------------------------------------------------------- threads


def test_a_read_under_way_in_one_thread_hides_nothing_from_another(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        rows = ledger.read("SELECT name FROM sqlite_master")
        next(rows)  # until it ends, it sees the file as it is now
        with ledger.writer as db:
            db.execute("INSERT INTO blob (digest, data) VALUES ('new', x'01')")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(ledger.blob, "new").result() == b"\x01"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_the_connections_of_threads_end_with_them_and_with_the_ledger(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"

    def opened() -> int:
        return sum(os.path.realpath(link) == str(file) for link in Path("/proc/self/fd").iterdir())

    with Ledger(file) as ledger:
        before = opened()
        for _ in range(20):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ledger.run_count).result()
        assert opened() <= before + 1  # SQLite keeps one for the next connection
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ledger.run_count).result()
            ledger.close()
            assert opened() == 0
            with pytest.raises(LedgerError):
                pool.submit(ledger.run_count).result()
