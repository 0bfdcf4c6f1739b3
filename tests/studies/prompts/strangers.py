"""Files as people bring them: each function writes one into a folder and returns its name."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def table(rows: Iterable[Iterable[Any]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue()


def lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def excel() -> bytes:
    """Saved by Excel in Germany: a byte order mark, semicolons, Windows line ends, texts of several lines."""
    rng = random.Random(1)
    rows: list[list[str]] = [["Kundenanfrage", "Abteilung"]]
    for number in range(36):
        what, where = rng.choice([("Rechnung", "Buchhaltung"), ("Paket", "Versand"), ("Passwort", "Technik")])
        rows.append([f"Guten Tag,\nmein {what} Nr. {number}; bitte helfen.\n\nDanke", where])
    return b"\xef\xbb\xbf" + table(rows, ";").encode()


def messy_labels() -> bytes:
    """Labels typed by hand, spaces behind them, a few cells left empty."""
    rng = random.Random(2)
    rows: list[list[str]] = [["ticket_id", "created", "agent", "message", "channel", "category"]]
    for number in range(60):
        label = rng.choice(["Refund", "refund ", "REFUND", "Shipping", " shipping", "Other"])
        about = {"r": "my money back", "s": "where the parcel is", "o": "about the weather"}[label.strip()[0].lower()]
        text = "" if number == 17 else f"I want to know {about} ({number})"
        rows.append([f"T-{number:04}", f"2024-05-{number % 28 + 1:02}", "Kim", text, "mail", label])
    return table(rows).encode()


def amounts() -> bytes:
    rows = [["Beleg", "Summe"]]
    rows += [[f"Rechnung {n}: {n} Stück zu 1.{n:03},50 €", f"{n}.{n:03},50 €"] for n in range(1, 31)]
    return table(rows).encode()


def extraction() -> bytes:
    """JSON in the cells of a CSV file, as pandas writes it: Python's way for some people."""
    rng = random.Random(3)
    rows: list[list[Any]] = [["text", "output"]]
    for number in range(30):
        name, city = rng.choice(["Ann", "Bo", "Cy"]), rng.choice(["Rome", "Oslo"])
        rows.append([f"{name} ({number}) lives in {city}.", {"name": name, "city": city, "age": number}])
    return table(rows).encode()


def tags() -> bytes:
    rows = [{"doc": f"Page {n} on tea and cats", "tags": ["tea", "cats"][: n % 2 + 1]} for n in range(30)]
    return lines(rows).encode()


def long_texts() -> bytes:
    rng = random.Random(4)
    rows: list[list[str]] = [["document", "topic"]]
    for number in range(24):
        topic = rng.choice(["sport", "law"])
        words = rng.choices(["match", "goal", "team"] if topic == "sport" else ["court", "judge", "claim"], k=2000)
        rows.append([" ".join([f"No. {number}:", *words]), topic])
    return table(rows).encode()


def unbalanced() -> bytes:
    rows = [{"text": f"Transfer {n} of {n} dollars", "label": "fraud" if n % 10 == 3 else "fine"} for n in range(80)]
    return lines(rows).encode()


def two_languages() -> bytes:
    texts = [
        "Das war {} toll",
        "This was {} great",
        "Das war {} übel",
        "This was {} awful",
        "これは{}最高",
        "これは{}最低",
    ]
    rows = [
        {"Satz": texts[n % 6].format(n), "Urteil": ("gut", "gut", "schlecht", "schlecht", "gut", "schlecht")[n % 6]}
        for n in range(42)
    ]
    return lines(rows).encode()


def booleans() -> bytes:
    return lines({"statement": f"{n} is even", "answer": n % 2 == 0} for n in range(40)).encode()


def addresses() -> bytes:
    rows = [["raw", "clean"]]
    rows += [[f"{n} main st springfield", f"{n} Main St\nSpringfield"] for n in range(1, 31)]
    return table(rows).encode()


def multiple_choice() -> bytes:
    rows = [["question", "choices", "answer"]]
    rows += [[f"Which is {n}?", f"{n}|{n + 1}|{n + 2}", "A"] for n in range(30)]
    return table(rows).encode()


def ratings() -> bytes:
    rows = [["review", "stars"]]
    rows += [[f"{'Bad' if n % 3 == 0 else 'Good'} product no. {n}", "1.0" if n % 3 == 0 else "5.0"] for n in range(45)]
    return table(rows).encode()


#: Every file by its name, with what the run must say of the form of its answers.
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "anfragen.csv": (excel, "one of 3 labels"),
    "tickets.csv": (messy_labels, "one of 3 labels"),
    "belege.csv": (amounts, "numbers"),
    "people.csv": (extraction, "JSON"),
    "tags.jsonl": (tags, "JSON"),
    "documents.csv": (long_texts, "one of 2 labels"),
    "transfers.jsonl": (unbalanced, "one of 2 labels (90 % are 'fine')"),
    "urteile.jsonl": (two_languages, "one of 2 labels"),
    "facts.jsonl": (booleans, "one of 2 labels"),
    "addresses.csv": (addresses, "a few lines"),
    "quiz.csv": (multiple_choice, "one of the options"),
    "stars.csv": (ratings, "one of 2 numbers"),
}


def write(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(FILES[name][0]())
    return path
