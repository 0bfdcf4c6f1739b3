"""Lists, evaluations, failures and comparisons say what happened, and are walked without a mouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade import brief, candidate, opened, section
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow

CELL = {"position": 2, "case": "ticket-2", "score": 1.0, "score_text": "1", "failure": None, "seconds": 0.5}
CELL |= {"cost": 0.001, "reused": False, "tries": 1}


def call(number: int, **more: Any) -> dict[str, Any]:
    made = {"model": "simulated/small", "messages": [{"role": "user", "text": f"question {number}"}], "settings": {}}
    counts = {"input_tokens": 1200, "output_tokens": 3, "cached_tokens": 0, "seconds": 1.94, "tries": 1}
    return {
        **made,
        **counts,
        "reply": f"answer {number}",
        "finish": "stop",
        "cost_text": "$0.01",
        "cached": False,
        "batch": None,
        **more,
    }


def cell(**more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"trial": brief(7), "cell": CELL, "case": {"id": "ticket-2", "text": "My screen is black."}}
    rest = {"message": None, "traceback": None, "calls": [], "started": 1.7e9, "previous": None, "following": 5}
    return {**made, "sections": [], **rest, "feedback": None, **more}


def test_a_long_list_keeps_few_rows_in_the_page_and_is_walked_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    rows = [brief(number, score=1 - number / 2000) for number in range(2000)]
    with opened(browser, tmp_path, {"trials": {"rows": rows, "next": None}}, "trials") as page:
        lines = page.locator(".virtual tbody tr")
        assert lines.count() < 80
        for _ in range(3):
            page.keyboard.press("j")
        page.keyboard.press("k")
        expect(page.locator(".chosen a")).to_be_focused()
        expect(page.locator(".chosen a")).to_have_text("1")
        page.locator(".virtual").evaluate("list => { list.scrollTop = list.scrollHeight }")
        expect(page.get_by_role("link", name="1999", exact=True)).to_be_visible()
        assert lines.count() < 80


def test_enter_opens_the_candidate_that_is_marked(browser: Browser, tmp_path: Path) -> None:
    payloads = {"trials": {"rows": [brief(4), brief(9)], "next": None}, "trial/9": candidate(9, candidate_text="nine")}
    with opened(browser, tmp_path, payloads, "trials") as page:
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.get_by_role("link", name="9", exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Prompt 9")).to_be_visible()


def test_a_candidate_without_a_score_says_why(browser: Browser, tmp_path: Path) -> None:
    rows = [brief(0, dropped="worse on 8 cases"), brief(1, order=None, score=None), brief(2, score=None, score_text="")]
    with opened(browser, tmp_path, {"trials": {"rows": rows, "next": None}}, "trials") as page:
        assert page.locator("td.score").all_inner_texts() == ["dropped", "under way", "no score"]


def test_an_evaluation_shows_its_case_calls_and_the_way_to_the_next(browser: Browser, tmp_path: Path) -> None:
    first = cell(calls=[call(1, tries=3, cached=True, batch="b-12", cached_tokens=600, finish="length")])
    payloads = {"cell/7/2": first, "cell/7/5": cell(cell={**CELL, "position": 5, "case": "ticket-5"}, following=None)}
    with opened(browser, tmp_path, payloads, "cell/7/2") as page:
        expect(page.get_by_role("region", name="Case")).to_have_text("My screen is black.")
        for words in ("1,200 tokens in (600 cached), 3 out", "1.9 s", "3 tries", "from the ledger", "batch b-12"):
            expect(page.locator(".call > summary")).to_contain_text(words)
        expect(page.locator(".turn.reply")).to_contain_text("reply (ended: length)")
        page.keyboard.press("j")
        expect(page.get_by_role("heading", name="Prompt 7 on ticket-5")).to_be_visible()


def test_many_calls_are_folded_with_their_replies_in_sight(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, {"cell/7/2": cell(calls=[call(n) for n in range(6)])}, "cell/7/2") as page:
        expect(page.get_by_text("question 4")).to_be_hidden()
        page.locator(".reply-line", has_text="answer 4").click()
        expect(page.get_by_text("question 4")).to_be_visible()


def test_calls_that_were_not_recorded_are_not_called_none(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, {"cell/7/2": cell(calls=None)}, "cell/7/2") as page:
        expect(page.get_by_text("Not recorded: an earlier version of Fanfold wrote this evaluation.")).to_be_visible()


def test_a_failure_shows_its_traceback_in_place(browser: Browser, tmp_path: Path) -> None:
    failed = {**CELL, "failure": "error", "score": None, "score_text": ""}
    made = cell(cell=failed, message="ValueError: no number", traceback="Traceback ...\n<script>boom</script>")
    with opened(browser, tmp_path, {"cell/7/2": made}, "cell/7/2") as page:
        expect(page.get_by_role("region", name="Traceback")).to_contain_text("<script>boom</script>")
        expect(page.get_by_text("ValueError: no number")).to_be_visible()


def test_failures_are_grouped_and_lead_to_their_cells(browser: Browser, tmp_path: Path) -> None:
    group = {"kind": "error", "message": "ValueError: no number", "count": 70, "first": 1.7e9, "last": 1.7e9 + 60}
    cells = [{"trial": 3, "position": 1, "case": "ticket-1"}]
    made = {
        "groups": [{**group, "traceback": "Traceback", "cells": cells}],
        "command": "fanfold resume made --retry-failed",
    }
    with opened(browser, tmp_path, {"failures": made}, "failures") as page:
        expect(page.get_by_role("heading", name="70 evaluations failed in 1 way")).to_be_visible()
        expect(page.get_by_role("link", name="prompt 3 on ticket-1")).to_have_attribute("href", "#/run/0/made/cell/3/1")
        expect(page.get_by_text("and 69 more")).to_be_visible()
        expect(page.locator(".command code")).to_have_text("fanfold resume made --retry-failed")


def test_a_megabyte_is_shown_in_part_until_it_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    text = "word " * 200_000
    with opened(browser, tmp_path, {"trial/1": candidate(1, section("Long", text=text))}, "trial/1") as page:
        block = page.get_by_role("region", name="Long")
        assert len(block.inner_text()) < 5000
        page.get_by_role("button", name="Show all 1,000,000 characters").click()
        assert len(block.inner_text()) > 900_000


def difference(**more: Any) -> dict[str, Any]:
    made = {"run": "new", "against": "old", "cases": "held out", "n": 60, "difference": 0.12, "low": 0.03, "high": 0.21}
    return {**made, "better": 12, "worse": 5, "equal": 43, "p": 0.014, "test": "McNemar", **more}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "new scores 0.12 higher than old on 60 equal cases, 95 % interval 0.03 to 0.21: more than chance"),
        ({}, "more than chance (McNemar, p = 0.014)."),
        ({"low": -0.02, "p": 0.2}, "may be chance"),
        ({"p": 0.25, "n": 3}, "too few cases to tell it from chance"),
        ({"difference": 0, "low": -0.1, "high": 0.1, "p": 1}, "new and old score the same"),
        ({"p": None}, "more than chance."),
    ],
)
def test_a_difference_is_told_in_a_sentence(browser: Browser, tmp_path: Path, more: dict[str, Any], words: str) -> None:
    names = ("order", "trial", "score", "best", "complete", "evaluations", "seconds", "cost")
    history = {column: list[float]() for column in names}
    rest = {"study": "prompts", "metrics": [], "history": history, "best": None, "best_text": "", "sections": []}
    runs = [{"ledger": 0, "name": name, **rest} for name in ("new", "old")]
    data = {"runs": runs, "differences": [difference(**more)], "settings": [], "sections": [], "costs": []}
    with opened(browser, tmp_path, {"/api/compare?run=0%2Fnew&run=0%2Fold": data}, "") as page:
        page.evaluate("location.hash = '#/compare?run=0/new&run=0/old'")
        expect(page.locator(".plain-list")).to_contain_text(words)
