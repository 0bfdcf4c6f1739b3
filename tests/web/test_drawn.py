"""Pictures that studies bring as data are drawn as they were meant, and none can take the page with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from handmade import candidate, opened, section
from playwright.sync_api import Browser, Page, expect

from fanfold import drawings
from fanfold.drawings import Drawing

pytestmark = pytest.mark.slow

Draw = Callable[..., AbstractContextManager[Page]]


@pytest.fixture
def draw(browser: Browser, tmp_path: Path) -> Iterator[Draw]:
    """Opens a candidate's page with these drawings."""

    def make(*drawn: Drawing, width: int = 1400, **more: Any) -> AbstractContextManager[Page]:
        return opened(browser, tmp_path, {"trial/1": candidate(1, section("Drawn", *drawn, **more))}, "trial/1", width)

    yield make


STEPS = [
    {"title": "Step 1", "states": {"a": "clean", "b": "clean"}, "value": 0.0},
    {
        "title": "Step 2",
        "states": {"b": "root"},
        "moves": [{"who": "Red", "action": "exploits", "node": "b"}],
        "value": -1.0,
    },
    {
        "title": "Step 3",
        "states": {"a": "root"},
        "moves": [{"who": "Blue", "action": "waits", "node": None}],
        "value": -0.5,
    },
]
EXAMPLES: dict[str, tuple[Drawing, str, str]] = {
    "diff": (drawings.diff("one two", "one three"), ".diff-text ins", "three"),
    "intervals": (
        drawings.intervals([{"name": "held out", "value": 0.5, "low": 0.25, "high": 0.75, "n": 8}], low=0, high=1),
        ".rows .row-figures",
        "0.5 (0.25 to 0.75) n = 8",
    ),
    "scatter": (
        drawings.scatter([{"x": 1, "y": 2, "name": "small", "front": True, "trial": 4}], x="size", y="accuracy"),
        ".scatter figcaption",
        "on the front (1)",
    ),
    "grid": (drawings.grid(["r"], ["c"], [[0.25]], low=0, high=1), ".grid td[title]", "0.25"),
    "conversation": (
        drawings.conversation(["Ann", "Ben"], [{"who": 1, "text": "hello", "note": "late"}]),
        ".talk .turn",
        "hello",
    ),
    "layers": (
        drawings.layers([{"name": "dense", "kind": "dense", "shape": [64], "parameters": 4160}]),
        ".layers figcaption",
        "4,160 parameters in all",
    ),
    "replay": (
        drawings.replay(
            [{"id": "a", "name": "Host A", "group": "User"}, {"id": "b", "name": "Host B", "group": "Server"}],
            [("a", "b")],
            {"clean": "clean", "root": "root access"},
            STEPS,
        ),
        ".replay figcaption",
        "Step 1",
    ),
    "images": (
        drawings.images(2, 2, [{"pixels": bytes([0, 64, 128, 255]), "caption": "is 3, said 8", "wrong": True}]),
        ".images .wrong",
        "is 3, said 8 wrong",
    ),
    "bars": (
        drawings.bars([{"name": "short", "value": -0.5, "note": "9 shows"}]),
        ".rows .row-figures",
        "-0.5 9 shows",
    ),
}


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("kind", drawings.KINDS)
def test_every_kind_of_drawing_is_drawn(draw: Draw, kind: str, width: int) -> None:
    drawing, place, words = EXAMPLES[kind]
    with draw(drawing, width=width) as page:
        expect(page.locator(place).first).to_contain_text(words)


@pytest.mark.parametrize("kind", ["hologram", "toString", "__proto__"])
def test_an_unknown_kind_draws_nothing_and_the_words_remain(draw: Draw, kind: str) -> None:
    with draw(Drawing(kind, {}), EXAMPLES["diff"][0], text="In words.") as page:
        expect(page.get_by_text("In words.")).to_be_visible()
        expect(page.locator(".diff")).to_be_visible()


@pytest.mark.parametrize("kind", drawings.KINDS)
def test_a_drawing_of_another_version_does_not_take_the_page(draw: Draw, kind: str) -> None:
    broken = dict.fromkeys(EXAMPLES[kind][0].data, 7)
    with draw(Drawing(kind, broken), Drawing(kind, {}), EXAMPLES["bars"][0], text="In words.") as page:
        expect(page.get_by_text("In words.")).to_be_visible()
        expect(page.locator(".row-figures").last).to_contain_text("9 shows")


def test_the_colours_of_a_grid_do_not_depend_on_the_other_values(draw: Draw) -> None:
    grid = partial(drawings.grid, low=0, high=1)
    with draw(grid(["a", "b"], ["x"], [[0.5], [0.5]]), grid(["a"], ["x", "y", "z"], [[0.5, 1, 0]])) as page:
        script = "cells => cells.map(cell => getComputedStyle(cell).backgroundColor)"
        colours = page.locator(".heat td[title]").evaluate_all(script)
    assert colours[0] == colours[1] == colours[2]
    assert len(set(colours)) == 3


