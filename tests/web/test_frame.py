"""The frame of every page: keys, filters, colours, the address, and a server that goes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Visitor, serving
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow


@pytest.fixture
def visitor(browser: Browser, address: str) -> Iterator[Visitor]:
    visiting = Visitor(browser, address)
    yield visiting
    assert not visiting.errors
    visiting.close()


def rows(visitor: Visitor) -> list[str]:
    return visitor.page.locator(".runs tbody .name > a").all_inner_texts()


def test_the_token_leaves_the_address_at_once(visitor: Visitor) -> None:
    assert visitor.page.url.endswith("#/")


def test_runs_are_filtered_as_one_types_and_the_address_keeps_it(visitor: Visitor) -> None:
    page = visitor.go("#/")
    everything = rows(visitor)
    assert {"prompts", "functions", "broken"} <= set(everything)
    page.keyboard.press("/")
    page.keyboard.type("study:functions score>-3")
    expect(page.locator(".runs tbody tr")).to_have_count(1)
    assert rows(visitor) == ["functions-narrow"]
    page.reload()
    visitor.settle()
    assert rows(visitor) == ["functions-narrow"]
    page.locator("#filter").fill("scroe>1")
    expect(page.get_by_role("alert")).to_contain_text("There is no field “scroe”")


def test_a_page_keeps_its_keys_when_only_its_frame_is_drawn_again(visitor: Visitor) -> None:
    page = visitor.go("#/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()


def test_keys_mark_a_run_and_open_it(visitor: Visitor) -> None:
    page = visitor.go("#/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    first = rows(visitor)[0]
    page.keyboard.press("Enter")
    visitor.settle()
    expect(page.locator("h1")).to_have_text(first)


def test_two_ticked_runs_are_compared(visitor: Visitor) -> None:
    page = visitor.go("#/")
    expect(page.get_by_role("button", name="Compare")).to_be_disabled()
    page.get_by_label("Compare functions", exact=True).check()
    page.get_by_label("Compare functions-narrow", exact=True).check()
    page.get_by_role("button", name="Compare 2").click()
    visitor.settle()
    assert "#/compare?run=0%2Ffunctions" in page.url
    expect(page.locator("main")).to_contain_text("functions-narrow")


def test_helper_runs_are_folded_under_theirs(visitor: Visitor) -> None:
    page = visitor.go("#/?q=name=prompts")
    before = len(rows(visitor))
    page.get_by_role("button", name="helper run").click()
    assert len(rows(visitor)) > before


def test_search_finds_a_run_by_the_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.go("#/run/0/functions/settings")
    page.keyboard.press("/")
    page.keyboard.type("secrets")
    expect(page.locator("#results li").first).to_contain_text("secrets")
    page.keyboard.press("Enter")
    visitor.settle()
    expect(page.locator("h1")).to_have_text("secrets")


def test_the_keys_are_told(visitor: Visitor) -> None:
    page = visitor.go("#/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Next and previous")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_colours_follow_the_system_until_a_person_chooses(browser: Browser, address: str) -> None:
    dark = Visitor(browser, address, scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    black = dark.page.evaluate(background)
    dark.page.get_by_role("button", name="Use light colours").click()
    white = dark.page.evaluate(background)
    assert black != white
    dark.page.reload()
    dark.settle()
    assert dark.page.evaluate(background) == white
    dark.close()


def test_a_matrix_opens_the_cell_that_is_clicked(visitor: Visitor) -> None:
    page = visitor.go("#/run/0/functions/matrix?at=0,0,20,40")
    box = page.locator("canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 110)
    expect(page.locator(".sheet .tip")).to_contain_text("score")
    page.mouse.click(box["x"] + 300, box["y"] + 110)
    visitor.settle()
    assert "#/run/0/functions/cell/" in page.url


def test_a_matrix_is_walked_by_the_keyboard(visitor: Visitor) -> None:
    page = visitor.go("#/run/0/functions/matrix")
    page.keyboard.press("j")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".matrix [role=status]")).to_contain_text("Candidate")
    page.keyboard.press("Enter")
    visitor.settle()
    assert "#/run/0/functions/cell/" in page.url


def test_zoom_and_place_of_a_matrix_are_in_the_address(visitor: Visitor) -> None:
    page = visitor.go("#/run/0/functions/matrix")
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_url("**at=**")
    view = page.url
    page.reload()
    visitor.settle()
    assert page.url == view


def test_a_chart_is_kept_as_a_png(visitor: Visitor) -> None:
    page = visitor.go("#/run/0/functions")
    with page.expect_download() as download:
        page.get_by_role("button", name="as PNG").first.click()
    assert download.value.suggested_filename == "best.png"
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_chart_alone_fills_the_window(visitor: Visitor) -> None:
    page = visitor.go("#/run/0/functions?chart=best")
    box = page.locator("figure.alone").bounding_box()
    assert box is not None
    assert (box["width"], box["height"]) == (1400, 900)


def test_a_server_that_goes_away_is_said_and_taken_up_again(browser: Browser, world: Path) -> None:
    with serving(world, options=("--token", "one-token-for-both-servers-0000")) as address:
        port = address.split(":")[2].split("/")[0]
        visiting = Visitor(browser, address)
        page = visiting.go("#/run/0/functions")
    expect(page.get_by_role("alert")).to_contain_text("Connection lost", timeout=15_000)
    with serving(world, options=("--token", "one-token-for-both-servers-0000"), port=port):
        expect(page.get_by_role("alert")).to_have_count(0, timeout=30_000)
    visiting.close()


def test_a_page_that_is_asked_for_by_a_run_opens_there(browser: Browser, world: Path) -> None:
    with serving(world, options=("--run", "functions")) as address:
        visiting = Visitor(browser, address)
        assert visiting.page.url.endswith("/#/run/0/functions"), "the secret is not in it"
        expect(visiting.page.get_by_role("link", name="Overview")).to_be_visible()
        visiting.close()
