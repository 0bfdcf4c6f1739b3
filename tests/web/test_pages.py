"""Every page of every study, light and dark, on a desk and on a phone: no error, no sideways scroll, readable."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from browsing import AXE, Visitor
from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

RUNS = ("functions", "prompts", "prompts-written", "critic", "critic-pairs", "secrets", "workflow", "workflow-ppo")
RUNS += ("neuro", "ask", "evolve", "application", "shaky", "broken", "interrupted")
#: Windows in which pages are opened and axe-core looks; then each page is drawn in the other colours as well.
WINDOWS = {"1400-light": (1400, "light", "dark"), "400-dark": (400, "dark", "light")}
Window: TypeAlias = tuple[Visitor, list[Any]]


def places(ledger: Path, run: str) -> list[str]:
    """The pages of a run, with a candidate and a cell that it has: the last one evaluated, and a failed one."""
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as database:
        sql = "SELECT trial, position FROM evaluation WHERE run = (SELECT id FROM run WHERE name = ?)"
        cells = database.execute(f"{sql} ORDER BY trial DESC, position LIMIT 1", (run,)).fetchall()
        cells += database.execute(f"{sql} AND failure IS NOT NULL LIMIT 1", (run,)).fetchall()
    pages = ["", "/matrix", "/trials", "/lineage", "/work", "/failures", "/settings"]
    for trial, position in cells:
        pages += [f"/trial/{trial}", f"/cell/{trial}/{position}"]
    return [f"#/run/0/{run}{page}" for page in pages]


@pytest.fixture(scope="module", params=WINDOWS)
def window(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Window]:
    width, *schemes = WINDOWS[request.param]
    visiting = Visitor(browser, address, width, schemes[0])
    yield visiting, schemes
    visiting.close()


def examine(visitor: Visitor, schemes: list[Any], place: str) -> list[str]:
    """What is wrong with a page, in the first colours or in the second."""
    visitor.errors.clear()
    page = visitor.go(place)
    wrong = [f"{place}: {finding}" for finding in visitor.findings()] if AXE.exists() else []
    for scheme in schemes:
        if scheme != schemes[0]:  # in which it was opened
            page.emulate_media(color_scheme=scheme)
            visitor.settle()
        if (over := visitor.overflow()) > 0:
            wrong.append(f"{place}, {scheme}: {over} pixels too wide")
        if notice := page.query_selector("main > .notice.bad"):
            wrong.append(f"{place}, {scheme}: {notice.inner_text()}")
    page.emulate_media(color_scheme=schemes[0])
    return wrong + [f"{place}: {error}" for error in visitor.errors]


@pytest.mark.parametrize("run", RUNS)
def test_every_page_of_a_run_is_sound(window: Window, world: Path, run: str) -> None:
    wrong = [finding for place in places(world, run) for finding in examine(*window, place)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "place",
    [
        "#/",
        "#/?q=score>0.2 study:prompts",
        "#/compare?run=0/functions&run=0/functions-narrow",
        "#/compare?run=0/prompts&run=0/prompts-written",
        "#/run/0/prompts/matrix?order=similar&cases=difficulty&colour=seconds",
        "#/run/0/prompts/matrix?only=wrong&colour=failure",
        "#/run/0/prompts?x=seconds",
    ],
)
def test_every_view_in_an_address_is_sound(window: Window, place: str) -> None:
    wrong = examine(*window, place)
    assert not wrong, "\n".join(wrong)
