"""What tasks promise: fair splits, and built-in problems that are right, varied and not too easy to guess."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.tasks import BUILTIN, Problem, Split, Task, load
from fanfold.tasks.grading import Exact, Numeric
from fanfold.tasks.task import SECTIONS


def task(count: int, **settings: Any) -> Task:
    return Task("t", tuple(Problem(f"p{n}", f"input {n}", f"answer {n}") for n in range(count)), Exact(), **settings)


def parts(split: Split) -> list[tuple[Problem, ...]]:
    return [split.examples, split.train, split.validation, split.held_out]


def ids(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.id for problem in problems]


# -- splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.lists(st.integers(0, 20) | st.floats(0, 1), min_size=4, max_size=4),
)
def test_a_split_is_disjoint_repeatable_and_of_the_sizes_asked_for_or_refused(
    seed: int, count: int, sizes: list[int | float]
) -> None:
    whole = task(count)
    try:
        split = whole.split(seed, *sizes)
    except ConfigError:
        wanted = [size if isinstance(size, int) else int(size * count + 1e-9) for size in sizes]
        assert sum(wanted) > count or any(size and not number for size, number in zip(sizes, wanted))
        return
    names = [name for part in parts(split) for name in ids(part)]
    assert len(set(names)) == len(names)
    for part, size in zip(parts(split), sizes):
        assert len(part) == size if isinstance(size, int) else abs(len(part) - size * count) <= 1
    assert split == whole.split(seed, *sizes)


@given(st.permutations(range(30)))
def test_a_split_depends_on_ids_and_not_on_the_order_of_problems(order: list[int]) -> None:
    whole = task(30)
    shuffled = Task("t", tuple(whole.problems[n] for n in order), Exact())
    assert shuffled.split(3) == whole.split(3)


def test_other_seeds_give_other_splits() -> None:
    assert len({tuple(ids(task(40).split(seed).held_out)) for seed in range(20)}) == 20


def test_the_held_out_set_stays_when_other_sizes_change() -> None:
    whole = task(40)
    assert whole.split(1, 2, 10, 5, 9).held_out == whole.split(1, 5, 3, 0, 9).held_out


def test_shares_that_sum_to_one_use_every_problem() -> None:
    assert sum(map(len, parts(task(70).split(0)))) == 70
    assert len(task(100).split(0, 0, 0.29, 0, 0).train) == 29  # in floating point 0.29 * 100 is a little less


def test_a_repeated_input_is_used_once_so_that_no_answer_leaks() -> None:
    twins = tuple(Problem(f"{kind}{n}", f"input {n}", "a") for kind in "xy" for n in range(10))
    split = Task("t", twins, Exact()).split(0, 2, 4, 2, 2)
    assert len({problem.input for part in parts(split) for problem in part}) == 10
    assert {problem.id[0] for part in parts(split) for problem in part} == {"x"}  # the first that was given
    with pytest.raises(ConfigError, match=r"10 different problems \(10 more repeat an input\)"):
        Task("t", twins, Exact()).split(0, 2, 4, 2, 3)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"train": 9}, "too few for 1 examples . 9 train . 2 validation . 3 held_out: ask for fewer"),
        ({"train": -1}, "train must be"),
        ({"train": 1.5}, "is not a share"),
        ({"train": True}, "train must be"),
        ({"train": float("nan")}, "train must be"),
        ({"examples": 0.01}, "not even one"),
    ],
)
def test_sizes_that_cannot_be_had_are_explained(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        task(10).split(0, **sizes)


# -- what a task refuses ----------------------------------------------------------------------------------------------


def test_a_task_that_cannot_work_is_refused_when_it_is_made() -> None:
    for make, said in (
        (lambda: Task("t", (), Exact()), "has no problems"),
        (lambda: Task("t", (Problem("1", "a", "b"), Problem("1", "c", "d")), Exact()), "two problems have the id '1'"),
        (lambda: Task("t", (Problem("7", "a", "many"),), Numeric()), "problem '7': the answer 'many' has no number"),
        (lambda: Task("t", (Problem("7", "a"),), Exact()), "problem '7': there is no answer"),
        (lambda: task(1, clauses={"roles": ()}), "did you mean 'role'"),
        (lambda: Task("t", (Problem("1", "a", "b"),), "exact"), "must be callable"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=said):
            make()


def test_an_answer_is_shown_as_a_text() -> None:
    assert Problem("1", "?", 72).shown == "72"
    assert Problem("1", "?", ["New York", "NYC"]).shown == "New York"
    assert Problem("1", "?", [["f()", 1]], {"shown": "def f(): ..."}).shown == "def f(): ..."
    assert Problem("1", "?").shown == ""


# -- the tasks that ship ----------------------------------------------------------------------------------------------

LEAST = {"city": 160, "sentiment": 160, "addition": 160, "arithmetic": 200, "choice": 60, "code": 10}


@pytest.mark.parametrize("name", LEAST)
def test_a_task_that_ships_is_whole(name: str) -> None:
    made = load(name)
    assert made.name == name and len(made.problems) >= LEAST[name]
    assert len({problem.input for problem in made.problems}) == len(made.problems)
    assert made.description.endswith(".") and "CC0" in made.source
    assert set(made.clauses) == set(SECTIONS) and all(made.clauses.values()) and made.labels and made.seeds
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own bytes
    encode(made.problems)
    made.split(0)


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.slow
def test_the_shown_answer_of_every_problem_is_graded_as_right(name: str) -> None:
    made = load(name)

    async def scores() -> list[float]:
        return [(await made.grader(problem.shown, problem)).score for problem in made.problems]

    assert set(asyncio.run(scores())) == {1.0}


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.slow
def test_another_problem_s_answer_is_graded_as_wrong(name: str) -> None:
    made = load(name, limit=10)
    pairs = [(one, other) for one in made.problems for other in made.problems if one.shown != other.shown][:20]

    async def scores() -> list[float]:
        return [(await made.grader(other.shown, one)).score for one, other in pairs]

    assert pairs and set(asyncio.run(scores())) == {0.0}


def test_all_tasks_that_ship_are_listed() -> None:
    assert list(BUILTIN) == list(LEAST)


def test_every_city_stands_once_in_its_sentence_among_other_names() -> None:
    problems = load("city").problems
    cities = {problem.answer for problem in problems}
    assert len(cities) > 100
    for problem in problems:
        named = [city for city in cities if re.search(rf"\b{re.escape(city)}\b", problem.input)]
        assert problem.answer in named and all(city in problem.answer for city in named), problem
    frames = {problem.input.replace(problem.answer, "_") for problem in problems}
    others = [
        problem for problem in problems if re.search(r"(?<=\w )[A-Z]\w+", problem.input.replace(problem.answer, "_"))
    ]
    assert len(frames) > 120 and len(others) > 60


def test_reviews_are_balanced_and_no_word_gives_the_answer_away_for_many() -> None:
    problems = load("sentiment").problems
    assert Counter(problem.answer for problem in problems) == {"positive": 88, "negative": 88}
    openings = Counter(" ".join(problem.input.split()[:3]) for problem in problems)
    assert max(openings.values()) <= 4
    words = Counter(word for problem in problems for word in set(re.findall(r"[a-z']{4,}", problem.input.lower())))
    assert all(
        count <= 0.35 * len(problems) for word, count in words.items() if word not in ("film", "this", "that", "with")
    )


def test_sums_are_right_and_have_two_digits_each() -> None:
    for problem in load("addition").problems:
        left, right = map(int, problem.input.split(" + "))
        assert 10 < left < 100 and 10 < right < 100 and left + right == problem.answer


def test_word_problems_have_positive_answers_and_no_gaps_and_are_always_the_same() -> None:
    problems = load("arithmetic").problems
    assert all(isinstance(problem.answer, int) and problem.answer > 0 for problem in problems)
    assert not any(mark in problem.input for problem in problems for mark in "{}")
    firsts = {problem.id: problem.answer for problem in problems if problem.id.endswith("-01")}
    by_hand = [
        62,
        69,
        360,
        32,
        21,
        959,
        244,
        35,
        135,
        196,
        140,
        10,
        4915,
        100,
        166,
        648,
        44,
        137,
        144,
        48,
        334,
        18,
        3,
        10,
    ]
    assert firsts == {f"story-{kind:02}-01": answer for kind, answer in enumerate(by_hand, 1)}
    copied = sum(str(problem.answer) in re.findall(r"\d+", problem.input) for problem in problems)
    assert copied < 0.1 * len(problems)  # the answer is to be worked out, not found


def test_no_letter_is_the_right_choice_more_often_than_another() -> None:
    counts = Counter(problem.answer for problem in load("choice").problems)
    assert set(counts) == set("ABCD") and max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.slow
def test_code_problems_reject_a_function_that_does_nothing() -> None:
    made = load("code")

    async def scores() -> list[float]:
        empty = "def {}(*anything):\n    return None"
        return [(await made.grader(empty.format(problem.id), problem)).score for problem in made.problems]

    assert set(asyncio.run(scores())) == {0.0}
