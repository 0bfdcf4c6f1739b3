"""What a person does from the page reaches the run: stop, resume, a higher budget, a retry, notes and feedback."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import worlds
from browsing import Visitor, serving
from playwright.sync_api import Browser, Page, Route, expect

from fanfold.ledger import Ledger, RunView, add_request
from fanfold.report import write_report

pytestmark = pytest.mark.slow

SLOW = ("functions", "--trials", "4000", "--population", "20", "--delay", "0.02")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return worlds.made(tmp_path_factory.mktemp("actions"), "shaky", "application", "functions")


@pytest.fixture(scope="module")
def visitor(browser: Browser, ledger: Path) -> Iterator[Visitor]:
    with serving(ledger) as url:
        visiting = Visitor(browser, url)
        yield visiting
        visiting.close()


@contextlib.contextmanager
def running(ledger: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that goes on until it is told to stop."""
    command = [sys.executable, "-m", "fanfold", "run", *SLOW, "--run", name, "--ledger", str(ledger)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()
            add_request(ledger, name, "stop", {})  # where the page has resumed it


def rows(ledger: Path, sql: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(ledger)) as database:
        return database.execute(sql).fetchall()


def finished(ledger: Path) -> int:
    sql = "SELECT count(*) FROM trial JOIN run ON run.id = run WHERE name = 'long' AND told IS NOT NULL"
    return int(rows(ledger, sql)[0][0])


def open_when_there(visitor: Visitor, ledger: Path, name: str) -> Page:
    page = visitor.page
    while not rows(ledger, f"SELECT 1 FROM run JOIN evaluation ON run.id = run WHERE name = '{name}' LIMIT 1"):
        page.wait_for_timeout(100)
    return visitor.go(f"#/run/0/{name}")


def raise_budget(page: Page, candidates: int, button: str) -> None:
    page.get_by_role("button", name="Raise the budget").click()
    page.get_by_label("Most candidates").fill(str(candidates))
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator(".said.done")).to_be_visible(timeout=30_000)


def stop(page: Page) -> None:
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop the run").click()
    expect(page.locator(".state")).to_have_text("Stopped", timeout=30_000)


def test_a_run_is_given_more_stopped_and_resumed(visitor: Visitor, ledger: Path) -> None:
    with running(ledger, "long") as process:
        page = open_when_there(visitor, ledger, "long")
        raise_budget(page, 5000, "Raise")
        expect(page.locator(".status")).to_contain_text("of 5,000 candidates", timeout=30_000)
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_role("button", name="Let it run").click()
        expect(page.locator(".state")).to_have_text("Running")
        stop(page)
        process.wait(timeout=30)
        before = finished(ledger)
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator(".state")).to_have_text("Running", timeout=30_000)
        while finished(ledger) == before:
            page.wait_for_timeout(200)
        stop(page)
        raise_budget(page, 6000, "Raise and resume")
        expect(page.locator(".state")).to_have_text("Running", timeout=30_000)
        stop(page)


def test_a_note_on_a_run_and_on_a_candidate_is_kept(visitor: Visitor, ledger: Path) -> None:
    page = visitor.go("#/run/0/functions/trial/3")
    page.get_by_label("Add a note").fill("<b>odd</b> one")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".notes li")).to_contain_text("<b>odd</b> one")
    expect(page.get_by_label("Add a note")).to_have_value("")
    with Ledger(ledger, readonly=True) as opened:
        assert [(note.trial, note.text) for note in RunView.open(opened, "functions").comments()] == [
            (3, "<b>odd</b> one")
        ]


def test_failed_evaluations_are_tried_again(visitor: Visitor, ledger: Path) -> None:
    sql = "SELECT min(started) FROM evaluation JOIN run ON run.id = run WHERE name = 'shaky' AND failure IS NOT NULL"
    before = rows(ledger, sql)[0][0]
    page = visitor.go("#/run/0/shaky/failures")
    expect(page.locator(".command code")).to_contain_text("fanfold resume shaky --retry-failed")
    page.get_by_role("button", name="Retry failed evaluations").click()
    expect(page.locator(".said.done")).to_be_visible(timeout=30_000)
    while rows(ledger, sql)[0][0] in (before, None):
        page.wait_for_timeout(200)


def test_an_answer_is_rated(visitor: Visitor, ledger: Path) -> None:
    page = visitor.go("#/run/0/application/trial/22")
    expect(page.get_by_role("heading", name="How good is this answer?")).to_be_visible()
    page.get_by_role("button", name="5 excellent").click()
    expect(page.locator(".said.done")).to_be_visible()
    with Ledger(ledger, readonly=True) as opened:
        assert RunView.open(opened, "application").trial(22).score == 1.0


def test_one_of_two_answers_is_preferred(visitor: Visitor, ledger: Path) -> None:
    page = visitor.go("#/run/0/application/trial/24")
    expect(page.get_by_role("heading", name="Which answer is better?")).to_be_visible()
    page.get_by_role("button", name="B is better").click()
    expect(page.locator(".said.done")).to_be_visible()


def refuse(route: Route) -> None:
    body = json.dumps({"error": {"type": "state", "message": "run 'functions' does not run"}})
    route.fulfill(status=409, content_type="application/json", body=body)


def test_a_refusal_is_told_in_the_servers_words_and_can_be_tried_again(visitor: Visitor) -> None:
    page = visitor.go("#/run/0/functions")
    page.route("**/resume", refuse)
    page.get_by_role("button", name="Raise the budget").click()
    page.get_by_label("Most candidates").fill("200")
    page.get_by_role("button", name="Raise and resume").click()
    expect(page.get_by_role("alert")).to_have_text("run 'functions' does not run")
    expect(page.get_by_role("button", name="Raise and resume")).to_be_enabled()
    page.unroute("**/resume")
    visitor.errors.clear()


def test_a_saved_page_offers_no_action(browser: Browser, ledger: Path, tmp_path: Path) -> None:
    for run, place in {"shaky": "failures", "application": "trial/22", "functions": "trial/3"}.items():
        page = browser.new_page()
        page.goto(f"{write_report(ledger, run, tmp_path / 'saved.html').as_uri()}#/run/0/{run}/{place}")
        page.wait_for_selector("main[aria-busy=false]")
        for action in ("Stop", "Resume", "Raise the budget", "Retry failed evaluations", "Add", "5 excellent"):
            expect(page.get_by_role("button", name=action, exact=True)).to_have_count(0)
        page.close()
