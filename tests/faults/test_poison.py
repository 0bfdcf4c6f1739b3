"""One bad outcome is one bad outcome: it fails alone, and the run and every resume of it end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from poisons import BAD, ODD, Poisoned, PoisonedLater

import fanfold.encoding
from fanfold import Blob, Case, ConfigError, Failed, Ledger, LedgerError, MaxTrials, Ok, Result, Strategy, Study, Sweep
from fanfold.cli import cli
from fanfold.errors import ExecutorBroken, RowRefused
from fanfold.events import Event, TrialTold
from fanfold.ledger import Commits, Insert
from fanfold.sync import run_sync

EXECUTORS = {
    "inline": ("inline", Poisoned),
    "async": ("async:4", PoisonedLater),
    "threads": ("threads:2", Poisoned),
    "processes": ("processes:2", Poisoned),
    "inline-coroutine": ("inline", PoisonedLater),
    "threads-coroutine": ("threads:2", PoisonedLater),
}


class Unasked:
    """Stands in for an evaluator in a resume that has nothing left to evaluate."""

    fingerprint = "poisons"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, candidate: Any, case: Case) -> float:
        self.calls.append(candidate)
        return 0.25


@dataclass(frozen=True)
class Seen:
    """What a poisoned run gave: live, from the ledger, and by a resume."""

    live: dict[str, Result[Any]]
    kept: dict[str, Result[Any]]
    resumed: dict[str, Result[Any]]
    again: list[Any]
    traces: tuple[str, str]


@pytest.fixture(scope="module", params=EXECUTORS, ids=list(EXECUTORS))
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """All kinds in one run, stopped halfway and continued, with a good candidate between each two."""
    executor, evaluator = EXECUTORS[request.param]
    names = [name for pair in zip([*BAD, *ODD], (f"good {n}" for n in itertools.count())) for name in pair]
    study = Study(Sweep(names), evaluator(), window=8)
    path = tmp_path_factory.mktemp("poison") / "ledger.db"
    told: list[Result[Any]] = []

    def watch(event: Event) -> None:
        if isinstance(event, TrialTold):
            told.append(event.result)

    half = replace(study, stop=MaxTrials(len(names) // 2))
    half.run(executor, ledger=path, run="run", watch=watch).ledger.close()
    before = len(told)
    whole = study.run(executor, ledger=path, run="run", watch=watch)
    live = told[:before] + told[-(len(names) - before) :]
    with whole.ledger:
        kept = list(whole.results())
    unasked = Unasked()
    resumed = replace(study, evaluate=unasked).run(ledger=path, run="run")
    with resumed.ledger:
        again = list(resumed.results())
    results = ({result.candidate: result for result in some} for some in (live, kept, again))
    return Seen(*results, unasked.calls, (whole.trace, resumed.trace))


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_bad_outcome_fails_alone(name: str, seen: Seen) -> None:
    outcome = seen.kept[name].outcomes["0"]
    assert isinstance(outcome, Failed) and outcome.kind == BAD[name][1], outcome
    assert type(outcome.cost) is float and math.isfinite(outcome.cost) and outcome.cost >= 0.0
    assert len(outcome.message) + len(outcome.detail) < 70_000
    assert (outcome.message + outcome.detail).encode()
    assert seen.live[name].outcomes["0"] == outcome == seen.resumed[name].outcomes["0"]
    assert seen.kept[name].score is None


@pytest.mark.parametrize("name", ODD)
def test_an_odd_outcome_that_can_be_read_is_kept_as_plain_values(name: str, seen: Seen) -> None:
    outcome = seen.kept[name].outcomes["0"]
    assert isinstance(outcome, Ok) and outcome == ODD[name][1]
    assert (type(outcome.score), type(outcome.cost)) == (float, float)
    assert seen.live[name].outcomes["0"] == outcome == seen.resumed[name].outcomes["0"]


def test_what_stands_between_bad_outcomes_is_evaluated_and_a_resume_repeats_nothing(seen: Seen) -> None:
    good = [result for name, result in seen.kept.items() if name.startswith("good")]
    assert len(good) == len(BAD) + len(ODD) and {result.score for result in good} == {0.25}
    assert seen.again == []
    assert seen.traces[0] == seen.traces[1]


def test_there_are_enough_kinds() -> None:
    assert len(BAD) >= 40


def test_long_texts_say_that_they_were_cut(seen: Seen) -> None:
    outcome = seen.kept["raises a very long text"].outcomes["0"]
    assert isinstance(outcome, Failed)
    assert "characters were cut here" in outcome.message and outcome.message.startswith("ValueError: xxx")
    assert "Traceback" in outcome.detail and "characters were cut here" in outcome.detail


def test_a_bad_outcome_says_what_was_wrong_and_what_to_do(seen: Seen) -> None:
    said = {name: result.outcomes["0"].message for name, result in seen.kept.items() if name in BAD}  # type: ignore[union-attr]
    assert "its ['losses'][1] is nan" in said["has NaN in its data"]
    assert "67,108,864" in said["has too much data"] and "Blob.of" in said["has too much data"]
    assert "async def" in said["gives a coroutine"]
    assert "'0.1' (str)" in said["costs a text"]
    assert "mine" in said["fails with no kind"] and "one word" in said["fails with no kind"]
    assert said["fails with an exception"] == "x"
    assert said["raises half an emoji"] == "ValueError: half an emoji: \ufffd"


def test_a_coroutine_that_nobody_awaits_is_closed(recwarn: pytest.WarningsRecorder) -> None:
    async def later() -> float:
        return 1.0

    Study(Sweep([1]), lambda candidate, case: later()).run().ledger.close()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


# -- blocks --------------------------------------------------------------------------------------------------


class Blocks:
    """Evaluates one cell as its candidate plus one, and blocks as it is told."""

    fingerprint = "blocks"
    block_size = 4

    def __init__(self, block: Callable[[Sequence[Any]], Any]) -> None:
        self._block = block
        self.blocks = 0

    def __call__(self, candidate: float, case: Case) -> float:
        return candidate + 1.0

    def evaluate_block(self, cells: Sequence[Any]) -> Any:
        self.blocks += 1
        return self._block(cells)


class BlocksLater(Blocks):
    async def evaluate_block(self, cells: Sequence[Any]) -> Any:  # type: ignore[override]
        return super().evaluate_block(cells)


def _raise(error: BaseException) -> Any:
    raise error


BLOCKS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "too few": lambda cells: [1.0],
    "too many": lambda cells: [1.0] * (len(cells) + 1),
    "nothing": lambda cells: None,
    "a number": lambda cells: 1.0,
    "a text": lambda cells: "abcd"[: len(cells)],
    "a dict": lambda cells: dict.fromkeys(range(len(cells)), 1.0),
    "without end": lambda cells: itertools.repeat(1.0),
    "half a generator": lambda cells: (_raise(ValueError()) if candidate % 2 else candidate for candidate, _ in cells),
    "a ConfigError": lambda cells: _raise(ConfigError("mine")),
    "a broken executor": lambda cells: _raise(ExecutorBroken("mine")),
    "an exit": lambda cells: _raise(SystemExit(1)),
    "a cancellation": lambda cells: _raise(asyncio.CancelledError()),
    "a base exception": lambda cells: _raise(BaseException("base")),
}


@pytest.mark.slow
@pytest.mark.parametrize("evaluator", [Blocks, BlocksLater])
@pytest.mark.parametrize("executor", ["inline", "async:2", "threads:2"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_cannot_be_read_is_evaluated_cell_by_cell(
    name: str, executor: str, evaluator: type[Blocks]
) -> None:
    evaluate = evaluator(BLOCKS[name])
    run = Study(Sweep([0.0, 1.0, 2.0, 3.0]), evaluate, window=4).run(executor)
    with run.ledger:
        assert [result.score for result in run.results()] == [1.0, 2.0, 3.0, 4.0]
    assert evaluate.blocks


@pytest.mark.parametrize("executor", ["inline", "threads:1"])
def test_only_the_bad_outcomes_of_a_block_fail(executor: str) -> None:
    class Broken(Ok):
        """An outcome of a class of the user's own, whose cost cannot be looked at."""

        __slots__ = ()

        @property
        def cost(self) -> float:  # type: ignore[override]
            raise BaseException("no cost")

        def __init__(self) -> None:
            pass

    given = [0.5, None, Ok(1.0, object()), Broken(), Failed("mine", "m"), np.float32(0.25)]
    evaluate = Blocks(lambda cells: (given[int(candidate)] for candidate, _ in cells))
    evaluate.block_size = 64
    run = Study(Sweep([float(n) for n in range(6)]), evaluate, window=6).run(executor)
    with run.ledger:
        outcomes = [result.outcomes["0"] for result in run.results()]
    kinds = [outcome.kind if isinstance(outcome, Failed) else outcome.score for outcome in outcomes]
    assert kinds == [0.5, "bad-score", "bad-data", "error", "mine", 0.25]


