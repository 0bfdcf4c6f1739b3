"""A ledger that somebody wrote to do harm: everything in it stays text, and the server stays up."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import Asker, asking
from browsing import Visitor, serving

from fanfold import Case, Ok, Study, Sweep
from fanfold.ledger import add_comment
from fanfold.report import write_report
from fanfold.summary import Curve, Section, Summary

#: What runs if a page takes text for markup, script, style or an address.
HIT = "window.hit=1"
FORMS = (
    "<script>{hit}</script>",
    "</script><script>{hit}</script>",
    "<img src=x onerror={hit}>",
    "<svg onload={hit}>",
    "<body onload={hit}>",
    "<iframe srcdoc='<script>parent.{hit}</script>'>",
    "<a href=javascript:{hit} autofocus onfocus={hit}>x</a>",
    "<style>@import 'http://evil.example/x.css'</style>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<base href=http://evil.example/>",
    '<meta http-equiv=refresh content="0;url=javascript:{hit}">',
    "<form action=http://evil.example><button autofocus onfocus={hit}>x</button></form>",
    "<math><mtext></mtext><mglyph><style><img src=x onerror={hit}></style>",
    "<details open ontoggle={hit}>",
    '<object data="data:text/html,<script>{hit}</script>">',
    "javascript:{hit}//",
    "data:text/html,<script>{hit}</script>",
    "{{{{constructor.constructor('{hit}')()}}}}",
    "${{{hit}}}",
    "\\u003cscript\\u003e{hit}\\u003c/script\\u003e",
)
WRAPPED = (
    "{form}",
    "\"'>{form}",
    "--></title></style></textarea>{form}",
    "\x00\x1b[2J\u202e{form}",
    "]]>&lt;{form}\r\n\r\n",
)
PAYLOADS = [
    wrap.format(form=form.format(hit=f"{HIT}{number}"))
    for number, (wrap, form) in enumerate(itertools.product(WRAPPED, FORMS))
]
assert len(PAYLOADS) == 100


def evaluate(candidate: dict[str, str], case: Case) -> Ok:
    if case.data["number"] % 3 == 2:
        raise ValueError(candidate["prompt"])
    return Ok(0.5, {"said": candidate["prompt"], candidate["prompt"]: candidate["prompt"]})


async def conclude(run: Any, go: Any) -> Summary:
    sections = [
        Section(text, text, (text, text), ((text, text),), (Curve(text, ((0.0, 1.0), (1.0, 2.0))),), text, up=text)
        for text in PAYLOADS[::10]
    ]
    return Summary({"text": PAYLOADS}, tuple(sections))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "runs.db"
    cases = [Case(text, {"number": number, "text": text}) for number, text in enumerate(PAYLOADS[:12])]
    study = Study(Sweep([{"prompt": text} for text in PAYLOADS]), evaluate, cases, failed_score=0.0, conclude=conclude)
    meta = {"target": PAYLOADS[0], "fields": dict.fromkeys(PAYLOADS, "x"), "note": PAYLOADS}
    study.run(ledger=path, run="it", executor="inline", max_failures=None, meta=meta).ledger.close()
    for number, text in enumerate(PAYLOADS):
        add_comment(path, "it", number, text)
    with sqlite3.connect(path) as db:
        db.execute(
            "UPDATE trial SET dropped = ?, origin = ? WHERE number = 1",
            (PAYLOADS[1], json.dumps({"by": PAYLOADS[2], "parents": [0, "x", -5, 10**30]})),
        )
        db.execute("UPDATE run SET reason = ?", (PAYLOADS[3],))
    return path


@pytest.fixture(scope="module")
def server(ledger: Path) -> Iterator[Asker]:
    with asking(ledger) as asker:
        yield asker


def pages(server: Asker, run: str = "it") -> list[str]:
    base = f"/api/run/0/{run}"
    plain = [f"{base}{page}" for page in ("", "/trials", "/matrix", "/lineage", "/work", "/failures")]
    return [
        "/api/runs",
        *plain,
        *(f"{base}/trial/{at}" for at in range(0, 100, 9)),
        f"{base}/cell/0/0",
        f"{base}/cell/0/2",
    ]


def test_hostile_texts_leave_the_server_as_json_and_nothing_else(server: Asker) -> None:
    seen = ""
    for path in [*pages(server), "/api/search?q=script", "/api/compare?run=0/it&run=0/it"]:
        status, headers, body = server.ask(path)
        assert status in (200, 400) and headers["content-type"] == "application/json", path
        assert headers["x-content-type-options"] == "nosniff"
        json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        seen += body.decode()
    assert all(json.dumps(text)[1:-1][:30] in seen or text in json.dumps(seen) for text in PAYLOADS[:20])


@pytest.mark.slow
def test_hostile_texts_stay_text_in_the_saved_file(ledger: Path, tmp_path: Path) -> None:
    text = write_report(ledger, "it", tmp_path / "it.html").read_text()
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data and json.loads(data)["/api/run/0/it"]["comments"]
    assert text.count("<script") - text.partition("<style>")[0].count("<script") == text.count("<script")
    outside = text.replace(data, "")
    assert HIT not in outside and "evil.example" not in outside


@pytest.mark.slow
def test_a_hundred_hostile_payloads_are_inert_in_a_browser(ledger: Path, browser: Any, tmp_path: Path) -> None:
    saved = write_report(ledger, "it", tmp_path / "it.html")
    with serving(ledger) as address:
        for place in (address, f"{saved.as_uri()}#/run/0/it"):
            visitor = Visitor(browser, place)
            outside: list[str] = []
            visitor.page.on("request", lambda request, seen=outside: seen.append(request.url))
            visitor.page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
            for page in (
                "",
                "/trials",
                "/matrix",
                "/lineage",
                "/work",
                "/failures",
                "/settings",
                "/trial/0",
                "/trial/1",
            ):
                visitor.go(f"#/run/0/it{page}")
                assert not any(key.startswith("hit") for key in visitor.page.evaluate("Object.keys(window)"))
                assert (
                    visitor.page.evaluate("document.querySelectorAll('main script, main iframe, main object').length")
                    == 0
                )
            visitor.go("#/run/0/it/cell/0/2")
            assert PAYLOADS[0] in visitor.page.inner_text("main")
            assert not [url for url in outside if "evil.example" in url], outside
            visitor.close()


DAMAGE = {
    "scores of other kinds": "UPDATE evaluation SET score = CASE position WHEN 0 THEN 'x' ELSE 1e308 END",
    "infinite scores": "UPDATE trial SET score = 9e999",
    "scores that are texts": "UPDATE trial SET score = 'best'",
    "data that is not JSON": "UPDATE evaluation SET data = CAST(x'ff00fe' AS TEXT)",
    "data that is deep": "UPDATE evaluation SET data = printf('%.*c', 5000, '[') || printf('%.*c', 5000, ']')",
    "cells of a megabyte": "UPDATE evaluation SET data = json_quote(printf('%.*c', 1000000, 'x')) WHERE trial < 3",
    "candidates that are not JSON": "UPDATE trial SET candidate = '{' WHERE number = 2",
    "candidates of other kinds": "UPDATE trial SET candidate = '[[[null]]]'",
    "huge candidates": "UPDATE trial SET candidate = json_quote(printf('%.*c', 1000000, 'x')) WHERE number < 3",
    "parents without an end": "UPDATE trial SET origin = '{\"parents\": [' || number || ', 0, 3]}'",
    "origins of other kinds": "UPDATE trial SET origin = '[1, 2]'",
    "times of other kinds": "UPDATE evaluation SET started = 'noon', seconds = -1e300",
    "a run of another time": "UPDATE run SET created = 1e300, elapsed = -5",
    "a run without a name": "UPDATE run SET name = '../../etc/passwd' WHERE name = 'other'",
    "a run with a name that is script": "UPDATE run SET name = '<script>' WHERE name = 'other'",
    "settings of other kinds": "UPDATE run SET meta = '7', identity = '[]'",
    "settings that are not JSON": "UPDATE run SET meta = 'x'",
    "a summary of another kind": "UPDATE summary SET text = '{\"sections\": 5}'",
    "changes of other kinds": "UPDATE change SET cells = '[[1e9, 5]]'",
    "missing cases": "DELETE FROM run_case WHERE position > 0",
    "missing trials": "DELETE FROM trial WHERE number % 2 = 0",
    "limits of other kinds": 'UPDATE run SET meta = \'{"stop": [1, {"x": 2}], "target": [], "belongs_to": 7}\'',
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
@pytest.mark.slow
def test_a_damaged_ledger_does_not_take_the_server_down(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    for name in ("it", "other"):
        study = Study(
            Sweep([{"prompt": text} for text in PAYLOADS[:8]]),
            evaluate,
            [Case(str(at), {"number": at}) for at in range(4)],
        )
        study.run(ledger=path, run=name, executor="inline", max_failures=None).ledger.close()
    intact = tmp_path / "intact.db"
    Study(Sweep([1]), lambda candidate, case: 1.0).run(ledger=intact, run="fine", executor="inline").ledger.close()
    with sqlite3.connect(path) as db:
        db.execute(damage)
    db.close()
    with asking(path, intact) as server:
        for place in [
            *pages(server),
            "/api/run/0/it/trial/2",
            "/api/run/0/it/cell/0/3",
            "/api/search?q=x",
            "/metrics",
            "/api/run/0/it/tile",
        ]:
            status, _, body = server.ask(place)
            assert status in (200, 400, 404, 500), place
            assert (status == 200 or b"Traceback" not in body) and len(body) < 3 * 2**20
            if body and not place.endswith(("/metrics", "/tile")):
                payload = json.loads(body)
                assert status == 200 or payload["error"]["message"]
        assert server.get("/api/run/1/fine")["progress"]["told"] == 1, "other ledgers are shown"
        assert [run["name"] for run in server.get("/api/runs")["runs"]].count("fine") == 1, "and listed"


@pytest.mark.parametrize("damage", ["UPDATE trial SET candidate = '{'", "UPDATE run SET created = 'noon'"])
@pytest.mark.slow
def test_a_live_page_of_damaged_rows_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr("fanfold.view.live.PING", 0.1)
    path = tmp_path / "runs.db"
    Study(Sweep([1]), lambda candidate, case: 1.0).run(ledger=path, run="it", executor="inline").ledger.close()
    with sqlite3.connect(path) as db:
        db.execute(damage)
    db.close()
    with asking(path) as server, server.events("/api/events?run=0/it&mark=0") as events:
        assert next(events)[0] == "ping"


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    from fanfold.report.pages.parts import finite

    assert [finite(value) for value in (math.nan, math.inf, 10**400, 1.5, 3, None, "x")] == [
        None,
        None,
        None,
        1.5,
        3,
        None,
        None,
    ]
