"""What changed between two candidates is shown word by word, wherever a reader meets them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from handmade import brief, candidate, opened
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.slow

FIRST = "Read the ticket. Answer with the name of the team."
CHILD = "Read the whole ticket. Answer with the name of one team only."
OTHER = "Say it."
TEXTS = {"texts": {"0": FIRST, "3": OTHER, "7": CHILD}}


def changes(page: Page) -> dict[str, list[str]]:
    text = page.locator(".diff-text").first
    return {name: [part.strip() for part in text.locator(name).all_inner_texts()] for name in ("del", "ins")}


def compared(browser: Browser, folder: Path, before: str, after: str) -> Any:
    texts = {"texts": {"0": before, "7": after}}
    page = candidate(7, candidate_text=after, parents=[brief(0)])
    return opened(browser, folder, {"trial/7": page, "text": texts}, "trial/7")


@pytest.mark.parametrize(
    ("before", "after", "removed", "added"),
    [
        (FIRST, CHILD, ["the"], ["whole", "one", "only"]),
        ("be brief", "be briefer", ["brief"], ["briefer"]),
        ('{"rate": 0.00151}', '{"rate": 0.00171}', ["0.00151"], ["0.00171"]),
        ("x = -1.5e-9", "x = 2", ["-1.5e-9"], ["2"]),
        ("über allem", "unter allem", ["über"], ["unter"]),
        ("now say it fast", "now tell me slowly", ["say it fast"], ["tell me slowly"]),
        ("日本", "日本 🙂", [], ["🙂"]),
        ("same", "same", [], []),
        ("", "all new", [], ["all new"]),
    ],
)
def test_words_and_numbers_change_as_a_whole(
    browser: Browser, tmp_path: Path, before: str, after: str, removed: list[str], added: list[str]
) -> None:
    with compared(browser, tmp_path, before, after) as page:
        expect(page.locator(".diff-text")).to_be_visible()
        found = changes(page)
        assert found["del"] == removed
        assert found["ins"] == added


def test_the_words_are_counted_and_equal_texts_are_called_equal(browser: Browser, tmp_path: Path) -> None:
    with compared(browser, tmp_path, "a b c", "a c d e") as page:
        expect(page.locator(".diff figcaption")).to_contain_text("2 words added, 1 word removed.")
    with compared(browser, tmp_path, "a b c", "a b c") as page:
        expect(page.locator(".diff figcaption")).to_contain_text("The texts are equal.")


def test_side_by_side_shows_each_text_whole(browser: Browser, tmp_path: Path) -> None:
    with compared(browser, tmp_path, FIRST, CHILD) as page:
        page.get_by_role("button", name="Side by side").click()
        assert page.locator(".diff-text").all_inner_texts() == [FIRST, CHILD]


def test_long_unchanged_stretches_are_folded_and_open(browser: Browser, tmp_path: Path) -> None:
    middle = "\n".join(f"line {number}" for number in range(40))
    with compared(browser, tmp_path, f"old\n{middle}\nend", f"new\n{middle}\nstop") as page:
        text = page.locator(".diff-text")
        expect(text).not_to_contain_text("line 20")
        page.get_by_role("button", name="unchanged lines").click()
        expect(text).to_contain_text("line 20")
        assert text.inner_text().count("line ") == 40


def test_two_megabytes_that_share_nothing_do_not_stop_the_page(browser: Browser, tmp_path: Path) -> None:
    before = " ".join(f"a{number}" for number in range(150_000))
    with compared(browser, tmp_path, before, before.replace("a", "b")) as page:
        expect(page.locator(".diff-text del")).to_have_count(1)


def test_a_candidate_is_compared_with_its_parent_first_and_with_any_other(browser: Browser, tmp_path: Path) -> None:
    page_of_7 = candidate(7, candidate_text=CHILD, parents=[brief(3)])
    with opened(browser, tmp_path, {"trial/7": page_of_7, "text": TEXTS}, "trial/7") as page:
        expect(page.get_by_role("heading", name="Changes since parent 3")).to_be_visible()
        page.get_by_role("button", name="Since first 0").click()
        expect(page.get_by_role("heading", name="Changes since first 0")).to_be_visible()
        assert "against=0" in page.url
        page.get_by_role("button", name="Text", exact=True).click()
        expect(page.locator(".block pre")).to_have_text(CHILD)
        number = page.get_by_label("Since number")
        number.fill("5")
        number.press("Enter")
        expect(page.get_by_text("Prompt 5 is not here.")).to_be_visible()


def node(trial: int, parents: list[int], generation: int, **more: Any) -> dict[str, Any]:
    made = {"trial": trial, "parents": parents, "by": "rewrite", "score": 0.5, "brief": f"the {trial}th"}
    return {**made, "generation": generation, "offspring": 0, "line": False, **more}


LINEAGE = {
    "nodes": [node(0, [], 0, offspring=2, line=True), node(3, [0], 1), node(7, [0], 1, line=True, score=0.9)],
    "ways": [
        {"by": "rewrite+swap", "made": 4, "better": 1, "best": 0.9},
        {"by": "rewrite", "made": 6, "better": 3, "best": 0.8},
    ],
    "thinned": 0,
}


def test_two_of_a_lineage_are_chosen_by_click_and_compared(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, {"lineage": LINEAGE, "text": TEXTS}, "lineage") as page:
        page.locator("circle[data-trial='0']").first.click(force=True)
        expect(page.get_by_text("Choose another to compare it with.")).to_be_visible()
        page.locator("circle[data-trial='7']").first.click(force=True)
        expect(page.locator(".diff figcaption")).to_contain_text("prompt 0 (0.5) prompt 7 (0.9)")
        assert "whole" in changes(page)["ins"]
        assert "a=0&b=7" in page.url
        page.get_by_role("button", name="Clear").click()
        expect(page.locator(".diff")).to_have_count(0)


def test_a_lineage_is_walked_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, {"lineage": LINEAGE, "text": TEXTS}, "lineage") as page:
        tree = page.get_by_role("application")
        words = page.locator(".lineage-readout")
        tree.focus()
        tree.press("Home")
        expect(words).to_contain_text("Prompt 0, score 0.5")
        expect(words).to_contain_text("2 children")
        tree.press("ArrowRight")  # rather to the child that led to the best
        expect(words).to_contain_text("Prompt 7, score 0.9")
        tree.press("Enter")
        tree.press("ArrowUp")
        expect(words).to_contain_text("Prompt 3")
        tree.press("ArrowLeft")
        tree.press("Enter")
        expect(page.locator(".diff figcaption")).to_contain_text("prompt 7 (0.9) prompt 0 (0.5)")


def test_a_candidate_made_in_several_steps_counts_for_each_way(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, {"lineage": LINEAGE}, "lineage") as page:
        rows = page.locator(".sortable tbody tr").all_inner_texts()
        assert [row.split("\t") for row in rows] == [
            ["rewrite", "10", "4", "40 %", "0.9"],
            ["swap", "4", "1", "25 %", "0.9"],
        ]


def test_two_thousand_candidates_are_laid_out_without_overlap(browser: Browser, tmp_path: Path) -> None:
    nodes = [node(n, [n - 100] if n >= 100 else [], n // 100, offspring=3) for n in range(2000)]
    with opened(browser, tmp_path, {"lineage": {"nodes": nodes, "ways": [], "thinned": 500}}, "lineage") as page:
        expect(page.get_by_text("500 without offspring are left out")).to_be_visible()
        places = page.locator("circle.node").evaluate_all(
            "all => all.map(dot => [dot.cx, dot.cy].map(x => x.baseVal.value))"
        )
        assert len(places) == len({tuple(place) for place in places}) == 2000
        columns = sorted({x for x, _ in places})
        assert all(right - left >= 15 for left, right in pairwise(columns))
