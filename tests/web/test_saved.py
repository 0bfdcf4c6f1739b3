"""The saved page: one file that works from disk with the network off, for every study, and single charts as PNG."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser
from worlds import RUNS

from fanfold.cli import cli

PAGES = ("", "/trials", "/matrix", "/work", "/settings")


def save(ledger: Path, run: str, file: Path) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["view", str(ledger), "--save", str(file), "--run", run])
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(file.read_text().partition('id="data">')[2].partition("</script>")[0])
    return data


@pytest.mark.slow
@pytest.mark.parametrize("run", list(RUNS))
def test_a_saved_page_works_from_disk_with_the_network_off(
    world: Path, tmp_path: Path, browser: Browser, run: str
) -> None:
    file = tmp_path / "run.html"
    data = save(world, run, file)
    assert file.stat().st_size < 5_000_000
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{file.as_uri()}#/run/0/{run}")
    best = data[f"/api/run/0/{run}"]["best"]
    further = ("",) if best is None else (f"/trial/{best['trial']}",)
    for place in (*PAGES, *further):
        page.evaluate("place => { location.hash = place }", f"#/run/0/{run}{place}")
        page.wait_for_selector("main[aria-busy=false]")
        text = page.inner_text("main")
        assert text.strip() and "does not contain" not in text, (place, text[:200])
    assert page.locator("button", has_text="Stop").count() == page.locator("button", has_text="Resume").count() == 0
    context.close()
    assert not errors and not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


@pytest.mark.slow
def test_a_saved_page_holds_what_the_ledger_held_and_needs_it_no_more(world: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with sqlite3.connect(world) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    data = save(copy, "prompts", tmp_path / "run.html")
    copy.unlink()
    page = data["/api/run/0/prompts"]
    assert page["headline"] and page["can"] == dict.fromkeys(page["can"], False)
    names = [helper["name"] for helper in data["/api/runs"]["runs"][0]["helpers"]]
    assert names and all(f"/api/run/0/{name}" in data for name in names), "the runs that belong to it are inside"
    cell = next(payload for path, payload in data.items() if "/cell/" in path and payload["calls"])
    assert cell["calls"][0]["messages"] and cell["calls"][0]["reply"]
    assert str(tmp_path) not in json.dumps(data["/api/runs"]), "no folder of this machine"


@pytest.mark.slow
def test_a_chart_is_drawn_as_a_picture(world: Path, tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    file = tmp_path / "best.png"
    result = CliRunner().invoke(cli, ["view", str(world), "--save", str(file), "--png", "best", "--run", "functions"])
    assert result.exit_code == 0, result.output
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 10_000
    wrong = ["view", str(world), "--save", str(tmp_path / "x.png"), "--png", "bets", "--run", "functions"]
    result = CliRunner().invoke(cli, wrong)
    assert result.exit_code == 2 and "has no chart 'bets'; did you mean 'best'?" in result.stderr
    assert not (tmp_path / "x.png").exists()  # it was a picture of the whole page


def test_without_chromium_a_picture_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    result = CliRunner().invoke(cli, ["view", "--save", str(tmp_path / "x.png"), "--png", "best"])
    assert result.exit_code == 2 and "apt-get install chromium" in result.stderr
