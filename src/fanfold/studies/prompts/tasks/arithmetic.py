"""Word problems with whole numbers, made by rule: a story with gaps, what may fill them, and the answer's formula."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from fanfold.encoding import derive_seed
from fanfold.studies.prompts.tasks.task import Problem

_NAMES = (
    "Ada", "Ben", "Chen", "Dora", "Emil", "Farah", "Gita", "Hugo", "Ines", "Jonas", "Kofi", "Lena", "Milo", "Nora",
    "Olga", "Pablo", "Rita", "Sami", "Tara", "Yusuf",
)  # fmt: skip
_THINGS = ("apples", "marbles", "stamps", "shells", "stickers", "cards", "buttons", "pencils", "coins", "beads")

Range: TypeAlias = tuple[int, int]
#: A story, the ranges of its numbers (ends included), and the answer.  The gap {ab} is the product of a and b.
Rule: TypeAlias = tuple[str, Mapping[str, Range], Callable[[Mapping[str, int]], int]]

_RULES: tuple[Rule, ...] = (
    (
        "{name} has {a} {things} and finds {b} more. Then {name} gives {c} of them to a friend. "
        "How many {things} does {name} have left?",
        {"a": (12, 60), "b": (5, 30), "c": (3, 15)},
        lambda n: n["a"] + n["b"] - n["c"],
    ),
    (
        "A box holds {a} {things}. {name} buys {b} full boxes and already has {c} {things} at home. "
        "How many {things} does {name} have in all?",
        {"a": (4, 24), "b": (3, 9), "c": (2, 30)},
        lambda n: n["a"] * n["b"] + n["c"],
    ),
    (
        "{name} earns ${a} an hour and works {b} hours a day for {c} days. How many dollars does {name} earn?",
        {"a": (9, 25), "b": (3, 8), "c": (2, 6)},
        lambda n: n["a"] * n["b"] * n["c"],
    ),
    (
        "{name} buys {b} notebooks for ${a} each and hands over ${d}0. How many dollars of change are due?",
        {"a": (2, 5), "b": (2, 7), "d": (4, 9)},
        lambda n: 10 * n["d"] - n["a"] * n["b"],
    ),
    (
        "{name} and {other} share {things} from a bag and take {a} each. Then {name} loses {c}. "
        "How many {things} do the two have together now?",
        {"a": (10, 45), "c": (2, 9)},
        lambda n: 2 * n["a"] - n["c"],
    ),
    (
        "A train leaves at {b} o'clock and travels {a} kilometers every hour. How many kilometers has it come "
        "{c} hours later, if it stood still for one of those hours?",
        {"a": (60, 140), "b": (6, 10), "c": (3, 8)},
        lambda n: n["a"] * (n["c"] - 1),
    ),
    (
        "There are {a} rows of seats in a hall with {b} seats in each row. {c} seats are empty. "
        "How many seats are taken?",
        {"a": (8, 20), "b": (10, 25), "c": (5, 70)},
        lambda n: n["a"] * n["b"] - n["c"],
    ),
    (
        "{name} is {a} years old. {other} is {b} years older than {name}. How old will {other} be in {c} years?",
        {"a": (6, 40), "b": (2, 25), "c": (3, 15)},
        lambda n: n["a"] + n["b"] + n["c"],
    ),
    (
        "A baker makes {a} rolls in the morning and twice as many in the afternoon. {c} rolls are not sold. "
        "How many rolls are sold?",
        {"a": (30, 120), "c": (4, 28)},
        lambda n: 3 * n["a"] - n["c"],
    ),
    (
        "{name} reads {a} pages a day from Monday to Friday and {b} pages on each day of the weekend. "
        "How many pages does {name} read in a week?",
        {"a": (8, 30), "b": (20, 60)},
        lambda n: 5 * n["a"] + 2 * n["b"],
    ),
    (
        "A farmer has {a} hens. Each hen lays {b} eggs a week. The eggs are packed in cartons of {b}. "
        "How many cartons are filled in {c} weeks?",
        {"a": (7, 40), "b": (4, 6), "c": (2, 5)},
        lambda n: n["a"] * n["c"],
    ),
    (
        "A shirt costs ${a}0. It is sold at half price, and {name} has a coupon for ${c} off. "
        "How many dollars does {name} pay?",
        {"a": (3, 12), "c": (2, 9)},
        lambda n: 5 * n["a"] - n["c"],
    ),
    (
        "{name} runs {a} laps of {b} meters each, and {other} runs {c} meters more than {name}. "
        "How many meters does {other} run?",
        {"a": (4, 15), "b": (200, 400), "c": (50, 300)},
        lambda n: n["a"] * n["b"] + n["c"],
    ),
    (
        "A school has {a} classes with {b} children each. {c} buses with {b} seats each are hired for a trip. "
        "How many children have no seat?",
        {"a": (9, 16), "b": (18, 30), "c": (3, 8)},
        lambda n: (n["a"] - n["c"]) * n["b"],
    ),
    (
        "{name} saves ${a} every week. A bicycle costs ${c}0 more than {name} will have saved after {b} weeks. "
        "How many dollars does the bicycle cost?",
        {"a": (5, 20), "b": (6, 12), "c": (2, 9)},
        lambda n: n["a"] * n["b"] + 10 * n["c"],
    ),
    (
        "A tank holds {a}00 liters of water. Each day {b} liters are used and nothing is added. "
        "How many liters are left after {c} days?",
        {"a": (5, 9), "b": (15, 60), "c": (3, 7)},
        lambda n: 100 * n["a"] - n["b"] * n["c"],
    ),
    (
        "{name} has {a} {things}. {other} has three times as many. How many {things} do they have together?",
        {"a": (7, 45)},
        lambda n: 4 * n["a"],
    ),
    (
        "A film lasts {a} minutes and starts after {b} minutes of advertising. There is also a break of {c} minutes. "
        "How many minutes pass from the first advertisement to the end of the film?",
        {"a": (80, 150), "b": (8, 20), "c": (5, 15)},
        lambda n: n["a"] + n["b"] + n["c"],
    ),
    (
        "{name} plants {a} rows of {b} tulips. A deer eats {c} tulips from every row. How many tulips remain?",
        {"a": (5, 12), "b": (10, 20), "c": (2, 6)},
        lambda n: n["a"] * (n["b"] - n["c"]),
    ),
    (
        "A pack of {a} pens costs ${b}. {name} needs {c} times as many pens as are in a pack, and has ${d}. "
        "How many dollars are left after buying exactly the packs needed?",
        {"a": (5, 12), "b": (3, 8), "c": (2, 6), "d": (50, 90)},
        lambda n: n["d"] - n["b"] * n["c"],
    ),
    (
        "On Monday {a} people visit a museum. On Tuesday {b} fewer people come than on Monday. "
        "How many people come on the two days together?",
        {"a": (90, 300), "b": (10, 60)},
        lambda n: 2 * n["a"] - n["b"],
    ),
    (
        "{name} cuts a rope into {c} pieces of {b} meters each, and {d} meters remain. "
        "How many meters long was the rope?",
        {"b": (2, 9), "c": (4, 12), "d": (2, 9)},
        lambda n: n["b"] * n["c"] + n["d"],
    ),
    (
        "{name} packs {ab} {things} into bags of {b} and gives {c} bags away. How many bags are left?",
        {"a": (9, 20), "b": (4, 12), "c": (2, 7)},
        lambda n: n["a"] - n["c"],
    ),
    (
        "{ab} children are divided into teams of {b}. Each team needs {c} balls. How many balls are needed?",
        {"a": (4, 12), "b": (5, 11), "c": (2, 6)},
        lambda n: n["a"] * n["c"],
    ),
)


def word_problems(each: int = 11, seed: int = 0) -> tuple[Problem, ...]:
    """`each` problems of every kind, all different and always the same."""
    return tuple(problem for number, rule in enumerate(_RULES, 1) for problem in _of_a_kind(number, rule, each, seed))


def _of_a_kind(kind: int, rule: Rule, each: int, seed: int) -> Iterator[Problem]:
    story, ranges, formula = rule
    rng = random.Random(derive_seed(seed, "arithmetic", kind))
    used: set[tuple[int, ...]] = set()
    while len(used) < each:
        numbers = {gap: rng.randint(*ends) for gap, ends in ranges.items()}
        if tuple(numbers.values()) in used:
            continue
        used.add(tuple(numbers.values()))
        name, other = rng.sample(_NAMES, 2)
        product = numbers.get("a", 0) * numbers.get("b", 0)
        text = story.format(name=name, other=other, things=rng.choice(_THINGS), ab=product, **numbers)
        yield Problem(f"story-{kind:02}-{len(used):02}", text, formula(numbers))