# -- sizes ---------------------------------------------------------------------------------------------------


def test_a_blob_that_sqlite_cannot_hold_fails_its_own_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(candidate: int, case: Case) -> Ok:
        return Ok(1.0, {"weights": Blob.of(bytes(candidate))})

    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        assert 0.99e9 < fanfold.encoding.LARGEST_BLOB < db.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - 500
    monkeypatch.setattr(fanfold.encoding, "LARGEST_BLOB", 1000)
    run = Study(Sweep([10, 1001, 1000]), evaluate).run()
    with run.ledger:
        results = list(run.results())
    failure = results[1].outcomes["0"]
    assert isinstance(failure, Failed) and failure.kind == "bad-data" and "1,001 bytes" in failure.message
    assert [result.score for result in results] == [1.0, None, 1.0]


def test_data_up_to_its_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fanfold.encoding.MOST_DATA == 64 * 2**20
    monkeypatch.setattr(fanfold.encoding, "MOST_DATA", 1000)
    run = Study(Sweep([998, 999]), lambda n, case: Ok(1.0, "x" * n)).run()  # two more bytes are the quotes
    with run.ledger:
        assert [len(result.failures) for result in run.results()] == [0, 1]


def test_a_mean_beyond_all_numbers_is_no_score_and_no_error() -> None:
    run = Study(Sweep([1e308, 1.0]), lambda candidate, case: candidate, cases=[0, 1]).run()
    assert run.best is not None and run.best.candidate == 1.0 and run.progress.told == 2


