"""The HTML report: self-contained, escaped, and drawn from what the ledger holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanfold import Case, Ok, Study, Sweep
from fanfold.errors import LedgerError
from fanfold.ledger import Ledger, RunView
from fanfold.report import write_report
from fanfold.report.chart import line_chart
from fanfold.summary import Curve, Section, Summary

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
HTML = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "b", "small", "pre"}
ALLOWED = HTML | {"svg", "line", "text", "circle", "path", "table", "tr", "th", "td"}


class Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    return reader


def assert_harmless(reader: Reader) -> None:
    for tag, attributes in reader.tags:
        assert tag in ALLOWED
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("href", "src")
            assert "url(" not in (value or "")


def run_with(tmp_path: Path, candidate: Any, message: str = "", case: str = "a") -> Path:
    def evaluate(candidate: Any, case: Case) -> Ok:
        if message and case.data == 2:
            raise ValueError(message)
        return Ok(1.0 if case.data == 1 else 0.0, {"text": message})

    ledger = tmp_path / "runs.db"
    cases = [Case(case, 1), Case(f"{case}-2", 2)]
    Study(Sweep([candidate]), evaluate, cases, failed_score=0.0).run(ledger=ledger, run="it").ledger.close()
    return write_report(ledger, "it", tmp_path / "it.html")


def test_nothing_a_run_contains_can_become_markup(tmp_path: Path) -> None:
    reader = read(run_with(tmp_path, {"prompt": EVIL, EVIL: 1}, message=EVIL, case=EVIL))
    assert_harmless(reader)
    assert reader.text.count("<script>alert(1)</script>") >= 4  # shown as text: candidate, its key, message, case


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_no_text_at_all_can_become_markup(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    reader = read(run_with(tmp_path_factory.mktemp("report"), [text], message=f"<{text}", case=text))
    assert_harmless(reader)


def test_a_report_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    path = run_with(tmp_path, 3)
    policies = [a.get("content") for tag, a in read(path).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "http://" not in path.read_text() and "https://" not in path.read_text()


@pytest.mark.slow
def test_a_long_run_is_drawn_with_a_bounded_number_of_points(tmp_path: Path) -> None:
    study = Study(Sweep(range(4500)), lambda candidate, case: float(candidate))  # each trial is a new best
    run = study.run(ledger=tmp_path / "runs.db", run="long", executor="inline")
    text = write_report(run.ledger, "long", tmp_path / "long.html").read_text()
    run.ledger.close()
    assert 500 < text.count("<circle") <= 2000
    assert text.count("<tr>") == 31  # the best thirty and their head


@pytest.mark.parametrize("scores", [[1.7e308, -1.7e308], [5.0], [0.0, 0.0], [1e-320, 0.0]])
def test_any_finite_scores_can_be_drawn(tmp_path: Path, scores: list[float]) -> None:
    study = Study(Sweep(scores), lambda candidate, case: candidate)
    study.run(ledger=tmp_path / "runs.db", run="odd").ledger.close()
    text = write_report(tmp_path / "runs.db", "odd", tmp_path / "odd.html").read_text()
    assert "nan" not in text and "inf" not in text.replace("info", "")


def test_a_run_without_any_score_still_has_a_report(tmp_path: Path) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        raise RuntimeError("no luck")

    Study(Sweep([1, 2]), evaluate).run(ledger=tmp_path / "runs.db", run="sad").ledger.close()
    text = read(write_report(tmp_path / "runs.db", "sad", tmp_path / "sad.html")).text
    assert "No trial has finished completely." in text and "RuntimeError: no luck" in text


def test_the_best_is_the_first_of_equals_and_failures_are_grouped_by_kind(tmp_path: Path) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        if candidate == 0:
            return float("nan")
        if candidate > 3:
            raise ValueError(f"too large: {candidate}")
        return 1.0

    run = Study(Sweep(range(6)), evaluate).run(ledger=tmp_path / "runs.db", run="it")
    view = RunView.open(run.ledger, "last")
    assert list(view.numbers(order="best", which="complete", count=2)) == [1, 2]
    failures = view.failures()
    assert [(kind.kind, kind.count, kind.trial) for kind in failures] == [("error", 2, 4), ("bad-score", 1, 0)]
    assert failures[0].message == "ValueError: too large: 4"


def test_a_run_that_claims_to_run_without_a_process_is_called_interrupted(tmp_path: Path) -> None:
    from fanfold.ledger import RunLock

    path = tmp_path / "runs.db"
    run = Study(Sweep([1]), lambda candidate, case: 1.0).run(ledger=path, run="it")
    run.ledger.writer.execute("UPDATE run SET status = 'running'")
    view = RunView.open(run.ledger, "it")
    before = set(tmp_path.iterdir())
    assert view.status == "interrupted"
    assert set(tmp_path.iterdir()) == before
    lock = RunLock(path, "it")
    assert view.status == "running"
    lock.release()
    run.ledger.close()


def test_last_in_an_empty_ledger_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with Ledger(tmp_path / "runs.db") as ledger, pytest.raises(LedgerError, match="no runs yet"):
        RunView.open(ledger, "last")


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.text(max_size=8), st.lists(st.tuples(st.floats(0, 1e9), st.floats()), max_size=30)), max_size=9
    ),
    st.text(max_size=10),
)
def test_any_curves_are_drawn_as_well_formed_svg_and_their_names_cannot_break_out(
    curves: list[tuple[str, list[tuple[float, float]]]], across: str
) -> None:
    drawn = line_chart([Curve(name, tuple(sorted(points))) for name, points in curves], across)
    assert "nan" not in drawn.partition("<text")[0] and "inf" not in drawn.partition("<text")[0]
    if drawn:
        cleaned = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "", drawn)
        ElementTree.fromstring(cleaned)


def test_a_hostile_name_of_a_curve_is_only_text() -> None:
    drawn = line_chart([Curve("<script>x</script>", ((0.0, 1.0), (1.0, 2.0)))], '"><b>')
    assert "<script>" not in drawn and '"><b>' not in drawn and 'class="curve c0"' in drawn


def test_a_section_with_curves_has_a_chart_in_the_report(tmp_path: Path) -> None:
    async def conclude(run: Any, go: Any) -> Summary:
        return Summary({}, (Section("Course", "", (), (), (Curve("behind", ((1.0, 3.0), (2.0, 1.0))),), "episodes"),))

    study = Study(Sweep([1, 2]), lambda candidate, case: candidate, conclude=conclude)
    study.run(ledger=tmp_path / "l.db", run="r")
    text = write_report(tmp_path / "l.db", "r", tmp_path / "r.html").read_text()
    assert text.count('class="curve c0"') == 1 and "behind" in text and "episodes" in text
