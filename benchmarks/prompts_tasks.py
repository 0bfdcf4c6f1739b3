"""Writes the files of the prompt benchmark's tasks, as a stranger might have them.

python benchmarks/prompts_tasks.py

The rows are drawn by a fixed seed from phrases that were written for this benchmark (`data/prompts/banks.toml`, CC0).
Nothing here knows any method.  The tasks were chosen by one rule before a method was run on them: with all eight
examples and no search, the local model is right on between a fifth and four fifths of the problems.
"""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

DATA = Path(__file__).parent / "data" / "prompts"
BANKS: Mapping[str, Any] = tomllib.loads((DATA / "banks.toml").read_text(encoding="utf-8"))
ROWS = 130

Draw = Callable[[Random], tuple[str, Any]]


def filled(template: str, rng: Random, **fixed: Any) -> str:
    """The template with every slot filled from its bank of words; `fixed` slots are given."""
    slots = {
        "number": rng.randint(110, 980),
        "thousands": rng.randint(20, 900),
        "minutes": rng.randint(15, 170),
        "small": rng.randint(3, 14),
        "day": rng.randint(1, 28),
        "year": rng.randint(1950, 2020),
    }
    words = {name: rng.choice(bank) for name, bank in BANKS["words"].items()}
    text = template.format(**{**words, **slots, **fixed})
    return text[0].upper() + text[1:]


def labelled(name: str) -> Draw:
    """A closed set: every label has phrases of its own."""

    def draw(rng: Random) -> tuple[str, str]:
        label = rng.choice(list(BANKS[name]))
        return filled(rng.choice(BANKS[name][label]), rng), label

    return draw


def template(name: str, rng: Random) -> str:
    return str(rng.choice(BANKS[name]["templates"]))


def words(rng: Random, bank: str, count: int) -> list[str]:
    return rng.sample(BANKS["words"][bank], count)


def deadline(rng: Random) -> tuple[str, str]:
    (due, other) = (f"{day} {month}" for day, month in zip(rng.sample(range(1, 29), 2), words(rng, "month", 2)))
    return filled(template("deadlines", rng), rng, due=due, other=other), due


def place(rng: Random) -> tuple[str, str]:
    (a, b), (x, y), (p, q, r) = words(rng, "person", 2), words(rng, "thing", 2), words(rng, "room", 3)
    text = filled(template("places", rng), rng, a=a, b=b, x=x, y=y, p=p, q=q, r=r)
    text, _, elsewhere = text.partition(">")
    return text, elsewhere or q


def total(rng: Random) -> tuple[str, int]:
    x, y = rng.randint(1, 20), rng.randint(1, 9)
    if rng.random() < 0.3 and x > y:
        return f"{x} - {y}", x - y
    return f"{x} + {y}", x + y


def date(rng: Random) -> tuple[str, str]:
    year, month, day = rng.randint(1985, 2024), rng.randint(1, 12), rng.randint(1, 28)
    name = BANKS["words"]["month"][month - 1]
    ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}.get(day, "th")
    forms = (
        f"{day} {name} {year}",
        f"{name} {day}, {year}",
        f"the {day}{ending} of {name} {year}",
        f"{day}.{month}.{year}",
        f"{name[:3]} {day} {year}",
        f"{day}-{name[:3].lower()}-{year}",
        f"{year}, {name} {day}{ending}",
    )
    return rng.choice(forms), f"{year}-{month:02}-{day:02}"


def name(rng: Random) -> tuple[str, str]:
    (first, middle), (last,) = words(rng, "person", 2), words(rng, "surname", 1)
    title = rng.choice(("Dr.", "Prof.", "Mr", "Ms", "Eng."))
    forms = (
        f"{last.upper()}, {first}",
        f"{title} {first} {last}",
        f"{last}, {title} {first}",
        f"{first.lower()}.{last.lower()}@{rng.choice(BANKS['words']['city']).lower()}.example",
        f"{first} {middle[0]}. {last.upper()}",
        f"{last.lower()}_{first.lower()}{rng.randint(1, 99)}",
        f"{title} {last} ({first})",
    )
    return rng.choice(forms), f"{first} {last}"


def order(rng: Random) -> tuple[str, str]:
    person, goods, city = (words(rng, bank, 1)[0] for bank in ("person", "goods", "city"))
    count = rng.randint(3, 90)
    fixed = {"person": person, "goods": goods, "city": city, "count": count, "less": count - rng.randint(1, 2)}
    return filled(template("orders", rng), rng, **fixed), json.dumps({"item": goods, "count": count})


HAND: Mapping[str, Any] = tomllib.loads((DATA / "hand.toml").read_text(encoding="utf-8"))
#: The file of every task, its two columns, and how a row is drawn.
FILES: Mapping[str, tuple[tuple[str, str], Draw]] = {
    "statements.csv": (("statement", "type"), labelled("statements")),
    "messages.csv": (("message", "kind"), labelled("messages")),
    "tickets.csv": (("ticket", "team"), labelled("tickets")),
    "requests.csv": (("request", "skill"), labelled("requests")),
    "deadlines.jsonl": (("mail", "due"), deadline),
    "dates.csv": (("written", "iso_date"), date),
    "names.csv": (("entry", "full_name"), name),
    "sums.csv": (("sum", "result"), total),
    "orders.csv": (("mail", "order"), order),
    "places.csv": (("story", "place"), place),
}
TASKS: Mapping[str, str] = {Path(file).stem: file for file in FILES}


def rows(file: str) -> list[dict[str, Any]]:
    """The rows of a file, all of different text."""
    columns, draw = FILES[file]
    rng = Random(file)
    drawn: dict[str, Any] = {}
    for _ in range(50 * ROWS):
        text, answer = draw(rng)
        drawn.setdefault(text, answer)
        if len(drawn) == ROWS:
            break
    return [dict(zip(columns, row)) for row in drawn.items()]


def written(file: str) -> str:
    """The content of a file."""
    if file.endswith(".jsonl"):
        return "".join(json.dumps(row) + "\n" for row in rows(file))
    text = io.StringIO()
    table = csv.DictWriter(text, FILES[file][0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows(file))
    return text.getvalue()


def main(files: Sequence[str] = tuple(FILES)) -> None:
    for file in files:
        (DATA / file).write_text(written(file), encoding="utf-8")


if __name__ == "__main__":
    main()