# -- strategies and candidates -------------------------------------------------------------------------------


class Mended(Strategy[Any]):
    """Asks 0, 1, 2 and so on; its subclasses go wrong at some point."""

    window = 4
    asked = 0

    def ask(self, n: int) -> Any:
        start, self.asked = self.asked, min(self.asked + n, 12)
        return list(range(start, self.asked))


def mended(broken: type[Mended]) -> Mended:
    """The strategy that should have been there from the start, under the same name."""
    return type(broken.__name__, (Mended,), {"__qualname__": broken.__qualname__})()


def late(value: Callable[[], Any]) -> type[Mended]:
    """A strategy that after eight candidates gives something else."""

    class Late(Mended):
        def ask(self, n: int) -> Any:
            return value() if self.asked >= 8 else super().ask(n)

    return Late


def raising_in(method: str, error: type[BaseException] = ZeroDivisionError) -> type[Mended]:
    class Raises(Mended):
        pass

    def raises(self: Mended, subject: Any) -> Any:
        if (subject.number if isinstance(subject, Result) else subject) == 5:
            raise error
        return None

    setattr(Raises, method, raises)
    return Raises


class Originates(Mended):
    def origin(self, candidate: int) -> Any:
        return object() if candidate == 5 else float("nan") if candidate == 6 else None


