"""What the server of `fanfold view` answers: every page of a run, of several ledgers, kept and fresh."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import Asker, asking
from click.testing import CliRunner

from fanfold import Blob, Case, Float, MaxTrials, Ok, Space, Study
from fanfold.cli import cli
from fanfold.ledger import Ledger, RunView
from fanfold.strategies import Genetic


def evaluate(candidate: dict[str, float], case: Case) -> Ok:
    if candidate["x"] + case.data > 1.7:
        raise ValueError(f"{candidate['x']} is too large")
    return Ok(1 - abs(candidate["x"] - case.data), {"near": case.data, "file": Blob.of(b"bytes")}, cost=0.01)


def study(**changes: Any) -> Study[Any]:
    settings = {"cases": [0.1 * at for at in range(10)], "stop": MaxTrials(60), "failed_score": 0.0, "seed": 1}
    return Study(Genetic(Space(x=Float(0, 1)), population=10), evaluate, **(settings | changes))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "runs.db"
    for name, seed in (("first", 1), ("second", 2)):
        study(seed=seed).run(ledger=path, run=name, executor="inline").ledger.close()
    return path


@pytest.fixture(scope="module")
def server(ledger: Path) -> Iterator[Asker]:
    with asking(ledger) as asker:
        yield asker


RUN = "/api/run/0/first"


def test_the_page_and_its_files_are_served_and_nothing_else(server: Asker) -> None:
    for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/app.css", "text/css")):
        status, headers, body = server.ask(path, headers={})
        assert status == 200 and headers["content-type"].startswith(kind) and body
    assert b"<script>" not in server.ask("/")[2] and b"style=" not in server.ask("/")[2]
    assert server.ask("/saved.py")[0] == server.ask("/api")[0] == server.ask("/api/run/0/first/secrets")[0] == 404


def test_runs_are_listed_newest_first(server: Asker, ledger: Path) -> None:
    page = server.get("/api/runs")
    assert [run["name"] for run in page["runs"]] == ["second", "first"] and not page["saved"]
    assert page["ledgers"] == [{"id": 0, "name": "runs.db", "path": str(ledger)}] and page["next"] is None
    assert page["runs"][0]["state"] == "finished" and page["runs"][0]["trials"] == 60 and page["runs"][0]["spark"]


def test_counts_agree_with_the_view_of_the_ledger(server: Asker, ledger: Path) -> None:
    page = server.get(RUN)
    with RunView.open(ledger, "first") as view:
        progress, best = view.progress(), view.best()
    assert best is not None
    assert page["progress"]["told"] == progress.told == 60 and page["progress"]["evaluations"] == progress.evaluations
    assert page["best"]["trial"] == best.number and page["best"]["score"] == best.score
    history = page["history"]
    assert len({len(history[name]) for name in ("order", "trial", "score", "best", "evaluations", "seconds")}) == 1
    assert history["best"][-1] == best.score and history["best"] == sorted(history["best"])
    assert page["eta"] is None and page["can"]["stop"] is False and page["can"]["note"] is True


def test_trials_are_paged_by_key_in_every_order(tmp_path: Path) -> None:
    path = tmp_path / "many.db"
    wide = Study(Genetic(Space(x=Float(0, 1)), population=50), lambda c, case: c["x"], stop=MaxTrials(450))
    wide.run(ledger=path, run="many", executor="inline").ledger.close()
    with asking(path) as server:
        for order in ("best", "number", "told"):
            rows: list[Any] = []
            after = ""
            while True:
                page = server.get(f"/api/run/0/many/trials?order={order}&after={after}")
                assert len(page["rows"]) <= 200
                rows += page["rows"]
                if page["next"] is None:
                    break
                after = page["next"]
            assert sorted(row["trial"] for row in rows) == list(range(450)), order
            if order == "best":
                assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
        assert server.ask("/api/run/0/many/trials?order=sideways")[0] == 400
        assert server.ask("/api/run/0/many/trials?after=zebra")[0] == 400


def test_a_candidate_has_its_cells_family_files_and_neighbours(server: Asker) -> None:
    number = server.get(RUN)["best"]["trial"]
    page = server.get(f"{RUN}/trial/{number}")
    assert [cell["position"] for cell in page["cells"]] == list(range(10)) and page["next"] is None
    assert page["previous"] == number - 1 and json.loads(page["candidate_text"])["x"]
    assert [parent["trial"] for parent in page["parents"]] == page["trial"]["parents"]
    (file,) = page["files"]
    status, headers, body = server.ask(file["href"])
    assert status == 200 and body == b"bytes" and headers["content-disposition"].startswith("attachment")
    assert server.get(f"{RUN}/text?trials={number},0")["texts"].keys() == {str(number), "0"}
    assert server.ask(f"{RUN}/trial/999")[0] == 404 and server.ask(f"{RUN}/trial/x")[0] == 400


def test_a_cell_has_its_data_or_its_traceback_and_the_way_to_the_next(server: Asker) -> None:
    (group,) = server.get(f"{RUN}/failures")["groups"]
    failed = group["cells"][0]
    page = server.get(f"{RUN}/cell/{failed['trial']}/{failed['position']}")
    assert "too large" in page["message"] and "ValueError" in page["traceback"] and page["cell"]["failure"] == "error"
    fine = server.get(f"{RUN}/cell/0/0")
    assert fine["calls"] == [] and fine["previous"] is None and fine["following"] == 1 and fine["traceback"] is None
    assert server.ask(f"{RUN}/cell/0/999")[0] == 404


def test_failures_are_grouped_and_come_with_a_command_that_works_when_pasted(server: Asker, ledger: Path) -> None:
    page = server.get(f"{RUN}/failures")
    assert page["command"] == f"fanfold resume first --retry-failed --ledger {ledger}"
    (group,) = page["groups"]
    assert group["kind"] == "error" and group["count"] == server.get(RUN)["progress"]["failures"]


def test_tiles_hold_what_the_cells_hold(server: Asker, ledger: Path) -> None:
    head = server.get(f"{RUN}/matrix")
    assert (head["rows"], head["columns"]) == (60, 10) and head["levels"][0]["factor"] == 1
    status, headers, tile = server.ask(f"{RUN}/tile?level=0&row=0&column=0&mark={head['mark']}")
    assert status == 200 and len(tile) == 600
    with RunView.open(ledger, "first") as view:
        rows = {row: view.matrix([number]).cells[0] for row, number in enumerate(head["trials"])}
    for row, cells in rows.items():
        for column, cell in enumerate(cells):
            byte = tile[row * 10 + column]
            if isinstance(cell, str):
                assert byte == 1
            elif cell is None:
                assert byte == 0
            else:
                value = head["low"] + (byte - 2) / 253 * (head["high"] - head["low"])
                assert abs(value - cell) < 0.01
    again = server.ask(
        f"{RUN}/tile?level=0&row=0&column=0", headers={**server.headers, "if-none-match": headers["etag"]}
    )
    assert again[0] == 304 and again[2] == b""


@pytest.mark.parametrize("order", ["best", "number", "told", "similar"])
@pytest.mark.parametrize("only", ["", "wrong", "disputed", "changed"])
def test_a_matrix_can_be_arranged_and_filtered(server: Asker, order: str, only: str) -> None:
    query = f"order={order}&cases=difficulty&only={only}"
    head = server.get(f"{RUN}/matrix?{query}")
    assert sorted(head["trials"]) == list(range(60)) and set(head["positions"]) <= set(range(10))
    tile = server.ask(f"{RUN}/tile?{query}&level=0&row=0&column=0")[2]
    assert len(tile) == head["rows"] * head["columns"]


def test_a_matrix_that_cannot_be_is_refused(server: Asker) -> None:
    assert server.ask(f"{RUN}/matrix?order=upwards")[0] == server.ask(f"{RUN}/tile?level=99")[0] == 400
    assert server.ask(f"{RUN}/tile?level=0&row=999&column=999")[2] == b""


def test_the_lineage_leads_from_the_first_to_the_best(server: Asker) -> None:
    page, best = server.get(f"{RUN}/lineage"), server.get(RUN)["best"]["trial"]
    nodes = {node["trial"]: node for node in page["nodes"]}
    assert len(nodes) == 60 and page["thinned"] == 0 and nodes[best]["line"]
    for node in nodes.values():
        for parent in node["parents"]:
            assert nodes[parent]["generation"] < node["generation"]
            assert not node["line"] or nodes[parent]["line"]
    assert sum(way["made"] for way in page["ways"]) == sum(bool(node["by"]) for node in nodes.values())


def test_the_work_page_has_a_span_for_every_evaluation(server: Asker) -> None:
    page, evaluations = server.get(f"{RUN}/work"), server.get(RUN)["progress"]["evaluations"]
    reused = server.get(RUN)["progress"]["reused"]
    assert len(page["slots"]["spans"]) == evaluations - reused and page["slots"]["thinned"] == 0
    assert page["latency"][0]["name"] == "evaluation" and page["models"]["rows"] == []


def test_two_runs_are_compared_on_the_cases_they_share(server: Asker) -> None:
    page = server.get("/api/compare?run=0/first&run=0/second")
    assert [run["name"] for run in page["runs"]] == ["first", "second"]
    (difference,) = page["differences"]
    assert difference["run"] == "second" and difference["n"] == 10
    assert difference["better"] + difference["worse"] + difference["equal"] == 10
    assert difference["low"] <= difference["difference"] <= difference["high"] and difference["test"] == "sign flip"
    assert {"name": "seed", "values": [1, 2]} in page["settings"] and page["costs"][-1]["costs"].count(None) <= 1
    assert server.ask("/api/compare?run=0/first")[0] == 400


def test_the_search_finds_runs_and_candidates(server: Asker) -> None:
    assert [found["path"] for found in server.get("/api/search?q=SECOND")["results"]] == ["#/run/0/second"]
    assert any("/trial/" in found["path"] for found in server.get("/api/search?q=x")["results"])
    assert server.get("/api/search?q=")["results"] == server.get("/api/search?q=zebra")["results"] == []


def test_several_ledgers_are_shown_together_and_no_other_file(server: Asker, ledger: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    study(stop=MaxTrials(12)).run(ledger=other, run="first", executor="inline").ledger.close()
    with asking(ledger, other) as both:
        newest = both.get("/api/runs")["runs"][0]
        assert (newest["ledger"], newest["name"]) == (1, "first")
        assert both.get("/api/run/1/first")["progress"]["told"] == 12
        assert len(both.get("/api/compare?run=0/first&run=1/first")["runs"]) == 2
        assert both.ask("/api/run/2/first")[0] == 404


def test_scores_that_are_to_be_low_are_shown_as_the_evaluator_gave_them(tmp_path: Path) -> None:
    path = tmp_path / "low.db"
    loss = Study(Genetic(Space(x=Float(1, 2)), population=5), lambda c, case: c["x"], stop=MaxTrials(20), minimize=True)
    loss.run(ledger=path, run="low", executor="inline").ledger.close()
    with asking(path) as server:
        page, rows = server.get("/api/run/0/low"), server.get("/api/run/0/low/trials")["rows"]
        assert page["best"]["score"] == rows[0]["score"] == min(row["score"] for row in rows) > 1
        assert page["history"]["best"] == sorted(page["history"]["best"], reverse=True)
        head = server.get("/api/run/0/low/matrix")
        assert head["low"] == max(row["score"] for row in rows) and head["high"] == page["best"]["score"]


def test_a_resumed_run_shows_the_limit_it_has_now(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    for words in (["run", "functions", "--trials", "4", "--run", "it"], ["resume", "it", "--max-trials", "9"]):
        done = CliRunner().invoke(cli, [*words, "--ledger", path, "--executor", "inline"])
        assert done.exit_code == 0, done.output
    with asking(Path(path)) as server:
        page = server.get("/api/run/0/it")
    assert page["limits"]["max_trials"] == page["progress"]["goal"] == page["progress"]["told"] == 9


def test_prometheus_can_scrape_the_runs(server: Asker) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    status, headers, body = server.ask("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in parser.text_string_to_metric_families(body.decode())}
    told = {sample.labels["run"]: sample.value for sample in families["fanfold_run_trials"].samples}
    assert told == {"first": 60.0, "second": 60.0}


@pytest.mark.slow
def test_a_large_run_is_sent_in_small_pieces(tmp_path: Path) -> None:
    path, rng = tmp_path / "large.db", random.Random(0)
    genetic = Genetic(Space(x=Float(0, 1)), population=50)
    wide = Study(genetic, lambda c, case: rng.random(), list(range(300)), stop=MaxTrials(300))
    wide.run(ledger=path, run="large", executor="inline").ledger.close()
    with asking(path) as server:
        for page in ("", "/trials", "/matrix", "/lineage", "/work", "/trial/0", "/tile?level=0&row=0&column=0"):
            assert len(server.ask(f"/api/run/0/large{page}")[2]) < 2**20, page
        head = server.get("/api/run/0/large/matrix")
        coarse = head["levels"][-1]
        assert coarse["rows"] <= 64 and coarse["columns"] <= 256
        tile = server.ask(f"/api/run/0/large/tile?level={len(head['levels']) - 1}&row=0&column=0")[2]
        assert len(tile) == coarse["rows"] * coarse["columns"] and set(tile) - {0, 1}
        assert server.get("/api/run/0/large/trial/0")["next"] == 199
        assert len(server.get("/api/run/0/large/trial/0?after=199")["cells"]) == 100


def test_reading_changes_nothing_in_a_ledger(ledger: Path, server: Asker) -> None:
    with Ledger(ledger, readonly=True) as opened:
        before = opened.data_version
        for path in ("", "/trials", "/matrix", "/lineage", "/work", "/failures", "/trial/0", "/cell/0/0"):
            server.get(f"{RUN}{path}")
        assert opened.data_version == before
