"""The saved page of a run: self-contained, escaped, and made of what the ledger holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanfold import Case, Ok, Study, Sweep
from fanfold.errors import LedgerError
from fanfold.ledger import Ledger, RunView
from fanfold.report import saved, write_report
from fanfold.report.assets import asset
from fanfold.report.text_chart import text_chart
from fanfold.summary import Curve, Section, Summary

EVIL = "</script></pre><script>alert(1)</script><!--<img src=x onerror=alert(2)>\"'&"
#: All that the file consists of; everything else is made by its script, from its data, as text.
ALLOWED = {"html", "head", "meta", "link", "title", "style", "body", "div", "noscript", "script"}


class Reader(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.open: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.open = dict(attributes).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self.open = None

    def handle_data(self, data: str) -> None:
        if self.open is not None:
            self.inside[self.open] = self.inside.get(self.open, "") + data

    @property
    def data(self) -> dict[str, Any]:
        """The payloads by their paths."""
        data: dict[str, Any] = json.loads(self.inside["data"])
        return data


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    return reader


def assert_harmless(reader: Reader) -> None:
    tags = [tag for tag, _ in reader.tags]
    assert set(tags) <= ALLOWED and tags.count("script") == 2 and tags.count("style") == tags.count("link") == 1
    for _, attributes in reader.tags:
        for name, value in attributes.items():
            assert not name.startswith("on") and name != "src"
            assert name != "href" or (value or "").startswith("data:image/svg+xml;base64,")
    assert "<" not in reader.inside["data"]
    assert reader.inside["script"].strip() == asset("app.js").replace("</script", "<\\/script").strip()


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
    texts = json.dumps(reader.data)
    assert texts.count("<script>alert(1)</script>") >= 4, "kept as text: candidate, its key, message, case"


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_no_text_at_all_can_become_markup(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    reader = read(run_with(tmp_path_factory.mktemp("report"), [text], message=f"<{text}", case=text))
    assert_harmless(reader)


def test_a_report_runs_its_own_script_only_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    path = run_with(tmp_path, 3)
    reader = read(path)
    (policy,) = [a.get("content") for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy"]
    hashes = [
        base64.b64encode(hashlib.sha256(reader.inside[tag].encode()).digest()).decode() for tag in ("script", "style")
    ]
    script, style = hashes
    assert policy == f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:"
    outside = re.sub(r"http://www\.w3\.org/\S+?[\"'`]", "", path.read_text())  # names of namespaces
    assert not re.search(r"(src|href|url|import)\s*[=(]\s*[\"']?https?:", outside)


@pytest.mark.slow
def test_a_large_run_is_thinned_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "MOST_BYTES", 400_000)
    study = Study(Sweep(range(4500)), lambda candidate, case: float(candidate))  # each trial is a new best
    run = study.run(ledger=tmp_path / "runs.db", run="long", executor="inline")
    path = write_report(run.ledger, "long", tmp_path / "long.html")
    run.ledger.close()
    data = read(path).data
    overview = data["/api/run/0/long"]
    assert len(overview["history"]["order"]) <= 4500 and overview["progress"]["told"] == 4500
    assert path.stat().st_size < 400_000 + len(asset("app.js")) + len(asset("app.css")) + 10_000
    missing = next(part["text"] for part in overview["sections"] if part["title"] == "What this file leaves out")
    kept = sum(name.startswith("/api/run/0/long/trial/") for name in data)
    assert f"the best {kept:,} of 4,500" in missing and "/api/run/0/long/trial/4499" in data


@pytest.mark.parametrize("scores", [[1.7e308, -1.7e308], [5.0], [0.0, 0.0], [1e-320, 0.0]])
def test_any_finite_scores_can_be_drawn(tmp_path: Path, scores: list[float]) -> None:
    study = Study(Sweep(scores), lambda candidate, case: candidate)
    study.run(ledger=tmp_path / "runs.db", run="odd").ledger.close()
    data = read(write_report(tmp_path / "runs.db", "odd", tmp_path / "odd.html")).data  # JSON knows no NaN
    assert data["/api/run/0/odd"]["history"]["score"] == scores


def test_a_run_without_any_score_still_has_a_report(tmp_path: Path) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        raise RuntimeError("no luck")

    Study(Sweep([1, 2]), evaluate).run(ledger=tmp_path / "runs.db", run="sad").ledger.close()
    data = read(write_report(tmp_path / "runs.db", "sad", tmp_path / "sad.html")).data
    assert data["/api/run/0/sad"]["best"] is None
    (group,) = data["/api/run/0/sad/failures"]["groups"]
    assert group["message"] == "RuntimeError: no luck" and group["count"] == 2
    assert "no luck" in data["/api/run/0/sad/cell/0/0"]["traceback"]


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
def test_any_curves_are_drawn_as_text(curves: list[tuple[str, list[tuple[float, float]]]], across: str) -> None:
    drawn = text_chart([Curve(name, tuple(sorted(points))) for name, points in curves], across)
    assert "\n" in drawn or not drawn


def test_a_section_with_curves_is_in_the_page(tmp_path: Path) -> None:
    async def conclude(run: Any, go: Any) -> Summary:
        return Summary({}, (Section("Course", "", (), (), (Curve("behind", ((1.0, 3.0), (2.0, 1.0))),), "episodes"),))

    study = Study(Sweep([1, 2]), lambda candidate, case: candidate, conclude=conclude)
    study.run(ledger=tmp_path / "l.db", run="r")
    data = read(write_report(tmp_path / "l.db", "r", tmp_path / "r.html")).data
    (section,) = data["/api/run/0/r"]["sections"]
    assert section["across"] == "episodes"
    assert section["curves"] == [{"name": "behind", "points": [[1.0, 3.0], [2.0, 1.0]], "low": [], "high": []}]


def test_a_known_key_is_not_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fanfold import redaction

    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_forms", None)
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret-indeed")
    path = run_with(tmp_path, {"prompt": "use sk-very-secret-indeed"}, message="bad key sk-very-secret-indeed")
    monkeypatch.undo()
    assert "sk-very-secret-indeed" not in path.read_text() and "***" in path.read_text()