@pytest.mark.parametrize(
    ("broken", "error", "said"),
    [
        (late(lambda: None), ConfigError, r"Late\.ask\(1\) gave None"),
        (late(lambda: 3), ConfigError, r"Late\.ask\(1\) gave 3 \(int\).*a list of candidates"),
        (late(lambda: "ab"), ConfigError, r"Late\.ask\(1\) gave 'ab'"),
        (late(lambda: {"a": 1}), ConfigError, r"Late\.ask\(1\) gave .*dict"),
        (late(lambda: {1, 2}), ConfigError, r"Late\.ask\(1\) gave .*set"),
        (late(lambda: itertools.count()), ConfigError, r"Late\.ask\(1\) gave 2 candidates: it must give at most 1"),
        (late(lambda: next(iter(()))), ConfigError, r"Late\.ask\(1\) raised StopIteration.*empty list"),
        (late(lambda: [float("nan")]), ConfigError, r"Late's candidate of trial 8 .* is nan"),
        (late(lambda: [{"rate": [1.0, float("inf")]}]), ConfigError, r"trial 8 .*its \['rate'\]\[1\] is inf"),
        (late(lambda: ["\ud83d"]), ConfigError, r"Late's candidate of trial 8 .*surrogates"),
        (late(lambda: [object()]), ConfigError, r"Late's candidate of trial 8 .*'object'"),
        (late(lambda: 1 / 0), ZeroDivisionError, r"Late\.ask\(1\).*fix it"),
        (raising_in("tell"), ZeroDivisionError, r"Raises\.tell\(\) for trial 5.*fix it.*same name"),
        (raising_in("origin"), ZeroDivisionError, r"Raises\.origin\(\) for trial 5.*fix it"),
        (Originates, ConfigError, r"origin\(\) gave for trial 5 cannot be written"),
    ],
)
def test_a_strategy_that_goes_wrong_is_named_and_the_run_continues_once_it_is_mended(
    broken: type[Mended], error: type[Exception], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    calls: list[int] = []

    def evaluate(candidate: int, case: Case) -> float:
        calls.append(candidate)
        return float(candidate)

    evaluate.fingerprint = "the same"  # type: ignore[attr-defined]
    study = Study(broken(), evaluate)
    with pytest.raises(error) as raised:
        study.run("inline", ledger=path, run="run")
    text = " ".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert re.search(said, text, re.DOTALL), text
    whole = replace(study, strategy=mended(broken)).run(ledger=path, run="run")
    with whole.ledger:
        assert [result.candidate for result in whole.results()] == list(range(12))
    assert sorted(calls) == list(range(12)), "an evaluation was lost or repeated"


def test_a_strategy_may_give_a_generator_or_a_tuple() -> None:
    class Gives(Mended):
        def ask(self, n: int) -> Any:
            found = super().ask(n)
            return tuple(found) if self.asked > 8 else (candidate for candidate in found)

    assert Study(Gives(), lambda candidate, case: float(candidate)).run().progress.told == 12


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ([1.0, float("nan")], "case '1' .* is nan"),
        ([Case("a", {"x": [float("inf")]})], r"case 'a' .*\['x'\]\[0\] is inf"),
        ([Case("\ud83d")], "surrogates"),
        ([object()], "case '0' .*'object'"),
        ([Case("a", seed=2**70)], "the seed of case 'a' .* 64 bits"),
        ([Case("a", seed="x")], "the seed of case 'a'"),  # type: ignore[arg-type]
    ],
)
def test_a_case_that_cannot_be_kept_is_refused_with_its_study(cases: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Study(Sweep([1]), lambda candidate, case: 1.0, cases=cases)


# -- rows ----------------------------------------------------------------------------------------------------


def evaluation(trial: int, **changes: Any) -> tuple[Any, ...]:
    names = [
        "run",
        "trial",
        "position",
        "key",
        "failure",
        "score",
        "data",
        "message",
        "detail",
        "cost",
        "started",
        "seconds",
        "tries",
        "reused",
    ]
    row: dict[str, Any] = dict.fromkeys(names, 0) | {"run": 1, "trial": trial, "key": b"k%d" % trial, "score": 1.0}
    return tuple((row | dict.fromkeys(("failure", "data", "message", "detail")) | changes).values())


ROWS = {
    "a huge integer": {"tries": 2**70},
    "half an emoji": {"message": "\ud83d"},
    "an object": {"detail": object()},
    "no cost": {"cost": None},
    "NaN": {"cost": math.nan},
    "too much": {"data": "x" * 2000},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_sqlite_refuses_fails_alone(name: str, tmp_path: Path) -> None:
    async def write() -> list[BaseException | None]:
        with Ledger(tmp_path / "ledger.db") as ledger:
            ledger.writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
            commits, fates = Commits(ledger), dict.fromkeys(range(6), ValueError("never called"))
            commits.put(Insert.ASKED, (1, 0, "0", 0, None))
            for trial in range(5):
                row = evaluation(trial, **(ROWS[name] if trial == 2 else {}))
                commits.put(Insert.EVALUATION, row, lambda error, trial=trial: fates.__setitem__(trial, error))
            await commits.flush()
            assert not ledger.writer.in_transaction and commits.error is None
            commits.put(Insert.EVALUATION, evaluation(5), lambda error: fates.__setitem__(5, error))
            await commits.flush()
            commits.close()
            written = list(ledger.read("SELECT trial FROM evaluation ORDER BY trial"))
            assert written == [(0,), (1,), (3,), (4,), (5,)]
            assert list(ledger.read("SELECT number FROM trial")) == [(0,)]
        return list(fates.values())

    fates = run_sync(write)
    assert isinstance(fates.pop(2), RowRefused) and fates == [None] * 5


@pytest.mark.parametrize("waited_for", [True, False])
@pytest.mark.parametrize(
    "row", [(1, 2**70, "1", 0, None), (1, 1, "\ud83d", 0, None), (1, 1, object(), 0, None), (1, 1, None, 0, None)]
)
def test_a_row_that_others_refer_to_stops_everything_and_leaves_no_transaction_open(
    row: tuple[Any, ...], waited_for: bool, tmp_path: Path
) -> None:
    async def write() -> None:
        with Ledger(tmp_path / "ledger.db") as ledger:
            commits, fates = Commits(ledger), list[BaseException | None]()
            commits.put(Insert.ASKED, row, (lambda error: None) if waited_for else None)
            commits.put(Insert.EVALUATION, evaluation(0), fates.append)
            await commits.flush()
            commits.put(Insert.EVALUATION, evaluation(1), fates.append)
            await commits.flush()
            commits.close()
            await asyncio.sleep(0)
            assert isinstance(commits.error, LedgerError) and fates == [commits.error] * 2
            assert not ledger.writer.in_transaction
            assert list(ledger.read("SELECT count(*) FROM evaluation")) == [(0,)]

    run_sync(write)


def test_an_outcome_that_the_ledger_refuses_after_all_becomes_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line of defence: as if the checks of an outcome had missed something."""
    path = tmp_path / "ledger.db"
    monkeypatch.setattr("fanfold.evaluation._number", lambda value: 2**70 if value == 2 else float(value))
    study = Study(Sweep([1, 2, 3, 2]), Poisonless(), window=4)
    run = study.run("threads:4", ledger=path, run="run")
    with run.ledger:
        results = list(run.results())
    assert [result.score for result in results] == [1.0, None, 3.0, None]
    assert {result.failures["0"].kind for result in results if result.failures} == {"bad-data"}
    unasked = Unasked()
    resumed = replace(study, evaluate=unasked).run(ledger=path, run="run")
    assert resumed.trace == run.trace and unasked.calls == []


class Poisonless:
    fingerprint = "poisons"

    def __call__(self, candidate: Any, case: Case) -> Any:
        return candidate


# -- ledgers already poisoned --------------------------------------------------------------------------------

#: What another program, or an earlier version, left in the row of an evaluation that gave 2.0 and cost 0.5.
LEFT: dict[str, tuple[str, Any]] = {
    "cost: a number of numpy": ("cost", np.float32(0.5).tobytes()),
    "cost: a whole number of numpy": ("cost", np.int64(7).tobytes()),
    "cost: other bytes": ("cost", b"xyz"),
    "cost: NaN of numpy": ("cost", np.float32("nan").tobytes()),
    "cost: text": ("cost", "a lot"),
    "score: text": ("score", "good"),
    "score: bytes": ("score", b"\xff\xfe"),
    "score: infinity": ("score", math.inf),
    "score: nothing": ("score", None),
    "data: no JSON": ("data", "{"),
    "data: bytes": ("data", b"\xff\x00"),
    "data: number": ("data", 5),
    "data: too deep": ("data", "[" * 5000 + "]" * 5000),
    "message: bytes": ("message", b"\xff\xfe"),
    "message: no UTF-8": ("message", "CAST(x'eda0bd' AS TEXT)"),
    "detail: no UTF-8": ("detail", "CAST(x'eda0bd' AS TEXT)"),
    "kind: bytes": ("failure", b"\xff"),
    "kind: no UTF-8": ("failure", "CAST(x'eda0bd' AS TEXT)"),
}
#: Whose row still says what came of the evaluation: it is not evaluated again.
READABLE = {
    *("cost: a number of numpy", "cost: a whole number of numpy", "data: number", "message: bytes"),
    *("message: no UTF-8", "detail: no UTF-8", "kind: bytes", "kind: no UTF-8"),
}


class Counts:
    """Gives its candidate, and fails as candidate 1."""

    fingerprint = "counts"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, candidate: int, case: Case) -> Any:
        self.calls.append(candidate)
        return Failed("mine", "m", "d", 0.5) if candidate == 1 else Ok(float(candidate), {"n": candidate}, 0.5)


@pytest.fixture(params=LEFT)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A ledger with an unfinished run one of whose rows holds something odd."""
    path = tmp_path / "ledger.db"
    study = Study(Sweep(range(6)), Counts(), window=2)
    replace(study, stop=MaxTrials(4)).run(ledger=path, run="run").ledger.close()
    column, value = LEFT[request.param]
    trial = 1 if column in ("failure", "message", "detail") else 2
    place, values = (value, ()) if isinstance(value, str) and value.startswith("CAST") else ("?", (value,))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE evaluation SET {column} = {place} WHERE trial = {trial}", values)
        db.commit()
    return request.param, path


@pytest.mark.slow
def test_a_ledger_that_was_poisoned_before_resumes(left: tuple[str, Path]) -> None:
    name, path = left
    counts = Counts()
    study = Study(Sweep(range(6)), counts, window=2)
    resumed = study.run(ledger=path, run="run")
    assert resumed.trace == study.run().trace
    again = [] if name in READABLE else [2]
    assert counts.calls[: len(again) + 2] == [*again, 4, 5]
    with resumed.ledger:
        outcomes = {result.number: result.outcomes["0"] for result in resumed.results()}
    expected = 7.0 if "whole number" in name else 0.5
    assert [outcome.cost for outcome in outcomes.values()] == [0.5, 0.5, expected, 0.5, 0.5, 0.5]
    assert isinstance(outcomes[1], Failed) and isinstance(outcomes[2], Ok)


@pytest.mark.slow
def test_a_ledger_that_was_poisoned_before_is_shown_reported_and_exported(
    left: tuple[str, Path], tmp_path: Path
) -> None:
    name, path = left
    for arguments in (
        ["runs"],
        ["show", "run"],
        ["show", "run", "--json"],
        ["report", "run", "-o", str(tmp_path / "report.html")],
        ["export", "run", "-o", str(tmp_path / "trials.csv")],
        ["export", "run", "--evaluations", "-o", str(tmp_path / "evaluations.jsonl")],
        ["export", "run", "--evaluations", "-o", str(tmp_path / "evaluations.csv")],
    ):
        result = CliRunner().invoke(cli, [*arguments, "--ledger", str(path)])
        # Times no evaluator could write are another program's work, which the shell may refuse; outcomes are not.
        allowed = (0, 3) if name.startswith(("started", "seconds", "tries")) else (0,)
        assert result.exit_code in allowed, f"{arguments}: {result.output} {result.exception!r}"
    with Ledger(path, readonly=True) as ledger:
        unreadable = {result.number for result in ledger.results(1) if "cannot be read" in str(result.failures)}
    assert unreadable == (set() if name in READABLE else {2})


@pytest.mark.slow
@pytest.mark.parametrize(("column", "value"), [("score", b"\xff"), ("score", "high"), ("dropped", b"\xff")])
def test_a_trial_whose_row_is_odd_is_told_again(column: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study = Study(Sweep(range(6)), Counts(), window=2)
    replace(study, stop=MaxTrials(4)).run(ledger=path, run="run").ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE trial SET {column} = ? WHERE number = 2", (value,))
        db.commit()
    with Ledger(path, readonly=True) as ledger:
        assert ledger.run("run").best == 3.0 and len(list(ledger.results(1))) == 4
    resumed = study.run(ledger=path, run="run")
    assert resumed.trace == study.run().trace
    with resumed.ledger:
        assert [result.score for result in resumed.results()] == [0.0, None, 2.0, 3.0, 4.0, 5.0]


def test_what_cannot_be_read_answers_for_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    counts = Counts()
    study = Study(Sweep([2, 3]), counts)
    study.run(ledger=path, run="first").ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE evaluation SET data = '{' WHERE trial = 0")
        db.commit()
    second = study.run(ledger=path, run="second", reuse="ledger")
    assert counts.calls == [2, 3, 2] and second.progress.reused == 1
    with second.ledger:
        assert [result.outcomes["0"].data for result in second.results()] == [{"n": 2}, {"n": 3}]  # type: ignore[union-attr]


def test_a_blob_keeps_the_bytes_it_was_made_of() -> None:
    def evaluate(candidate: int, case: Case) -> Ok:
        return Ok(1.0, [Blob.of(buffer), Blob.of(memoryview(buffer))])  # type: ignore[arg-type]

    buffer = bytearray(b"before")
    made = Blob.of(buffer)
    buffer[:] = b"later!"
    assert made.read() == b"before"
    run = Study(Sweep([1]), evaluate).run()
    with run.ledger:
        (result,) = run.results()
        assert [blob.read() for blob in result.outcomes["0"].data] == [b"later!"] * 2  # type: ignore[union-attr]
