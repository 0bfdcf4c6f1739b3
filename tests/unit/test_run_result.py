"""The result of a run speaks: its best, its failures, its tables, and how a notebook shows it."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, Ledger, MaxTrials, Run, RunView, Study, Sweep
from fanfold.cards import picture
from fanfold.errors import NoResult
from fanfold.running import Go
from fanfold.stop import explained
from fanfold.summary import Summary
from fanfold.texts import count, duration, money, number


def fragile(candidate: int, case: Case) -> float:
    if candidate % 3 == 0:
        raise ValueError(f"{candidate} is not for me")
    return candidate + case.data


def hopeless(candidate: int, case: Case) -> float:
    raise ValueError("nothing works here")


def test_the_best_of_a_run_without_a_result_raises_with_the_first_failure() -> None:
    run = Study(Sweep([1, 2]), hopeless).run()
    assert run.best_or_none is None
    with pytest.raises(NoResult) as raised:
        run.best  # noqa: B018
    text = str(raised.value)
    assert "no complete result after 2 trials: 2 evaluations failed, the first in trial 0 on case '0'" in text
    assert text.endswith("ValueError: nothing works here\n") and "in hopeless" in text


def test_a_run_without_failures_or_results_says_why_it_stopped() -> None:
    run = Study(Sweep([1]), fragile, cases=[0], aggregate=lambda scores: float("nan")).run()
    with pytest.raises(NoResult, match="after 1 trial: Finished: there is nothing more to try"):
        run.best  # noqa: B018
    run.ledger.close()
    with pytest.raises(NoResult, match="nothing more to try"):  # also once the ledger is closed
        run.best  # noqa: B018


def test_the_best_has_a_score_and_everything_a_result_has() -> None:
    run = Study(Sweep([1, 2]), fragile, cases=[0.5, 1]).run()
    assert run.best.score * 2 == 5.5 and run.best.candidate == 2 and run.best.complete and not run.best.failures


def test_results_of_a_long_run_are_read_without_counting_all_of_it_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Study(Sweep(range(30)), lambda candidate, case: -candidate, minimize=True).run()
    counted, info = [], Ledger.info
    monkeypatch.setattr(Ledger, "info", lambda ledger, id: counted.append(id) or info(ledger, id))
    assert [result.score for result in run.results()] == [-candidate for candidate in range(30)]
    assert len(counted) == 1


def test_failures_and_cells_of_a_run_are_at_hand() -> None:
    run = Study(Sweep(range(6)), fragile, cases=[0, 1]).run()
    assert [(row.trial, row.case, row.failure) for row in run.failures] == [
        (trial, case, "error") for trial in (0, 3) for case in ("0", "1")
    ]
    assert "in fragile" in (run.failures[0].detail or "")
    assert [row.score for row in run.cells(failed=False)] == [1, 2, 2, 3, 4, 5, 5, 6]
    assert len(list(run.cells())) == 12


class Reader(HTMLParser):
    """Collects the tags, the attributes and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_a_run_as_a_small_page_without_script_or_network() -> None:
    run = Study(Sweep(range(12)), fragile, cases=[0, 1], stop=MaxTrials(11)).run()
    page = run._repr_html_()
    read = Reader(page)
    assert len(page) < 6000 and set(read.tags) <= {"div", "b", "p", "table", "tr", "td", "svg", "path", "text"}
    assert not [name for name, value in read.attributes if name.startswith("on") or "//" in (value or "")]
    assert "Stopped after 11 trials, as asked." in read.text and "best score" in read.text and "10.5" in read.text
    assert "best candidate10" in read.text and "failures8" in read.text