def test_a_large_grid_is_a_picture_that_names_its_values(draw: Draw) -> None:
    names = [f"order {number}" for number in range(120)]
    values = [[row / 119 for _ in range(60)] for row in range(120)]
    with draw(drawings.grid(names, [f"round {n}" for n in range(60)], values, low=0, high=1)) as page:
        picture = page.locator(".heat-picture")
        box = picture.bounding_box()
        assert box is not None
        picture.hover(position={"x": 1, "y": box["height"] - 1})
        expect(page.get_by_text("order 119, round 0: 1")).to_be_visible()


def test_marks_count_characters_as_python_does(draw: Draw) -> None:
    text = "🙂🙂 the code is red owl"
    start = text.index("red owl")
    marks = [{"start": start, "end": start + 7, "why": "the secret in words"}]
    with draw(drawings.conversation(["Keeper"], [{"who": 0, "text": text, "marks": marks}])) as page:
        mark = page.locator("mark")
        expect(mark).to_have_text("red owl")
        expect(mark).to_have_attribute("title", "the secret in words")
        expect(page.locator(".found")).to_have_text("red owl the secret in words")


def test_overlapping_marks_are_all_named(draw: Draw) -> None:
    marks = [{"start": 0, "end": 4, "why": "first"}, {"start": 2, "end": 6, "why": "second"}]
    with draw(drawings.conversation(["Keeper"], [{"who": 0, "text": "abcdefgh", "marks": marks}])) as page:
        pieces = page.locator("mark")
        assert pieces.all_inner_texts() == ["ab", "cd", "ef"]
        expect(pieces.nth(1)).to_have_attribute("title", "first; second")
        expect(page.locator(".bubble")).to_have_text("abcdefgh")


def test_a_replay_is_walked_by_keyboard_and_keeps_what_a_step_does_not_say(draw: Draw) -> None:
    with draw(EXAMPLES["replay"][0]) as page:
        slider = page.get_by_role("slider", name="Step")
        slider.focus()
        slider.press("ArrowRight")
        expect(page.locator(".moves")).to_have_text("Red exploits on Host B")
        slider.press("ArrowRight")
        hosts = page.get_by_role("img", name="Step 3")
        expect(hosts).to_have_attribute("aria-label", "Step 3. Host A: root access, Host B: root access")
        expect(page.locator(".values")).to_contain_text("so far -1.5")
        expect(page.get_by_role("button", name="Next step")).to_be_disabled()
        slider.press("Home")
        expect(page.get_by_role("img", name="Step 1.")).to_be_visible()


def test_a_replay_plays_to_its_end(draw: Draw) -> None:
    with draw(EXAMPLES["replay"][0]) as page:
        page.get_by_role("button", name="Play").click()
        expect(page.get_by_role("button", name="Play again")).to_be_visible()
        expect(page.locator(".controls .at")).to_have_text("3 / 3")


def test_an_image_shows_the_bytes_it_was_given(draw: Draw) -> None:
    with draw(EXAMPLES["images"][0]) as page:
        canvas = page.get_by_role("img", name="is 3, said 8")
        pixels = canvas.evaluate("canvas => [...canvas.getContext('2d').getImageData(0, 0, 2, 2).data]")
    assert pixels[::4] == pixels[1::4] == pixels[2::4] == [0, 64, 128, 255]


def test_a_fixed_axis_stays_and_a_free_one_has_round_ticks(draw: Draw) -> None:
    rows = [{"name": "a", "value": 0.913, "low": 0.877, "high": 0.9471, "n": 9}]
    with draw(drawings.intervals(rows, low=0, high=1), drawings.intervals(rows)) as page:
        ticks = [page.locator(".rows").nth(at).locator(".row-axis text:not(.axis-title)") for at in (0, 1)]
        assert ticks[0].all_text_contents() == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        assert ticks[1].all_text_contents() == ["0.86", "0.88", "0.9", "0.92", "0.94", "0.96"]


def test_a_point_of_a_scatter_leads_to_its_candidate(draw: Draw) -> None:
    with draw(EXAMPLES["scatter"][0]) as page:
        point = page.get_by_role("link", name="small: size 1, accuracy 2, on the front")
        point.focus()
        expect(page.get_by_text("small: size 1, accuracy 2, on the front")).to_be_visible()
        expect(point).to_have_attribute("href", "#/run/0/made/trial/4")


def test_a_table_sorts_numbers_as_numbers_and_unknown_ones_last(draw: Draw) -> None:
    rows = [["b", 10], ["a", 9], ["c", None], ["d", 100]]
    with draw(columns=["name", "score"], rows=rows) as page:
        column = page.locator(".sortable tbody td:nth-child(2)")
        score = page.get_by_role("button", name="score")
        score.click()
        expect(page.get_by_role("columnheader", name="score")).to_have_attribute("aria-sort", "descending")
        assert column.all_inner_texts() == ["100", "10", "9", "–"]
        score.click()
        assert column.all_inner_texts() == ["9", "10", "100", "–"]
        score.click()
        assert column.all_inner_texts() == ["10", "9", "–", "100"]


def test_a_table_scrolls_inside_itself(draw: Draw) -> None:
    columns = [f"column {number}" for number in range(30)]
    with draw(columns=columns, rows=[["some words"] * 30], width=400) as page:
        inside = page.locator(".scroll").first
        assert inside.evaluate("element => element.scrollWidth > element.clientWidth")
