"""Graders read replies in any script: no blanks between words, marks and digits of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanfold.tasks import Grader, Problem
from fanfold.tasks.grading import Contains, Exact, Labels, MultipleChoice, Numeric

TEAMS = ("退货", "物流", "账户")
CITIES = {"options": ["巴黎", "伦敦", "罗马"]}


def score(grader: Grader, reply: str, answer: Any, note: Any = None) -> float:
    async def once() -> float:
        return (await grader(reply, Problem("1", "?", answer, note))).score

    return asyncio.run(once())


@pytest.mark.parametrize("reply", ["退货。", "「退货」", "《退货》", "【退货】", "退货！", "退货、"])
@pytest.mark.parametrize("grader", [Exact(), Exact(case=True), Exact(among=TEAMS)])
def test_marks_around_an_answer_do_not_matter(grader: Exact, reply: str) -> None:
    assert score(grader, reply, "退货") == 1


@pytest.mark.parametrize(("reply", "answer"), [("إرجاع؟", "إرجاع"), ("إرجاع،", "إرجاع"), ("वापसी।", "वापसी")])
def test_marks_of_other_scripts_do_not_matter(reply: str, answer: str) -> None:
    assert score(Exact(), reply, answer) == 1


@pytest.mark.parametrize("reply", ["应该是退货", "这是退货问题。", "答案：退货", "退货です", "ตอบ退货ครับ"])
def test_words_without_blanks_between_them_are_found(reply: str) -> None:
    assert score(Contains(), reply, "退货") == 1
    assert score(Exact(among=TEAMS), reply, "退货") == 1
    assert score(Contains(), reply, "账户") == 0


def test_several_labels_still_decide_nothing_and_longer_ones_hide_shorter() -> None:
    assert score(Exact(among=TEAMS), "退货还是物流", "退货") == 0
    assert score(Exact(among=TEAMS), "退货，不是物流", "退货") == 1
    assert score(Exact(among=("满意", "不满意")), "他不满意", "满意") == 0
    assert score(Contains(), "Romeo", "Rome") == 0
    assert score(Contains(), "是Rome吗", "Rome") == 1


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("答案是42", 42),
        ("共42个。", 42),
        ("約1,234円", 1234),
        ("答えは４２です", 42),
        ("합계는 42원", 42),
        ("الجواب ٤٢", 42),
        ("١٬٢٣٤٫٥", 1234.5),
        ("उत्तर ४२ है", 42),
    ],
)
def test_numbers_are_read_beside_letters_and_in_digits_of_other_scripts(reply: str, value: float) -> None:
    assert score(Numeric(), reply, value) == 1


def test_a_number_inside_a_word_is_still_none() -> None:
    assert score(Numeric(), "covid19", 19) == score(Numeric(), "é5", 5) == 0


@pytest.mark.parametrize("reply", ["B", "答案是B", "选B。", "选择B，因为它是首都", "答案是伦敦", "应该选伦敦。"])
def test_an_option_is_named_without_a_blank_before_it(reply: str) -> None:
    assert score(MultipleChoice(), reply, "B", CITIES) == 1


def test_a_letter_that_is_an_option_is_no_article_there() -> None:
    assert score(MultipleChoice(), "选A，因为它是首都", "A", CITIES) == 1
    assert score(MultipleChoice(), "选A或者B", "A", CITIES) == 0


@pytest.mark.parametrize("reply", ["退货；物流", "物流、退货", "物流，退货。", "- 退货\n- 物流"])
def test_labels_are_separated_by_marks_of_any_script(reply: str) -> None:
    assert score(Labels(), reply, "退货; 物流") == score(Labels(), reply, "退货、物流") == 1