@pytest.mark.parametrize("name", ["</td><script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_a_hostile_candidate_is_shown_as_text(name: str) -> None:
    run = Study(Sweep([name]), lambda candidate, case: 1.0).run()
    read = Reader(run._repr_html_())
    assert "script" not in read.tags and "img" not in read.tags and name[:20] in read.text


def test_a_notebook_shows_a_study_before_it_has_run() -> None:
    study = Study(Sweep(range(12)), fragile, cases=[0, 1], stop=MaxTrials(11), name="mine")
    read = Reader(study._repr_html_())
    assert "mine" in read.text and "fragile" in read.text and "Sweep" in read.text and "MaxTrials(11)" in read.text


def test_a_picture_is_steps_from_the_first_to_the_last_value() -> None:
    drawn = picture([(1, 0.5), (4, 0.75), (10, 0.75)], "best", "trials")
    assert re.findall(r">([^<>]+)</text>", drawn) == ["0.5", "0.75", "best", "1", "trials", "10"]
    assert picture([], "best", "trials") == "" == picture([(1, 2)], "best", "trials")
    many = picture([(n, n / 7) for n in range(100_000)], "best", "trials")
    assert len(many) < 20_000 and ">99,999<" in many
    assert ">3<" in picture([(1, 3.0), (2, float("nan")), (5, 3.0)], "best", "trials")


def test_frames_have_a_row_for_each_trial_or_evaluation(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    run: Run[int] = Study(Sweep(range(6)), fragile, cases=[0, 1]).run()
    assert isinstance(run.frame(), pandas.DataFrame)
    assert len(run.frame()) == 6 and len(run.frame("evaluations")) == 12


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.8166666, "0.8167"), (3.0, "3"), (12.5, "12.5"), (999.96, "1,000"), (1234.4, "1,234"), (0.0, "0")]
    + [(-0.0, "0"), (-0.00012345, "-0.0001234"), (1e-7, "1e-7"), (1e20, "1e20"), (123456.7, "123,457")],
)
def test_numbers_read_as_a_person_writes_them(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0117, "$0.0117"), (12.5, "$12.50"), (1234.5, "$1,234.50"), (0, "$0"), (5, "$5.00"), (0.01, "$0.01")]
    + [(0.1234567, "$0.123"), (3e-7, "$0.0000003"), (None, "unknown")],
)
def test_money_is_dollars_with_three_digits_that_count(amount: float | None, text: str) -> None:
    assert money(amount) == text
    assert money(amount, simulated=True) == f"{text} (simulated)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0004, "0.4 ms"), (0.012, "12 ms"), (0.4, "0.4 s"), (1.94, "1.9 s"), (9.96, "10 s"), (12, "12 s")]
    + [(59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")],
)
def test_durations_read_as_a_person_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_counts_agree_with_their_noun() -> None:
    assert [count(n, "trial") for n in (0, 1, 2, 1234)] == ["0 trials", "1 trial", "2 trials", "1,234 trials"]


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("1,200 trials", "Stopped after 1,200 trials, as asked."),
        ("75 calls", "Stopped: the search has used its 75 calls."),
        ("time limit of 2h", "Stopped at the time limit of 2h."),
        ("cost limit of 5", "Stopped at the cost limit of 5."),
        ("target of 0.9 reached", "Stopped: the target of 0.9 is reached."),
        ("no improvement in 20 trials", "Stopped: no improvement in 20 trials."),
        ("the strategy has nothing more to ask", "Finished: there is nothing more to try."),
        ("interrupted", "Interrupted: resume it to continue."),
        (None, ""),
    ],
)
def test_the_reason_to_stop_is_a_sentence(reason: str | None, sentence: str) -> None:
    assert explained(reason) == sentence
    assert explained("5 trials", "row") == "Stopped after 5 rows, as asked."


@pytest.mark.slow
def test_a_notebook_follows_a_run_and_then_shows_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    nbformat: Any = pytest.importorskip("nbformat")
    nbclient: Any = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = (
        "from fanfold import *\n"
        "def evaluate(candidate, case):\n"
        "    if candidate == 3: raise ValueError('<b>no</b>')\n"
        "    return candidate\n"
        "study = Study(Sweep(range(60)), evaluate, stop=MaxTrials(50))\n"
    )
    cells = [code + "study.run()", "study.run(progress=False)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    followed, silent = ([output["data"] for output in cell.outputs] for cell in notebook.cells)
    assert len(followed) == 2 and len(silent) == 1
    assert followed[0]["text/plain"] == "50/50 trials, 50 evaluations, best 49"
    assert "&lt;b&gt;no" in followed[0]["text/html"] and "Stopped after 50 trials" in followed[1]["text/html"]


def test_the_file_alone_holds_a_run_while_its_result_is_still_used(tmp_path: Path) -> None:
    async def conclude(run: Run[int], go: Go) -> Summary:
        beside: Run[int] = await go("more", Study(Sweep([7]), fragile, cases=[0]))
        return Summary({"beside": beside.best.score})

    study = Study(Sweep([1, 2]), fragile, cases=[0, 1], conclude=conclude)
    run = study.run(ledger=tmp_path / "runs.db", run="first")
    shutil.copy(tmp_path / "runs.db", tmp_path / "copy.db")
    with RunView.open(tmp_path / "copy.db", "first") as view:
        assert (view.status, view.progress().evaluations) == ("finished", 4)
        assert view.summary() == run.view.summary() and run.summary is not None
