"""The queries a study answers: read from a file, or a varied list of our own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fanfold.errors import ConfigError

BUILT_IN = (
    "How do I sharpen a kitchen knife without a machine?",
    "What is the difference between weather and climate?",
    "Write a birthday message for a colleague I hardly know.",
    "Why does bread go stale?",
    "Should I rent or buy a small flat?",
    "My friend did not reply for two weeks and I feel left out.",
    "List five cheap dinners for a family of four.",
    "What does a mutex do in a program?",
    "How can I fall asleep faster?",
    "Explain inflation to a ten-year-old.",
    "Invent a name and a slogan for a bicycle repair shop.",
    "Who decides how long a leap year is?",
    "How do I remove a red wine stain from a carpet?",
    "Is it better to learn the guitar or the piano first?",
    "I am nervous about a job interview tomorrow.",
    "What are the main parts of a business plan?",
    "Write a short poem about an empty train station.",
    "Why is the sky dark at night?",
    "How do I split a string at commas in Python?",
    "Name three books that make history exciting.",
    "What should I check before I buy a used car?",
    "My tomato leaves turn yellow. What can I do?",
    "How far is the Moon, and how do we know?",
    "Draft a polite e-mail that declines an invitation.",
    "What is the point of a vaccine booster?",
    "How do I explain divorce to a small child?",
    "Compare tea and coffee as a morning drink.",
    "When did people begin to write things down?",
    "I broke a vase that belonged to my mother.",
    "Give me ideas for a rainy afternoon with two children.",
    "How does a heat pump work?",
    "What is a fair way to share household chores?",
    "Write the opening line of a mystery novel.",
    "Why do cats purr?",
    "How do I back up the photos on my phone?",
    "What is the safest way to change a light bulb?",
    "Which is healthier, running or swimming?",
    "I spent too much money this month and feel ashamed.",
    "How many litres of paint does a room of twenty square metres need?",
    "Suggest a weekend trip that needs no car.",
    "What does an unhandled exception mean for a web server?",
    "How do I start a conversation with a stranger?",
    "Why do people disagree about modern art?",
    "Write a toast for a small wedding.",
    "What is compound interest?",
    "How long does it take to learn a language?",
)


def load_queries(path: str | None) -> tuple[str, ...]:
    """The queries in a file, one on each line: plain text, or JSON with a `query`; without a file, our own."""
    if path is None:
        return BUILT_IN
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"there is no file of queries {path}: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the queries in {path} cannot be read: {error}") from error
    found = [
        _query(line.strip(), f"{path}, line {number}", path.endswith(("jsonl", "json")))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise ConfigError(f"{path} holds no query: write one on each line")
    return tuple(found)


def _query(line: str, where: str, is_json: bool) -> str:
    if not is_json:
        return line
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is not JSON ({error}): give the file another ending for plain text") from error
    query = value.get("query") if isinstance(value, dict) else value
    if not isinstance(query, str) or not query.strip():
        raise ConfigError(f'{where} has no query: write {{"query": "..."}}')
    return query
